# SPDX-License-Identifier: Apache-2.0
"""Threads and tasks that append to one ledger, or to a log whose leader rolls. A seed determines their turns.

Bookies and metadata are in memory, and the client is the real one. The truth is the ledger, which another client reads
at the end. Each returned id must name the entry that was appended, no id may be returned twice, confirmed entries must
be there, and no thread may wait forever (such a run has no end).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random as global_random
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from random import Random
from typing import Any

import bk_core.client.writing.process_budget as budget_module
import bk_core.client.writing.writer as writer_module
from bk_core.client import BookKeeper, ClientConfig
from bk_core.client.writing import append_queue, append_sender, append_waiters, writer_end
from bk_core.client.writing import append_room as room
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, WindowFullError
from bk_core.logs.leading import appender
from bk_core.logs.leading.leader import LogLeader
from bk_core.logs.named_log import NamedLog
from tests.kit.memory_cluster import MemoryBookKeeper
from tests.sim.threads.baton import Turns
from tests.sim.threads.engines import PriorityEngine, RandomEngine
from tests.sim.threads.loop import a_while, run_under

LINES_OF = (writer_module, append_queue, append_sender, append_waiters, writer_end, room, budget_module, appender)
CONFIG = ClientConfig(window_bytes_max=600, frame_bytes=120, slow_bookie_bytes_max=1 << 20)
PATIENCE_S = 600.0
PASSWORD = b"secret"


class ClientWorld:
    """The base of both worlds. ``told`` has the returned ids with the payloads appended for them, and ``sure`` the
    confirmed ones."""

    kind = "client"

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(f"{self.kind}:{seed}")
        engine = RandomEngine(self.random) if self.random.random() < 0.6 else PriorityEngine(self.random, horizon=4000)
        self.turns = Turns(engine, lines_of=LINES_OF if self.random.random() < 0.85 else ())
        self.turns.lines_count = False
        self.sometimes: Counter[str] = Counter()
        self.acked = 0
        self.told: dict[int, bytes] = {}
        self.sure: set[int] = set()
        self._made: set[bytes] = set()

    def run(self) -> None:
        state = global_random.getstate()
        global_random.seed(self.seed)  # the product draws pauses from it
        processes = budget_module._process
        for made in [made for module in LINES_OF for made in vars(module).values() if hasattr(made, "cache_clear")]:
            made.cache_clear()  # a result that an earlier run remembered would skip lines, which are points
        collects = gc.isenabled()
        gc.disable()  # what a collection ends has lines, too, and earlier runs decide when the next one comes
        try:
            run_under(self.turns, self._life)
        finally:
            if collects:
                gc.enable()
            budget_module._process = processes
            global_random.setstate(state)

    async def _life(self) -> None:
        budget_module._process = budget_module.ProcessBudget()  # its lock must be one of this run
        bookies = MemoryBookKeeper(3)
        client = self._client(bookies)
        await self._story(bookies, client)
        await bookies.close()  # not in a finally, because an abandoned run ends at any await

    async def _story(self, bookies: MemoryBookKeeper, client: BookKeeper) -> None:
        raise NotImplementedError

    def _client(self, bookies: MemoryBookKeeper) -> BookKeeper:
        client = bookies.client(CONFIG)
        client._random.seed(self.seed)
        return client

    def payload(self, random: Random) -> bytes:
        """Return a payload that occurs once."""
        made = b"%d-" % len(self._made) + b"." * random.choice((0, 10, 150))
        self._made.add(made)
        return made

    def tell(self, entry_id: int, payload: bytes) -> None:
        if entry_id in self.told:
            self.turns.fail(f"id {entry_id} was told for {self.told[entry_id]!r} and for {payload!r}")
        self.told[entry_id] = payload

    def confirm(self, entry_id: int) -> None:
        if entry_id not in self.told:
            self.turns.fail(f"id {entry_id} is confirmed and was not told")
        self.sure.add(entry_id)
        self.acked += 1

    def threads(self, targets: list[Callable[[], None]]) -> list[Coroutine[Any, Any, None]]:
        """Run each target on a thread of its own. Return coroutines that wait for their ends."""
        return [asyncio.to_thread(target) for target in targets]

    def compare(self, found: dict[int, bytes], *, all_of_it: bool) -> None:
        """Compare the ledger with the returned ids. With ``all_of_it`` all of them must be there, confirmed or not,
        because the ledger ended in order."""
        for entry_id, payload in self.told.items():
            if entry_id not in found and (all_of_it or entry_id in self.sure):
                self.turns.fail(f"id {entry_id} was told {'and confirmed' * (entry_id in self.sure)} and is lost")
            elif found.get(entry_id, payload) != payload:
                self.turns.fail(f"id {entry_id} was told for {payload!r} and holds {found[entry_id]!r}")
        twice = [payload for payload, count in Counter(found.values()).items() if count > 1]
        if twice or not self._made.issuperset(found.values()) or sorted(found) != list(range(len(found))):
            self.turns.fail(f"found twice: {twice}; ids: {sorted(found)}")

    async def in_time(self, work: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await work


class WriterWorld(ClientWorld):
    """One ledger, which is closed in order, abandoned, or fenced at any moment."""

    kind = "writer"

    async def _story(self, bookies: MemoryBookKeeper, client: BookKeeper) -> None:
        writer = await client.create_ledger(password=PASSWORD)
        random, self.turns.lines_count = self.random, True
        work = [
            *self.threads([self._thread(writer, Random(random.random())) for _ in range(random.randint(2, 3))]),
            *(self._task(writer, Random(random.random())) for _ in range(random.randint(0, 2))),
        ]
        running = [asyncio.ensure_future(each) for each in work]
        end = random.choice(("close", "close early", "abandon", "fence"))
        self.sometimes[f"ended by: {end}"] += 1
        if end == "close":
            await self.in_time(asyncio.gather(*running))
        else:
            await a_while(random, 0.05)
        if end == "fence":
            await (await self._client(bookies).open_ledger(writer.ledger_id, recover=True, password=PASSWORD)).close()
        elif end == "abandon":
            await writer.abandon()
        failed = False
        try:
            await self.in_time(writer.close())
        except BookKeeperError:
            failed = True
        await self.in_time(asyncio.gather(*running))
        reader = await self._client(bookies).open_ledger(writer.ledger_id, recover=True, password=PASSWORD)
        found: dict[int, bytes] = {}
        if reader.last_add_confirmed >= 0:
            async for batch in reader.read(0, reader.last_add_confirmed):
                found.update(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))
        await reader.close()
        self.compare(found, all_of_it=not failed)

    def _thread(self, writer: LedgerWriter, random: Random) -> Callable[[], None]:
        def run() -> None:
            waiting: list[tuple[Future[int], bytes]] = []
            with contextlib.suppress(BookKeeperError):
                for _ in range(random.randint(3, 12)):
                    self._append(writer, random, waiting)
            for future, payload in waiting:
                try:
                    entry_id = future.result(PATIENCE_S)
                except BookKeeperError:
                    continue
                self.tell(entry_id, payload)
                self.confirm(entry_id)

        return run

    def _append(self, writer: LedgerWriter, random: Random, waiting: list[tuple[Future[int], bytes]]) -> None:
        payload = self.payload(random)
        for _ in range(200):
            try:
                if random.random() < 0.5:
                    self.tell(writer.append_nowait(payload), payload)
                else:
                    waiting.append((writer.append_future(payload), payload))
                return
            except WindowFullError:
                self.sometimes["the window was full"] += 1
                append_sender.threading.Event().wait(0.01)  # an event of this run
        self.turns.fail("the window stays full")

    async def _task(self, writer: LedgerWriter, random: Random) -> None:
        with contextlib.suppress(BookKeeperError):
            for _ in range(random.randint(1, 4)):
                what, payloads = random.random(), [self.payload(random) for _ in range(random.randint(1, 4))]
                if what < 0.5:
                    entry_id = await self.in_time(writer.append(payloads[0]))
                    self.tell(entry_id, payloads[0])
                    self.confirm(entry_id)
                else:
                    last = await self.in_time(writer.append_batch(EntryBatch.from_list(payloads)))
                    self._tell_batch(last, payloads)
                    if what > 0.8:
                        await self.in_time(writer.wait_confirmed(last))
                        for entry_id in range(last - len(payloads) + 1, last + 1):
                            self.confirm(entry_id)

    def _tell_batch(self, last: int, payloads: list[bytes]) -> None:
        for entry_id, payload in enumerate(payloads, last - len(payloads) + 1):
            self.tell(entry_id, payload)


class AppenderWorld(ClientWorld):
    """One log. Its leader rolls while threads and tasks append, and is closed or loses the log to another leader."""

    kind = "appender"

    async def _story(self, bookies: MemoryBookKeeper, client: BookKeeper) -> None:
        log, random = NamedLog(client, "events", password=PASSWORD), self.random
        leader = await log.lead(roll_bytes=random.choice((300, 1 << 20)))
        self.turns.lines_count = True
        running = [
            asyncio.ensure_future(each)
            for each in (
                *self.threads([self._thread(leader, Random(random.random())) for _ in range(random.randint(1, 2))]),
                *(self._task(leader, Random(random.random())) for _ in range(random.randint(1, 3))),
                self._rolls(leader, Random(random.random())),
            )
        ]
        end = random.choice(("close", "close", "close early", "another leads"))
        self.sometimes[f"ended by: {end}"] += 1
        if end == "close":
            await self.in_time(asyncio.gather(*running))
        else:
            await a_while(random, 0.05)
        reader = self._client(bookies)
        if end == "another leads":
            other = await NamedLog(reader, "events", password=PASSWORD).lead()
            await other.close()
        failed = False
        try:
            await self.in_time(leader.close())
        except BookKeeperError:
            failed = True
        await self.in_time(asyncio.gather(*running))
        seen = NamedLog(reader, "events", password=PASSWORD)
        found: dict[int, bytes] = {}
        async for offset, batch in seen.read(0, await seen.end_offset()):
            found.update(enumerate(batch.to_list(), offset))
        self.compare(found, all_of_it=not failed)

    def _thread(self, leader: LogLeader, random: Random) -> Callable[[], None]:
        def run() -> None:
            with contextlib.suppress(BookKeeperError):
                for _ in range(random.randint(4, 16)):
                    self._append(leader, self.payload(random))

        return run

    def _append(self, leader: LogLeader, payload: bytes) -> None:
        for _ in range(300):
            try:
                return self.tell(leader.append_nowait(payload), payload)
            except WindowFullError:
                self.sometimes["the window was full"] += 1
                append_sender.threading.Event().wait(0.01)
        return self.turns.fail("the window stays full")

    async def _task(self, leader: LogLeader, random: Random) -> None:
        with contextlib.suppress(BookKeeperError):
            for _ in range(random.randint(1, 4)):
                payloads = [self.payload(random) for _ in range(random.randint(1, 4))]
                if random.random() < 0.5:
                    offset = await self.in_time(leader.append(payloads[0]))
                    self.tell(offset, payloads[0])
                    self.confirm(offset)
                else:
                    last = await self.in_time(leader.append_batch(EntryBatch.from_list(payloads)))
                    for at, payload in enumerate(payloads, last - len(payloads) + 1):
                        self.tell(at, payload)

    async def _rolls(self, leader: LogLeader, random: Random) -> None:
        with contextlib.suppress(BookKeeperError):
            for _ in range(random.randint(1, 5)):
                await a_while(random, 0.01)
                await self.in_time(leader.roll())
                self.sometimes["rolled"] += 1
