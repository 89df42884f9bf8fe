# SPDX-License-Identifier: Apache-2.0
"""The commit thread alone, over the product's log on a simulated disk. It is small enough to try every order of a case.

A case is a coroutine that puts, copies, drops and stops. Each group must be answered once, in order, and frames
answered as durable must be durable. Each future of copies must end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from bk_core.errors import BookKeeperError, DataDirectoryError
from bookie_server.engine.commits import committer, group_writer
from bookie_server.engine.commits import queue as commit_queue
from bookie_server.engine.commits.committer import Committer
from bookie_server.machine.disk_places import Place
from tests.kit.lanes import frame
from tests.sim.storage import StorageBackEnd
from tests.sim.threads.baton import Engine, Turns
from tests.sim.threads.disks import TurnsDisk
from tests.sim.threads.loop import run_under

PATIENCE_S = 5.0
BIG = 24_000
"""The bytes of a frame of which two do not fit into one segment."""


class CommitterWorld:
    """One order of one case."""

    def __init__(self, engine: Engine, case: Case, *, lines: bool = False) -> None:
        self.turns, self._case = Turns(engine, lines_of=[commit_queue, committer, group_writer] if lines else ()), case
        self.disk = TurnsDisk()
        self.answers: asyncio.Queue[Sequence[Place] | BookKeeperError] = asyncio.Queue()
        self._given: list[bytes] = []
        self._next_id = 0

    def run(self) -> None:
        run_under(self.turns, self._life)

    async def _life(self) -> None:
        storage = StorageBackEnd(disk=self.disk, segment_bytes=32 << 10)
        self.log = storage.log
        self.disk.turns = self.turns
        self.committer = Committer(
            storage.log, asyncio.get_running_loop(), self._committed, self.answers.put_nowait, 1 << 20, 2
        )
        await self._case(self)
        await asyncio.to_thread(self.committer.stop)
        if self._given and not self.log.failed:
            self.turns.fail(f"{len(self._given)} frames were given and never answered")
        self.disk.turns = None

    def _committed(self, places: Sequence[Place], _: int) -> None:
        if len(places) > len(self._given):
            self.turns.fail(f"{len(places)} frames are told durable, {len(self._given)} were given")
        for place in places:
            wrong = self.disk.wrong_with(self._given.pop(0), place)
            if wrong:
                self.turns.fail(f"a frame is told durable and is not: {wrong}")
        self.answers.put_nowait(places)

    def put(self, size: int = 100, *, reserve: bool = False) -> bytes:
        """Give one frame to the commit thread."""
        one = frame(8, self._next_id, [bytes(size)])
        self._next_id += 1
        self._given.append(one)
        self.committer.put([one], reserve=reserve)
        return one

    def refused(self, *, resume: bool) -> None:
        """Do what the engine does after a failure."""
        self._given.clear()
        self.committer.drop(resume=resume)

    async def next(self) -> Sequence[Place]:
        """Return the next answer, or raise it if it is a failure."""
        answer = await asyncio.wait_for(self.answers.get(), PATIENCE_S)
        if isinstance(answer, BookKeeperError):
            raise answer
        return answer

    @property
    def owed(self) -> int:
        """The number of frames that were given and not answered."""
        return len(self._given)

    async def all_answered(self) -> None:
        while self._given:
            await self.next()

    async def copied(self, one: bytes) -> list[Place]:
        """Copy this frame through a thread that waits for the copy. Return its places."""

        def ask() -> list[Place]:
            done: Future[list[Place]] = self.committer.copy([one])
            return done.result(PATIENCE_S)

        return await asyncio.to_thread(ask)

    async def full(self) -> None:
        """Write until there is no room for another segment. Refused frames are dropped."""
        self.disk.faults.no_space = True
        try:
            while True:
                self.put(BIG)
                await self.next()
        except DataDirectoryError:
            self.refused(resume=True)


Case = Callable[[CommitterWorld], Coroutine[Any, Any, None]]
