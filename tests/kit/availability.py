# SPDX-License-Identifier: Apache-2.0
"""Reads lists of entries as Apache's client does, whether our code or another program wrote them."""

from __future__ import annotations

import struct

import numpy as np

from bk_core.errors import RemoteProtocolError
from bk_core.wire.bookie_rpc.frames import I64, Buffer

_HEAD = struct.Struct(">ii56x")
_GROUP = np.dtype([("first", ">i8"), ("last", ">i8"), ("size", ">i4"), ("period", ">i4")])
RANGES_MAX = 1 << 20


def decode_availability(data: Buffer, ranges_max: int = RANGES_MAX) -> tuple[I64, I64]:
    """Return the ranges of ids, both ends inclusive, ascending; ranges that touch are joined. Groups may have a period,
    come in any order and overlap. Raises RemoteProtocolError for data that is no such list, and for a list of more than
    ``ranges_max`` ranges: 24 bytes can stand for 2^63 of them."""
    if len(data) < _HEAD.size:
        raise _wrong(f"{len(data)} bytes")
    version, count = _HEAD.unpack_from(data)
    if version != 0 or count < 0 or _HEAD.size + count * _GROUP.itemsize > len(data):
        raise _wrong(f"version {version}, {count} groups in {len(data)} bytes")
    groups = np.frombuffer(data, dtype=_GROUP, count=count, offset=_HEAD.size)
    first, last, size, period = (groups[name].astype(np.int64) for name in ("first", "last", "size", "period"))
    wrong = (first < 0) | (last < first) | (size < 1) | (last > np.iinfo(np.int64).max - size)
    wrong |= (last != first) & (period < 1)
    if wrong.any():
        raise _wrong(f"group {int(wrong.argmax())}")
    runs = (last - first) // np.maximum(period, 1) + 1
    if count and (int(runs.max()) > ranges_max or int(runs.sum()) > ranges_max):
        raise _wrong(f"more than {ranges_max} ranges")
    within = np.arange(int(runs.sum())) - np.repeat(runs.cumsum() - runs, runs)
    begins = np.repeat(first, runs) + within * np.repeat(period, runs)
    return _merged(begins, begins + np.repeat(size, runs) - 1)


def _merged(firsts: I64, lasts: I64) -> tuple[I64, I64]:
    order = np.argsort(firsts, kind="stable")
    firsts, reach = firsts[order], np.maximum.accumulate(lasts[order]) if firsts.size else lasts
    if not firsts.size:
        return firsts, reach
    begins = np.flatnonzero(np.concatenate(([True], firsts[1:] > reach[:-1] + 1)))
    ends = np.concatenate((begins[1:], [firsts.size])) - 1
    return firsts[begins], reach[ends]


def _wrong(value: str) -> RemoteProtocolError:
    return RemoteProtocolError("a list of entries cannot be read", value=value)
