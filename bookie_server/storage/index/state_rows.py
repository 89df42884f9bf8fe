# SPDX-License-Identifier: Apache-2.0
"""Folds the state of many ledgers at once: state records of segments and ledger records of a checkpoint (RULES S4).

The rules are those of ``ledger_table.py``, which folds one record at a time. This file uses numpy, for a start with
millions of records. The result does not depend on their order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bk_core.entries.frame import FrameKind
from bookie_server.storage.bytes.index_file import newer_lac
from bookie_server.storage.bytes.index_rows import I64, Rows
from bookie_server.storage.index.ledger_table import BITS_OF_KIND, FENCED, HAS_KEY, KEY_CONFLICT, LEDGER_ROW

_KEY_BYTES, _BODY_BYTES = 20, 40


def deleted_by(states: Rows) -> I64:
    """Return the ids in the DELETED records among these state records, as disjoint closed intervals."""
    ids = np.unique(states["ledger"][states["kind"] == FrameKind.DELETED])
    if not ids.size:
        return np.empty((0, 2), np.int64)
    ends = np.flatnonzero(np.diff(ids) > 1)
    firsts, lasts = np.concatenate(([0], ends + 1)), np.concatenate((ends, [ids.size - 1]))
    return np.stack((ids[firsts], ids[lasts]), axis=1)


def ledger_rows(states: Rows) -> Rows:
    """Return a ledger record for each state record that is not DELETED, in the same order. Each ledger record has the
    state that this one state record gives."""
    states = states[states["kind"] != FrameKind.DELETED]
    rows = np.zeros(states.size, LEDGER_ROW)
    kinds, payload = states["kind"], _bytes(states, "payload", _BODY_BYTES)
    rows["ledger"] = states["ledger"]
    flags = np.zeros(states.size, np.uint8)
    flags[kinds == FrameKind.FENCE] = FENCED
    keys = kinds == FrameKind.LEDGER_KEY
    flags[keys] = HAS_KEY
    rows["key"][keys] = _packed(payload[keys, :_KEY_BYTES])
    lacs = kinds == FrameKind.LAC
    rows["lac_bytes"][lacs] = states["payload_bytes"][lacs]
    rows["lac_body"][lacs] = states["payload"][lacs]
    for kind, bits in BITS_OF_KIND.items():
        flags[kinds == kind] = bits
    dropped = kinds == FrameKind.COPY_DROPPED
    rows["dropped"][dropped] = _packed(payload[dropped, :8]).view("<u8")
    rows["flags"] = flags
    return rows


def folded(rows: Rows) -> Rows:
    """Fold any number of ledger records, in any order, into one record for each ledger; return them sorted."""
    ids, group, counts = np.unique(rows["ledger"], return_inverse=True, return_counts=True)
    result = np.empty(ids.size, LEDGER_ROW)
    alone = counts[group] == 1
    result[group[alone]] = rows[alone]
    if not alone.all():
        repeated = np.flatnonzero(counts > 1)
        result[repeated] = _folded(rows[~alone], ids[repeated])
    return result


def _folded(rows: Rows, ids: I64) -> Rows:
    """Fold the rows of the ledgers ``ids``, which are sorted and have several rows each."""
    group = np.searchsorted(ids, rows["ledger"])
    result, flags = np.zeros(ids.size, LEDGER_ROW), np.zeros(ids.size, np.uint8)
    result["ledger"] = ids
    np.bitwise_or.at(flags, group, rows["flags"])
    np.maximum.at(result["dropped"], group, rows["dropped"])
    flags[_fold_keys(rows, group, result)] |= KEY_CONFLICT
    _fold_lacs(rows, group, result)
    result["flags"] = flags
    return result


def _fold_keys(rows: Rows, group: I64, result: Rows) -> I64:
    """Store the least key of each ledger; return the ledgers (by position in ``result``) that have two different
    keys."""
    having = np.flatnonzero(rows["flags"] & HAS_KEY)
    words = _bytes(rows[having], "key", _KEY_BYTES).view(">u4").astype(np.uint32)
    order = np.lexsort((*reversed(words.T), group[having]))
    groups, words = group[having][order], words[order]
    first = np.ones(groups.size, np.bool_)
    first[1:] = groups[1:] != groups[:-1]
    result["key"][groups[first]] = rows["key"][having[order[first]]]
    other = ~first[1:] & (words[1:] != words[:-1]).any(axis=1)
    return np.unique(groups[1:][other])


def _fold_lacs(rows: Rows, group: I64, result: Rows) -> None:
    """Store for each ledger the body with the greatest LAC; among several with that LAC the one that ``newer_lac``
    chooses."""
    having = np.flatnonzero(rows["lac_bytes"])
    bodies = _bytes(rows[having], "lac_body", _BODY_BYTES)
    lacs = np.ascontiguousarray(bodies[:, 8:16]).view(">i8").reshape(-1).astype(np.int64)
    order = np.lexsort((lacs, group[having]))
    groups, lacs, chosen = group[having][order], lacs[order], having[order]
    last = np.ones(groups.size, np.bool_)
    last[:-1] = groups[1:] != groups[:-1]
    for name in ("lac_bytes", "lac_body"):
        result[name][groups[last]] = rows[name][chosen[last]]
    one, other = rows[chosen[1:]], rows[chosen[:-1]]
    differ = (one["lac_body"] != other["lac_body"]) | (one["lac_bytes"] != other["lac_bytes"])
    tied = np.flatnonzero(~last[:-1] & (lacs[1:] == lacs[:-1]) & differ)
    for k in np.unique(groups[tied]).tolist():
        best: bytes | None = None
        for at in chosen[groups == k].tolist():
            best = newer_lac(best, bytes(rows["lac_body"][at])[: int(rows["lac_bytes"][at])])
        assert best is not None
        result["lac_bytes"][k], result["lac_body"][k] = len(best), np.void(best.ljust(_BODY_BYTES, b"\0"))


def _bytes(rows: Rows, name: str, size: int) -> npt.NDArray[np.uint8]:
    """Return a column of raw bytes as a matrix of bytes."""
    return np.ascontiguousarray(rows[name]).view(np.uint8).reshape(-1, size)


def _packed(matrix: npt.NDArray[np.uint8]) -> Rows:
    """Return the rows of a matrix of bytes as raw values."""
    return np.ascontiguousarray(matrix).view(f"V{matrix.shape[1]}").reshape(-1)
