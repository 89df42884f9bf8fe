# SPDX-License-Identifier: Apache-2.0
"""Rare states that a set of runs has to reach, by profile: one that is never reached proves nothing."""

from __future__ import annotations

WANTED: dict[str, tuple[str, ...]] = {
    "protocol": (
        "E > WQ",
        "LAC behind by two or more",
        "a bookie failed during an ensemble change",
        "a commit found no space",
        "a copy was damaged at rest",
        "a fragment was replaced by one with the same first id",
        "a late ack of a session that is over",
        "a recoverer waited for another",
        "a stale record was read",
        "an add was applied twice",
        "an answer with a flipped bit",
        "an ensemble change of recovery was lost",
        "an entry recovered from exactly one copy",
        "crash between fence set and fence durable",
        "crash in a commit",
        "explicit LAC",
        "missing copies were marked",
        "recovery changed the ensemble",
        "recovery ended by RecoveryInconclusiveError",
        "the answer to a create was lost",
        "the close was applied, its answer lost",
        "two recoverers read at once",
        "unknown ledger fenced",
        "wiped bookie",
        "writer ended by LedgerFencedError",
    ),
    "storage": (
        "E > WQ",
        "a copy was damaged at rest",
        "a torn tail was trimmed",
        "crash between fence set and fence durable",
        "crash in a commit",
        "wiped bookie",
    ),
}
