# SPDX-License-Identifier: Apache-2.0
"""Records the calls of clients in a simulated world and their results, in the form of the trials on real processes.

The same checker judges both (:mod:`tests.sim.history`), so the simulator and real processes must keep the same
promises.
"""

from __future__ import annotations

from collections.abc import Sequence

from bk_core.model import EntryId
from tests.sim.history import Kind, Operation, Outcome, Violation, check_ledger
from tests.sim.scheduler import Scheduler


class Recorder:
    """The history of one ledger. Times are steps of the scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._appends: list[tuple[str, int, EntryId, tuple[bytes, ...]]] = []
        self._acks: list[tuple[int, EntryId]] = []
        self._told: list[Operation] = []

    def appended(self, client: str, first: EntryId, payloads: Sequence[bytes]) -> None:
        self._appends.append((client, self.scheduler.steps, first, tuple(payloads)))

    def acked(self, lac: EntryId) -> None:
        self._acks.append((self.scheduler.steps, lac))

    def lac(self, client: str, lac: EntryId) -> None:
        self._tell(Operation(kind=Kind.LAC, client=client, entry_id=lac, **self._now()))

    def read(self, client: str, first: EntryId, payloads: Sequence[bytes]) -> None:
        last = first + len(payloads) - 1
        self._tell(
            Operation(kind=Kind.READ, client=client, first=first, last=last, digests=tuple(payloads), **self._now())
        )

    def ended(self, client: str, last: EntryId) -> None:
        self._tell(Operation(kind=Kind.END, client=client, entry_id=last, **self._now()))

    def check(self, final: Sequence[bytes] | None) -> list[Violation]:
        """Return the broken promises. ``final`` are the entries of the closed ledger."""
        return check_ledger([*map(self._append, self._appends), *self._told], final)

    def _append(self, append: tuple[str, int, EntryId, tuple[bytes, ...]]) -> Operation:
        client, invoked, first, payloads = append
        last = first + len(payloads) - 1
        acked = next((step for step, lac in self._acks if lac >= last), None)
        return Operation(
            kind=Kind.APPEND,
            client=client,
            invoked=invoked,
            returned=acked,
            outcome=Outcome.UNKNOWN if acked is None else Outcome.OK,
            first=first,
            last=last,
            digests=payloads,
            entry_id=-1 if acked is None else first,
        )

    def _tell(self, operation: Operation) -> None:
        self._told.append(operation)

    def _now(self) -> dict[str, int]:
        return {"invoked": self.scheduler.steps, "returned": self.scheduler.steps}
