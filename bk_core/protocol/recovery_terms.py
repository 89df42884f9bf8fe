# SPDX-License-Identifier: Apache-2.0
"""The phases of a recovery, and what it hears and asks for."""

from __future__ import annotations

import enum
from typing import TypeAlias

from bk_core.protocol import events as ev
from bk_core.protocol.write_back import WriteBackEffect

RecoveryEvent: TypeAlias = ev.SessionEvent | ev.MetadataEvent | ev.TimerFired | ev.LacEvent | ev.ReadEvent
_Asked: TypeAlias = ev.SendFence | ev.SendRead | ev.CancelRead | ev.BackOff
RecoveryEffect: TypeAlias = WriteBackEffect | ev.MetadataEffect | _Asked | ev.Fail | ev.FinishRecovery


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
