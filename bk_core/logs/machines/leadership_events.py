# SPDX-License-Identifier: Apache-2.0
"""The events and effects of :class:`bk_core.logs.machines.leadership.LogLeadership`. Pure.

An effect that is a request names its possible answers after an arrow; exactly one of these events answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bk_core.errors import BookKeeperError
from bk_core.logs.model.head import Extent, LogHead
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.model import LedgerId, Versioned

# --- commands and events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Become the log's leader; the first command."""


@dataclass(frozen=True, slots=True)
class Roll:
    """Go on in a new ledger. Ignored unless SERVING, so there is one roll at a time."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close and seal the ledger and end; a roll under way is finished first."""


@dataclass(frozen=True, slots=True)
class HeadRead:
    """The head in the store. ``last_ledgers`` are the last two ledgers of the log, whether in the head or in pages."""

    head: Versioned[LogHead]
    last_ledgers: tuple[LedgerId, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadWritten:
    """The compare-and-set was applied; ``head`` is the new head."""

    head: Versioned[LogHead]


@dataclass(frozen=True, slots=True)
class HeadConflicted:
    """The compare-and-set met another version: it was certainly not applied."""


@dataclass(frozen=True, slots=True)
class HeadWriteUnknown:
    """The compare-and-set got no answer and may have been applied."""


@dataclass(frozen=True, slots=True)
class LedgerRecovered:
    """The ledger is fenced, recovered and closed at ``end``."""

    ledger_id: LedgerId
    end: LedgerEnd


@dataclass(frozen=True, slots=True)
class LedgerMissing:
    """The ledger to recover does not exist."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class LedgerCreated:
    """A new ledger was created for this leader."""

    ledger: Extent


@dataclass(frozen=True, slots=True)
class LedgerClosed:
    """A ledger of this leader is closed with everything that was appended to it."""

    ledger_id: LedgerId
    end: LedgerEnd


@dataclass(frozen=True, slots=True)
class WriterFailed:
    """A ledger of this leader takes no more entries: it is fenced, or its bookies are gone."""

    ledger_id: LedgerId
    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request failed and was certainly not carried out."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class LeaderAnswered:
    """The answer of ``still_leader``: whether this process still leads."""

    still_leader: bool


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The pause of Wait is over."""


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head. → HeadRead, RequestFailed"""


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Fence, recover and close a ledger. → LedgerRecovered, LedgerMissing, RequestFailed"""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class SealExtents:
    """Fix the ends of open extents by compare-and-set (:func:`bk_core.logs.model.next_head.seal`). → HeadWritten,
    HeadConflicted, HeadWriteUnknown, RequestFailed"""

    expected: Versioned[LogHead]
    ends: tuple[tuple[LedgerId, LedgerEnd], ...]


@dataclass(frozen=True, slots=True)
class ListLedger:
    """Append an open extent by compare-and-set (:func:`bk_core.logs.model.next_head.add_open_extent`). → HeadWritten,
    HeadConflicted, HeadWriteUnknown, RequestFailed"""

    expected: Versioned[LogHead]
    ledger: Extent


@dataclass(frozen=True, slots=True)
class CreateLedger:
    """Create a ledger for the log. → LedgerCreated, RequestFailed"""


@dataclass(frozen=True, slots=True)
class AskLeader:
    """Ask ``still_leader`` whether this process still leads. → LeaderAnswered"""


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for a random time that grows with ``attempt``. → WaitEnded"""

    attempt: int


@dataclass(frozen=True, slots=True)
class Serve:
    """This process leads: appends go to this ledger, whose entry 0 has log offset ``base_offset``."""

    ledger_id: LedgerId
    base_offset: int


@dataclass(frozen=True, slots=True)
class SwitchLedger:
    """The new ledger is listed: appends go to ``ledger_id`` once everything in ``previous_id`` is confirmed. Then close
    ``previous_id``. → LedgerClosed, WriterFailed"""

    previous_id: LedgerId
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Close a ledger of this leader. → LedgerClosed, WriterFailed"""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Delete a ledger that was certainly never listed. Best effort; no answer."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class FinishRoll:
    """The roll is over. If it failed, ``error`` says why, and appends go on to the current ledger."""

    error: BookKeeperError | None = None


@dataclass(frozen=True, slots=True)
class FinishLeadership:
    """Leadership was given up: the ledger is closed and sealed. No effect follows."""


@dataclass(frozen=True, slots=True)
class LoseLeadership:
    """Leadership is lost. Reject new appends, and fail all unconfirmed ones with ``error``. The machine returns no
    effects after this one."""

    error: BookKeeperError


LeadershipEvent: TypeAlias = (
    TakeOver
    | Roll
    | GiveUp
    | HeadRead
    | HeadWritten
    | HeadConflicted
    | HeadWriteUnknown
    | LedgerRecovered
    | LedgerMissing
    | LedgerCreated
    | LedgerClosed
    | WriterFailed
    | RequestFailed
    | LeaderAnswered
    | WaitEnded
)
LeadershipEffect: TypeAlias = (
    ReadHead
    | RecoverLedger
    | SealExtents
    | ListLedger
    | CreateLedger
    | AskLeader
    | Wait
    | Serve
    | SwitchLedger
    | CloseLedger
    | DeleteLedger
    | FinishRoll
    | FinishLeadership
    | LoseLeadership
)
