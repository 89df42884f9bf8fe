# SPDX-License-Identifier: Apache-2.0
"""Decompresses Pulsar's messages and metadata records. It checks the decompressed size before it allocates memory."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from bk_core.pulsar.messages.scan import varint

Bytes: TypeAlias = bytes | memoryview

UNCOMPRESSED_BYTES_MAX = 128 << 20
"""The maximum size in bytes of a message or a batch after decompression. Pulsar itself has no such limit, because the
limit of a broker, 5 MiB by default, applies to the compressed bytes."""
_RATIO_MAX = {1: 256, 2: 1100, 4: 32}
"""The highest compression ratios of LZ4, zlib and Snappy, rounded up. A size that needs a higher ratio is wrong, and is
refused before decompression. zstd has no highest ratio."""
NAMES = {0: "NONE", 1: "LZ4", 2: "ZLIB", 3: "ZSTD", 4: "SNAPPY"}
_SLACK_BYTES = 1024
"""The number of bytes by which a size may exceed that of the highest ratio, so that short data is not refused."""


class CompressionError(ValueError):
    """The error for bytes that cannot be decompressed. ``is_unknown`` is True if their type of compression is
    unknown."""

    is_unknown = False


def decompressed(kind: int, data: Bytes, size: int, bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> Bytes:
    """Return ``data`` decompressed, where ``kind`` is Pulsar's number of the compression; 0 returns ``data`` unchanged.

    Raises CompressionError for an unknown ``kind`` and for bytes that do not decompress to exactly ``size`` bytes. A
    ``size`` of more than ``bytes_max`` is refused before anything is decompressed.
    """
    if kind == 0:
        return data
    decompress = _DECOMPRESS.get(kind)
    if decompress is None:
        error = CompressionError(f"compression {kind} is not known")
        error.is_unknown = True
        raise error
    if size > bytes_max or size < 0:
        raise CompressionError(f"its uncompressed size is said to be {size} bytes, more than {bytes_max}")
    if size > _SLACK_BYTES + len(data) * _RATIO_MAX.get(kind, size):
        raise CompressionError(f"{len(data)} bytes of {NAMES[kind]} cannot have been {size} bytes")
    if size == 0:
        return b""
    try:
        found = decompress(data, size)
    except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
        raise CompressionError(f"it is not valid {NAMES[kind]}: {error}") from error
    if len(found) != size:
        raise CompressionError(f"{NAMES[kind]} decompressed to {len(found)} bytes, not {size}")
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
    """Decompress a block of LZ4 and check that it has ``size`` bytes.

    Arrow does not return the decompressed size, and does not clear the unused end of its buffer. So the block is
    decompressed a second time, into one byte less: if that succeeds, the block has fewer than ``size`` bytes.
    """
    found = _LZ4(data, size)
    with contextlib.suppress(pa.ArrowException, OSError):
        _LZ4(data, size - 1)
        raise ValueError(f"fewer than {size} bytes")
    return found


def _snappy(data: Bytes, size: int) -> bytes:
    """Decompress a block of Snappy, which begins with its decompressed size as a varint."""
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
