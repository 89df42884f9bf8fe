# SPDX-License-Identifier: Apache-2.0
"""Converts Arrow columns to sizes and one buffer, and back, without copying. No other file of ``entries`` imports
pyarrow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bk_core.errors import InvalidArgumentError

_I32_MAX = (1 << 31) - 1
_Columns = tuple[npt.NDArray[np.int64], memoryview]


def columns_of(array: pa.Array | pa.ChunkedArray) -> _Columns:
    """Return the sizes of a column's values, and the values joined. The column's type is binary, large_binary, string
    or large_string.

    The joined values are a view of the column's data buffer, which the view keeps alive. Only a column of several
    chunks is copied. Raises InvalidArgumentError for other types and for nulls, because an entry cannot be null.
    """
    if isinstance(array, pa.ChunkedArray):
        _check_type(array.type)
        parts = [_columns_of(chunk) for chunk in array.chunks if len(chunk)]
        if len(parts) > 1:
            return np.concatenate([sizes for sizes, _ in parts]), memoryview(b"".join([data for _, data in parts]))
        return parts[0] if parts else (np.zeros(0, np.int64), memoryview(b""))
    if not isinstance(array, pa.Array):
        if not hasattr(array, "__arrow_c_array__"):
            raise InvalidArgumentError("not an Arrow array", value=type(array).__name__)
        array = pa.array(array)
    _check_type(array.type)
    return _columns_of(array)


def _columns_of(array: pa.Array) -> _Columns:
    if array.null_count:
        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidArgumentError(
            "an entry cannot be null",
            value=f"{array.null_count} nulls in {len(array)} values, the first at {first}",
            remedy="drop or fill them first",
        )
    if len(array) == 0:
        return np.zeros(0, np.int64), memoryview(b"")
    _, offsets_buffer, data = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    payload = memoryview(b"") if data is None else memoryview(data).cast("B")
    return np.diff(offsets).astype(np.int64), payload[int(offsets[0]) : int(offsets[-1])].toreadonly()


def array_of(offsets: npt.NDArray[np.int64], payload: memoryview) -> pa.Array:
    """Return the values between these offsets of ``payload`` as an Arrow array over the same memory, which the array
    keeps alive. Its type is ``binary``, or ``large_binary`` if the payload exceeds 2 GiB − 1."""
    narrow = payload.nbytes <= _I32_MAX
    buffers = [None, pa.py_buffer(offsets.astype(np.int32 if narrow else np.int64)), pa.py_buffer(payload)]
    return pa.Array.from_buffers(pa.binary() if narrow else pa.large_binary(), len(offsets) - 1, buffers)


def _check_type(kind: pa.DataType) -> None:
    types = pa.types
    accepted = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    if not any(accepts(kind) for accepts in accepted):
        raise InvalidArgumentError(
            "entries come from a column of binary or string", value=f"this one is {kind}", remedy="cast it first"
        )
