# SPDX-License-Identifier: Apache-2.0
"""Pulsar's compressions of messages and of records. The size after decompression is bounded before memory is taken."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from bk_core.pulsar.messages.scan import varint

Bytes: TypeAlias = bytes | memoryview

UNCOMPRESSED_BYTES_MAX = 128 << 20
"""The greatest size of a message or a batch after decompression. Pulsar has no limit of its own for it; what a broker
takes, 5 MiB by default, is compressed."""
_RATIO_MAX = {1: 256, 2: 1100, 4: 32}
"""What LZ4, zlib and Snappy can make of a byte at most, a little more: a size beyond it is a lie. zstd has no limit."""
NAMES = {0: "NONE", 1: "LZ4", 2: "ZLIB", 3: "ZSTD", 4: "SNAPPY"}
_SLACK_BYTES = 1024


class CompressionError(ValueError):
    """Bytes that cannot be decompressed; ``is_unknown`` if the type of the compression is not known."""

    is_unknown = False


def decompressed(kind: int, data: Bytes, size: int, bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> Bytes:
    """``data`` as it was before compression of type ``kind``, which must then be ``size`` bytes. Raises
    CompressionError; for more than ``bytes_max`` bytes before it decompresses anything."""
    if kind == 0:
        return data
    decompress = _DECOMPRESS.get(kind)
    if decompress is None:
        error = CompressionError(f"compression {kind} is not known")
        error.is_unknown = True
        raise error
    if size > bytes_max or size < 0:
        raise CompressionError(f"it says that it has {size} bytes uncompressed, more than {bytes_max}")
    if size > _SLACK_BYTES + len(data) * _RATIO_MAX.get(kind, size):
        raise CompressionError(f"{len(data)} bytes of {NAMES[kind]} cannot have been {size} bytes")
    if size == 0:
        return b""
    try:
        found = decompress(data, size)
    except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
        raise CompressionError(f"it is no {NAMES[kind]}: {error}") from error
    if len(found) != size:
        raise CompressionError(f"{NAMES[kind]} gave {len(found)} bytes, not {size}")
    return found


def _zlib(data: Bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    found = inflater.decompress(data, size)
    if not inflater.eof and inflater.decompress(inflater.unconsumed_tail, 1):
        raise ValueError(f"more than {size} bytes")
    return found


def _codec(name: str) -> Callable[[Bytes, int], bytes]:
    codec = pa.Codec(name)

    def decompress(data: Bytes, size: int) -> bytes:
        found: Any = codec.decompress(data, decompressed_size=size, asbytes=True)
        return bytes(found)

    return decompress


def _lz4(data: Bytes, size: int) -> bytes:
    """Arrow does not say how many bytes a block gave, and leaves the rest of the buffer as it was. A block that also
    fits into one byte less gave fewer."""
    found = _LZ4(data, size)
    with contextlib.suppress(pa.ArrowException, OSError):
        _LZ4(data, size - 1)
        raise ValueError(f"fewer than {size} bytes")
    return found


def _snappy(data: Bytes, size: int) -> bytes:
    """A block of Snappy begins with its size, as a varint."""
    said, _ = varint(bytes(data[:10]), 0)
    if said != size:
        raise ValueError(f"{said} bytes, not {size}")
    return _SNAPPY(data, size)


_LZ4, _SNAPPY = _codec("lz4_raw"), _codec("snappy")
_DECOMPRESS: Mapping[int, Callable[[Bytes, int], bytes]] = {
    1: _lz4,
    2: _zlib,
    3: _codec("zstd"),
    4: _snappy,
}
