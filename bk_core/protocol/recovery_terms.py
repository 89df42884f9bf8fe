# SPDX-License-Identifier: Apache-2.0
"""The phases of a recovery, and what it hears and asks for."""

from __future__ import annotations

import enum
from typing import TypeAlias

from bk_core.protocol.events import (
    BackOff,
    CancelRead,
    Fail,
    FinishRecovery,
    FramesRead,
    LacAnswered,
    LacFailed,
    MetadataEffect,
    MetadataEvent,
    ReadAnswered,
    ReadFailed,
    SendFence,
    SendRead,
    SessionEffect,
    SessionEvent,
    SetTimer,
    TimerFired,
)
from bk_core.protocol.write_back import WriteBackEffect

RecoveryEvent: TypeAlias = (
    SessionEvent | MetadataEvent | TimerFired | LacAnswered | LacFailed | FramesRead | ReadAnswered | ReadFailed
)


RecoveryEffect: TypeAlias = (
    SessionEffect
    | MetadataEffect
    | WriteBackEffect
    | SetTimer
    | SendFence
    | SendRead
    | CancelRead
    | BackOff
    | Fail
    | FinishRecovery
)


class Phase(enum.Enum):
    """Where an attempt stands."""

    CLAIM = "claim"
    FENCE = "fence"
    READ = "read"
    LENGTH = "length"  # the end is the LAC itself: its entry says how long the ledger is
    DRAIN = "drain"  # the end is known; write-backs are outstanding
    CLOSE = "close"
    WAIT = "wait"  # another recoverer is at work
    DONE = "done"
