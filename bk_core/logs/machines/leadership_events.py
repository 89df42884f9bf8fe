# SPDX-License-Identifier: Apache-2.0
"""What happens to :class:`bk_core.logs.machines.leadership.LogLeadership` and what it asks for. Pure.

An effect that asks for something names, after an arrow, the events of which exactly one answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bk_core.errors import BookKeeperError
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.next_head import LedgerEnd, NewOpenExtent
from bk_core.model import LedgerId, Versioned

# --- commands and events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Become the log's leader. The first command."""


@dataclass(frozen=True, slots=True)
class Roll:
    """Go on in a new ledger. Ignored unless serving: one roll at a time."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close and seal the ledger and end; after the roll that is under way, if any."""


@dataclass(frozen=True, slots=True)
class HeadRead:
    """The head as the store has it. ``last_ledgers`` are the last two of the list, wherever they are listed."""

    head: Versioned[LogHead]
    last_ledgers: tuple[LedgerId, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadWritten:
    """The compare-and-set was applied; this is the head now."""

    head: Versioned[LogHead]


@dataclass(frozen=True, slots=True)
class HeadConflicted:
    """The compare-and-set met another version: it was certainly not applied."""


@dataclass(frozen=True, slots=True)
class HeadWriteUnknown:
    """No answer: the compare-and-set may have been applied."""


@dataclass(frozen=True, slots=True)
class LedgerRecovered:
    """The ledger is fenced, recovered and closed, and ends here."""

    ledger_id: LedgerId
    end: LedgerEnd


@dataclass(frozen=True, slots=True)
class LedgerMissing:
    """The ledger to recover does not exist."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class LedgerCreated:
    """A new ledger of ours."""

    ledger: NewOpenExtent


@dataclass(frozen=True, slots=True)
class LedgerClosed:
    """Our own ledger is closed with everything that was appended to it."""

    ledger_id: LedgerId
    end: LedgerEnd


@dataclass(frozen=True, slots=True)
class WriterFailed:
    """A ledger of ours takes no more entries: fenced, or its bookies are gone."""

    ledger_id: LedgerId
    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """What the last effects asked for cannot be done; nothing of it is of unknown outcome."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class LeaderAnswered:
    """What whoever elects leaders says of us."""

    still_leader: bool


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The pause of :class:`Wait` is over."""


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
    """Compare-and-set: :func:`bk_core.logs.model.next_head.seal`. → HeadWritten, HeadConflicted, HeadWriteUnknown,
    RequestFailed"""

    expected: Versioned[LogHead]
    ends: tuple[tuple[LedgerId, LedgerEnd], ...]


@dataclass(frozen=True, slots=True)
class ListLedger:
    """Compare-and-set: :func:`bk_core.logs.model.next_head.add_open_extent`. → HeadWritten, HeadConflicted,
    HeadWriteUnknown, RequestFailed"""

    expected: Versioned[LogHead]
    ledger: NewOpenExtent


@dataclass(frozen=True, slots=True)
class CreateLedger:
    """Make a ledger for the log. → LedgerCreated, RequestFailed"""


@dataclass(frozen=True, slots=True)
class AskLeader:
    """Ask whoever elects leaders. → LeaderAnswered"""


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for a random time that grows with ``attempt``. → WaitEnded"""

    attempt: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Leadership is taken: appends go to this ledger, whose entry 0 has this log offset."""

    ledger_id: LedgerId
    base_offset: int


@dataclass(frozen=True, slots=True)
class SwitchLedger:
    """The roll is listed: appends go to ``ledger_id`` once everything in ``previous_id`` is confirmed; close that one.
    → LedgerClosed, WriterFailed"""

    previous_id: LedgerId
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Close our ledger. → LedgerClosed, WriterFailed"""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Delete a ledger that certainly never got into the list. Best effort; no answer."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class FinishRoll:
    """The roll is over; ``error`` says why it did not happen, and the current ledger goes on."""

    error: BookKeeperError | None = None


@dataclass(frozen=True, slots=True)
class FinishLeadership:
    """Given up: the ledger is closed and sealed. Nothing follows."""


@dataclass(frozen=True, slots=True)
class LoseLeadership:
    """Serve nothing any more; everything unconfirmed fails with this error. Nothing follows."""

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
