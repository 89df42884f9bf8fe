# SPDX-License-Identifier: Apache-2.0
"""Defines the types of the lanes that client and bookie share, such as reasons, attach modes and ranges of entries.
They are not generated, so that the pure part needs no protobuf. Their values are those of ``proto/lane.proto``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from bk_core.model import EntryId


class Reason(enum.IntEnum):
    """Why a request was refused or an entry is UNKNOWN."""

    REASON_NONE = 0
    FENCED = 1
    UNAUTHORIZED = 2
    READ_ONLY = 3
    NO_SPACE = 4
    OVERLOADED = 5
    INTEGRITY = 6
    BAD_REQUEST = 7
    TOO_LARGE = 8
    LIMBO = 9
    DAMAGED = 10
    IO_ERROR = 11
    STORAGE_FAILED = 12
    WRONG_CLUSTER = 13
    WRONG_BOOKIE = 14
    WRONG_INCARNATION = 15
    UNSUPPORTED_VERSION = 16
    UNAUTHENTICATED = 17
    UNIMPLEMENTED = 18
    DELETED = 19
    SHUTTING_DOWN = 20
    NOT_ATTACHED = 21
    COPY_DROPPED = 22
    TIMEOUT = 23
    PERMISSION_DENIED = 24
    GRANT_NEEDED = 25


class AttachMode(enum.IntEnum):
    """The purpose of a session: normal adds, or recovery adds, which pass a fence (P6, L2)."""

    WRITE = 0
    RECOVER = 1


Buffer = bytes | bytearray | memoryview


class LaneMessage(NamedTuple):
    """A message of a lane. ``rest`` is a protobuf message without its field ``frames``, whose contents are
    ``frames``."""

    rest: bytes
    frames: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The entry ids ``first`` to ``last``, both inclusive; if they are UNKNOWN, ``reason`` and ``message`` say why."""

    first: EntryId
    last: EntryId
    reason: Reason = Reason.REASON_NONE
    message: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts of each entry that a read requests. These are the first ``head`` bytes or, if ``head`` is 0,
    ``ranges``. The first item of ``ranges`` is for entry ``first``, the next for the entry after it, and so on. An item
    is a tuple of pairs (offset, size) in ascending order, which may touch but not overlap. A bookie may answer with
    whole frames instead."""

    head: int = 0
    first: EntryId = 0
    ranges: tuple[tuple[tuple[int, int], ...], ...] = ()

    def spans(self, entry_id: EntryId, length: int) -> list[tuple[int, int]]:
        """Return the start and the end of each wanted part of an entry. Parts beyond its ``length`` are cut off."""
        if self.head:
            return [(0, min(self.head, length))]
        at = entry_id - self.first
        wanted = self.ranges[at] if 0 <= at < len(self.ranges) else ()
        return [(min(offset, length), min(offset + size, length)) for offset, size in wanted]

    def problem(self, first: EntryId, last: EntryId) -> str:
        """Return why this cannot be the cut of a read of these entries, or an empty string if it can."""
        if self.head:
            return "a head and ranges" if self.ranges else ""
        if len(self.ranges) != last - first + 1 or self.first != first:
            return f"ranges of {len(self.ranges)} entries for {last - first + 1}"
        if sum(map(len, self.ranges)) > CUT_RANGES_MAX:
            return f"more than {CUT_RANGES_MAX} ranges"
        for spans in self.ranges:
            if any(offset + size > after for (offset, size), (after, _) in pairwise(spans)):
                return "ranges that overlap, or are not in order"
        return ""


CUT_RANGES_MAX = 1 << 14
"""The maximum number of ranges in a cut, so that its message is short."""

FRAME_BYTES_MAX = 8 << 20
"""The maximum size of a frame in bytes, on any lane and on disk (L5)."""

ENTRY_BYTES_MAX = (5 << 20) - 1024
"""The maximum payload of an entry in bytes, on any lane (L5). Any Java reader can read such an entry."""

HINT_IDS_MAX = 10_000
"""The maximum number of ledgers in one hint about deleted ledgers."""

NAMED_MAX = 256
"""The maximum number of sessions that a client opens, and of grants that it shows, in one message. A bookie accepts up
to ``NAMED_TAKEN_MAX``."""

NAMED_TAKEN_MAX = 16 * NAMED_MAX
