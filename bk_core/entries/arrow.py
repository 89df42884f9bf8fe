# SPDX-License-Identifier: Apache-2.0
"""Arrow columns to entry batches and back, without copying. The only file of this package that imports pyarrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch, check_entry_sizes
from bk_core.errors import InvalidArgumentError

_I32_MAX = (1 << 31) - 1


def batch_from_arrow(array: pa.Array | pa.ChunkedArray) -> EntryBatch:
    """A column of type binary, large_binary, string or large_string as entries, not yet of any ledger.

    The payload is a view of the column's data buffer and keeps it alive; only a column of several chunks is copied.
    InvalidArgumentError for other types and for nulls (an entry cannot be null), EntryTooLargeError by RULES L5.
    """
    if isinstance(array, pa.ChunkedArray):
        _check_type(array.type)
        return EntryBatch.concat([batch_from_arrow(chunk) for chunk in array.chunks])
    if not isinstance(array, pa.Array):
        if not hasattr(array, "__arrow_c_array__"):
            raise InvalidArgumentError("not an Arrow array", value=type(array).__name__)
        array = pa.array(array)
    _check_type(array.type)
    if array.null_count:
        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidArgumentError(
            "an entry cannot be null",
            value=f"{array.null_count} nulls in {len(array)} values, the first at {first}",
            remedy="drop or fill them first",
        )
    if len(array) == 0:
        return EntryBatch.from_list([])
    _, offsets_buffer, data = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    sizes = np.diff(offsets)
    check_entry_sizes(sizes)
    payload = memoryview(b"") if data is None else memoryview(data).cast("B")
    payload = payload[int(offsets[0]) : int(offsets[-1])].toreadonly()
    return EntryBatch(lengths=sizes.astype(np.uint32), payload=payload)


def batch_to_arrow(batch: EntryBatch) -> pa.Array:
    """The payloads as ``binary`` over the batch's own memory, which the array keeps alive; ``large_binary`` where
    the payload is over 2 GiB − 1."""
    narrow = batch.payload_bytes <= _I32_MAX
    offsets = batch.offsets().astype(np.int32 if narrow else np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(batch.payload)]
    return pa.Array.from_buffers(pa.binary() if narrow else pa.large_binary(), batch.count, buffers)


def _check_type(kind: pa.DataType) -> None:
    types = pa.types
    accepted = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    if not any(accepts(kind) for accepts in accepted):
        raise InvalidArgumentError(
            "entries come from a column of binary or string", value=f"this one is {kind}", remedy="cast it first"
        )
