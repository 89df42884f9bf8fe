# SPDX-License-Identifier: Apache-2.0
"""Runs the sequences of bk_core.logs.machines over the logs of tests/sim/logs.py, as a driver in miniature, one request
at a time. A request to several logs is carried out one log at a time, so that others act in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bk_core.errors import BookKeeperError, MetadataUnavailableError, Outcome
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from tests.sim.logs import LogWorld, require


@dataclass
class Watch:
    """Checks that what a change reports is true, even if a write of it comes late."""

    what: str
    heads_written: int = 0
    is_unapplied: bool = False

    def applied(self) -> None:
        """Note that its heads were written. The change must not have reported that this would never happen."""
        self.heads_written += 1
        require(not self.is_unapplied, f"{self.what} failed, not applied, and then it was")

    def failed(self, error: BookKeeperError) -> None:
        """Note that the change has failed."""
        self.is_unapplied = error.outcome is Outcome.NOT_APPLIED
        require(not (self.is_unapplied and self.heads_written), f"{self.what} was applied, and says {error}")


class Runner:
    """One sequence over some logs. A runner that is dropped at any time stands for a process that died."""

    def __init__(self, worlds: Sequence[LogWorld], steps: Steps[Any], what: str) -> None:
        self.world, self.worlds = worlds[0], {world.name: world for world in worlds}
        self.what, self.watch = what, Watch(what)
        self.is_done = False
        self.request: ask.Request | None = None
        self._steps = steps
        self._has_pages = False  # it made pages that no head names yet
        self._left: dict[str, ask.OfOneLog] = {}
        self._answers: dict[str, Any] = {}
        self.tell(None)

    @property
    def is_on_the_edge(self) -> bool:
        """Whether the sequence is about to change something, and does not see what others do meanwhile."""
        return isinstance(self.request, ask.DeleteTransactions) or (
            self._has_pages and isinstance(self.request, ask.WriteHeads)
        )

    def act(self) -> None:
        """Carry out one request, or of a request to several logs the part for one log."""
        if self._left:
            self._ask_one()
        else:
            assert self.request is not None
            self.tell(_caught(lambda: self.answer(self.request)))

    def answer(self, request: Any) -> Any:
        """Answer a request to all logs together, or to the only log."""
        match request:
            case ask.WriteHeads(writes):
                return self.world.compared(self._write(writes, self.watch))
            case ask.DropPages(names):
                for log, pages in names.items():
                    for page in pages:
                        self.worlds[log].delete_page(page)
                return None
            case ask.Wait():
                return None
        return self.world.answer(request)

    def tell(self, answer: Any) -> None:
        """Go on with the answer, or with the error in its place."""
        try:
            is_error = isinstance(answer, BookKeeperError)
            self.request = self._steps.throw(answer) if is_error else self._steps.send(answer)
        except StopIteration as ended:
            self.is_done = True
            self.ended(ended.value)
        except BookKeeperError as error:
            self.is_done = True
            self.failed(error)
        else:
            if isinstance(self.request, ask.ForLogs):
                self._answers, self._left = {}, dict(self.request.requests)
                self._has_pages = any(isinstance(each, ask.CreatePages) for each in self._left.values())

    def ended(self, result: Any) -> None:
        """Note that the sequence has ended with this result."""
        self.world.reached[f"{self.what} done"] += 1

    def failed(self, error: BookKeeperError) -> None:
        """Note that the sequence has failed."""
        self.world.reached[f"failed {error.code} {error.outcome.value}"] += 1
        self.watch.failed(error)

    def _ask_one(self) -> None:
        assert isinstance(self.request, ask.ForLogs)
        sync = self.request.sync
        if sync and not self._answers and self.world.chance(0.01):
            self._left = {}
            self.tell(MetadataUnavailableError("no sync", outcome=Outcome.UNKNOWN))
            return
        log = self.world.random.choice(sorted(self._left))
        request = self._left.pop(log)
        self._answers[log] = _caught(lambda: self.worlds[log].answer(request, sync=sync))
        if not self._left:
            self.tell(self._answers)

    def _write(self, writes: Mapping[str, ask.WriteHead], watch: Watch) -> Callable[[], bool]:
        """Return a write of all heads or none. It may come late, long after the sequence ended."""

        def write() -> bool:
            if not all(self.worlds[log].matches(write) for log, write in writes.items()):
                return False
            for log, each in writes.items():
                self.worlds[log].write(each)
            watch.applied()
            return True

        return write


def _caught(answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except BookKeeperError as error:
        return error
