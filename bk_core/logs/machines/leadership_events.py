# SPDX-License-Identifier: Apache-2.0
"""The events and effects of :class:`bk_core.logs.machines.leadership.LogLeadership`. Pure.

The docstring of an effect that is a request names the possible answers after an arrow. Exactly one of these events
answers the request.
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
    """Become the log's leader. This is the first command."""


@dataclass(frozen=True, slots=True)
class Roll:
    """Switch to a new ledger. The command is ignored unless the state is SERVING, so there is one roll at a time."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close and seal the current ledger, and end. A roll under way is finished before."""


@dataclass(frozen=True, slots=True)
class HeadRead:
    """The head was read. ``last_ledgers`` are the last two ledgers of the log, whether in the head or in pages."""

    head: Versioned[LogHead]
    last_ledgers: tuple[LedgerId, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadWritten:
    """The compare-and-set was applied. ``head`` is the new head."""

    head: Versioned[LogHead]


@dataclass(frozen=True, slots=True)
class HeadConflicted:
    """The compare-and-set found another version, so it was certainly not applied."""


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
    """A ledger of this leader is closed, with every entry that was appended to it."""

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
    """``still_leader`` returned whether this process still leads."""

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
    """Call ``still_leader``, which returns whether this process still leads. → LeaderAnswered"""


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for a random time that grows with ``attempt``. → WaitEnded"""

    attempt: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Let appends go to this ledger, whose entry 0 has log offset ``base_offset``. This process leads from now on."""

    ledger_id: LedgerId
    base_offset: int


@dataclass(frozen=True, slots=True)
class SwitchLedger:
    """Let appends go to the new ledger ``ledger_id`` once every entry of ``previous_id`` is confirmed. Then close
    ``previous_id``. The new ledger is listed. → LedgerClosed, WriterFailed"""

    previous_id: LedgerId
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Close a ledger of this leader. → LedgerClosed, WriterFailed"""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Delete a ledger that was certainly never listed. There is no answer, and a failure is ignored."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class FinishRoll:
    """End the roll. If it failed, ``error`` says why, and appends continue to go to the current ledger."""

    error: BookKeeperError | None = None


@dataclass(frozen=True, slots=True)
class FinishLeadership:
    """End the leadership, which was given up. The ledger is closed and sealed, and no effect follows."""


@dataclass(frozen=True, slots=True)
class LoseLeadership:
    """End the leadership, which is lost. Refuse new appends, and fail all unconfirmed appends with ``error``. No effect
    follows."""

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
