# SPDX-License-Identifier: Apache-2.0
"""Encodes the ids of the entries that a bookie has of a ledger, for the answer to GET_LIST_OF_ENTRIES_OF_LEDGER.

The encoding is Apache's. It begins with a header of 64 bytes (i32 version 0, i32 number of groups, zeros). Then each
group has 24 bytes: i64 first, i64 last, i32 size, i32 period. A group describes runs of ``size`` consecutive ids, which
begin at first, first + period, … last.
"""

from __future__ import annotations

import struct

import numpy as np

from bk_core.errors import InvalidArgumentError
from bk_core.wire.bookie_rpc.frames import I64

_HEAD = struct.Struct(">ii56x")
_GROUP = np.dtype([("first", ">i8"), ("last", ">i8"), ("size", ">i4"), ("period", ">i4")])
_SIZE_MAX = (1 << 31) - 1


def encode_availability(firsts: I64, lasts: I64) -> bytes:
    """Encode the ranges of ids ``firsts[k]`` to ``lasts[k]``, both inclusive. They must ascend, and neither overlap nor
    touch. Each range becomes one group, as in Apache's bookies; a range of more than 2^31 − 1 ids becomes several.
    Raises InvalidArgumentError for ranges in another order."""
    sizes = lasts - firsts + 1
    if firsts.size and (int(firsts.min()) < 0 or bool((sizes < 1).any()) or bool((firsts[1:] <= lasts[:-1] + 1).any())):
        raise InvalidArgumentError("ranges of entries do not ascend", value=f"{firsts.size} ranges")
    pieces = -(-sizes // _SIZE_MAX)
    if firsts.size and int(pieces.max()) > 1:
        within = np.arange(int(pieces.sum())) - np.repeat(pieces.cumsum() - pieces, pieces)
        firsts = np.repeat(firsts, pieces) + within * _SIZE_MAX
        sizes = np.minimum(np.repeat(lasts, pieces) - firsts + 1, _SIZE_MAX)
    groups = np.zeros(firsts.size, dtype=_GROUP)
    groups["first"] = groups["last"] = firsts
    groups["size"] = sizes
    return _HEAD.pack(0, firsts.size) + groups.tobytes()
