# SPDX-License-Identifier: Apache-2.0
"""Defines a bookie's statements about a ledger, which are the evidence of its end, and the ids of a range that the
bookie does not have."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.model import EntryId
from bk_core.wire.lane.reasons import EntryRange


@dataclass(frozen=True, slots=True)
class LacEvidence:
    """A bookie's evidence of a ledger's end. Only parts with a valid digest count (P5)."""

    last_entry_id: EntryId
    last_entry_frame: bytes | bytearray | memoryview
    lac_body: bytes
    lac_frame: bytes | bytearray | memoryview
    fenced: bool
    known: bool


@dataclass(frozen=True, slots=True)
class ReadTrailer:
    """The end of an answer (P4). Without it, ids that did not arrive are UNKNOWN."""

    answered_through: EntryId
    absent: tuple[EntryRange, ...] = ()
    unknown: tuple[EntryRange, ...] = ()
    fenced: bool = False
