# SPDX-License-Identifier: Apache-2.0
"""The checks of every world that take more than one part.

The codes: I2 acked entries are on an ack quorum under the persisted metadata; I3 a CLOSED ledger ends at or above every
acked entry, forever; END every entry of a CLOSED ledger is on an ack quorum; I7 no bookie answers with a LAC above the
acked entries or above the end; MUST 10 a recovery returns the store's end; STUCK something waits forever. The part that
breaks I1, I4 to I6, I9, I10 or P1 notes it itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bk_core import quorum
from bk_core.model import LedgerMetadata
from bk_core.protocol.writer import WriterState
from tests.sim.exhaustive.bookie import BookiePart
from tests.sim.exhaustive.parts import RecoveryPart, StorePart, WriterPart

if TYPE_CHECKING:
    from tests.sim.exhaustive.model import Model

LOSS = frozenset({"I2", "I3", "END", "I10", "MUST 10"})
"""The codes that mean a loss for a user, whichever part broke a promise before."""


class Judge:
    """Judges worlds by a few facts of each part's state, and each combination of facts only once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._facts: list[list[int]] = [[] for _ in range(model.slots)]
        self._numbers: list[dict[Any, int]] = [{} for _ in range(model.slots)]
        self._known: list[list[Any]] = [[] for _ in range(model.slots)]
        self._judged: dict[tuple[int, ...], str | None] = {}

    def note(self, slot: int, part: Any) -> None:
        """Take a new state of a part."""
        match part:
            case WriterPart():
                facts: Any = part.acked
            case RecoveryPart():
                facts = part.end
            case BookiePart():
                facts = (tuple(sorted(part.durable())), part.greatest_lac())
            case StorePart():
                facts = part.record.value
        numbers = self._numbers[slot]
        if repr(facts) not in numbers:
            numbers[repr(facts)] = len(numbers)
            self._known[slot].append(facts)
        self._facts[slot].append(numbers[repr(facts)])

    def problem(self, slots: list[int]) -> str | None:
        key = tuple([facts[state] for facts, state in zip(self._facts, slots, strict=True)])
        if key not in self._judged:
            self._judged[key] = self._judge([known[number] for known, number in zip(self._known, key, strict=True)])
        return self._judged[key]

    def _judge(self, facts: list[Any]) -> str | None:
        first, last = self.model.first_bookie, self.model.store_slot
        metadata: LedgerMetadata = facts[last]
        acked, bookies = facts[0], facts[first:last]
        limit = acked
        if metadata.is_closed:
            limit = end = metadata.last_entry_id
            if acked > end:
                return f"I3: entry {acked} is acked and the ledger is CLOSED at {end}"
            if (thin := self._thin(metadata, bookies, end)) is not None:
                return f"END: the ledger is CLOSED at {end} and entry {thin} is on no ack quorum"
            if any(told not in (None, end) for told in facts[1:first]):
                return f"MUST 10: a recovery tells the end {facts[1:first]}, the store {end}"
        if (thin := self._thin(metadata, bookies, acked)) is not None:
            return f"I2: entry {thin} is acked and on no ack quorum that the metadata names"
        for slot, (_, lac) in enumerate(bookies):
            if lac > limit:
                return f"I7: b{slot} tells the LAC {lac}, above {limit}"
        return None

    def _thin(self, metadata: LedgerMetadata, bookies: list[Any], last: int) -> int | None:
        """Return the first entry up to ``last`` that is on fewer than Qa bookies of its write set."""
        size, write_quorum = metadata.ensemble_size, metadata.write_quorum_size
        for entry_id in range(last + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            members = {int(ensemble[i][1:]) for i in quorum.write_set(entry_id, size, write_quorum)}
            if sum(entry_id in bookies[member][0] for member in members) < metadata.ack_quorum_size:
                return entry_id
        return None

    def stuck(self, world: tuple[Any, ...]) -> str | None:
        """Return what still waits in a world in which nothing can happen, or None if all parts have finished."""
        model, scope = self.model, self.model.scope
        calm = not (scope.crashes or scope.cuts or scope.timeouts or scope.lost_answers)
        for slot in range(1, model.first_bookie):
            recovery = model.parts[slot][world[slot]]
            # other recoveries only wait for a budget of the scope
            if not recovery.over and not set(recovery.timers) - {"adds"}:
                return f"STUCK: recovery {slot} waits for ever"
            if calm and scope.recoverers == 1 and recovery.end is None:
                return f"STUCK: recovery {slot} gave up although nothing failed"
        writer = model.parts[0][world[0]]
        if calm and not writer.over and writer.machine.state is WriterState.OPEN and not writer.machine.idle:
            return "STUCK: the writer waits for ever"
        return None
