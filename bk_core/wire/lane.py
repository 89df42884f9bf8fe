# SPDX-License-Identifier: Apache-2.0
"""Words of the lanes shared by both sides: reasons, attach modes and ranges of entries, as types of our own so that the
pure part needs no protobuf. Values are those of ``proto/lane.proto``."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bk_core.model import EntryId


class Reason(enum.IntEnum):
    """Why something was refused or is unknown."""

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


class AttachMode(enum.IntEnum):
    """What a session is for; a recovery session passes a fence (RULES P6, L2)."""

    WRITE = 0
    RECOVER = 1


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entry ids first to last, both inclusive; where nothing is known of them, why."""

    first: EntryId
    last: EntryId
    reason: Reason = Reason.REASON_NONE
    message: str = ""


FRAME_BYTES_MAX = 8 << 20
"""Largest frame on any lane and on disk (RULES L5)."""

ENTRY_BYTES_MAX = (5 << 20) - 1024
"""Largest payload of one entry on any lane (RULES L5): any Java reader can fetch it."""
