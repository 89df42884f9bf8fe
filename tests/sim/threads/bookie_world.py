# SPDX-License-Identifier: Apache-2.0
"""A bookie's engine, commit, reader and maintenance threads over the product's storage. A seed determines their turns.

``witness.py`` checks each step of the machine. At the end every thread must have ended, and the product's own start on
what the disk kept must find everything that was acked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any, cast

from bk_core.errors import BookKeeperError, DataDirectoryError
from bk_core.wire.lane.reasons import Reason
from bookie_server.engine import engine as engine_module
from bookie_server.engine import index_hop, log_driver, maintenance_thread
from bookie_server.engine.commits import committer, group_writer
from bookie_server.engine.commits import queue as commit_queue
from bookie_server.engine.engine import BookieEngine
from bookie_server.engine.holdings import IndexHoldings
from bookie_server.engine.log_driver import OpenLog
from bookie_server.engine.maintenance_thread import maintained
from bookie_server.engine.several_directories import SpreadHoldings
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from bookie_server.storage.maintenance import log_upkeep, maintenance, space_return, tasks
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from tests.sim.storage import StorageBackEnd, ask
from tests.sim.threads.baton import Turns
from tests.sim.threads.disks import TurnsDisk
from tests.sim.threads.engines import PriorityEngine, RandomEngine
from tests.sim.threads.loop import a_while, run_under
from tests.sim.threads.witness import Stream, Witness

LINES_OF = (
    commit_queue,
    committer,
    group_writer,
    log_driver,
    maintenance_thread,
    maintenance,
    log_upkeep,
    space_return,
    tasks,
    index_hop,
    engine_module,
)
"""The modules of which each line is a point, in three runs of four."""
LIMITS = MaintenanceLimits(checkpoint_interval_s=1.0, major_compaction_interval_s=1000.0)
SEGMENT_BYTES = 32 << 10


class BookieWorld:
    """The world of one seed. ``sometimes`` counts rare states that were reached."""

    kind = "bookie"

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(f"threads:{seed}")
        random = self.random
        self.sometimes: Counter[str] = Counter()
        self.acked = 0
        engine = RandomEngine(random) if random.random() < 0.6 else PriorityEngine(random)
        self.time_passes = engine.time_passes
        self.turns = Turns(engine, lines_of=LINES_OF if random.random() < 0.75 else ())
        self.disks = [TurnsDisk() for _ in range(random.choice((1, 1, 2)))]
        self.back_ends: list[StorageBackEnd] = []
        self.streams: list[Stream] = []
        self.doomed: set[int] = set()  # ledgers whose deletion was requested
        self.errors: list[BookKeeperError] = []
        self.power_lost = False
        self.full = False

    # --- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end. ``turns.failures`` has what went wrong."""
        run_under(self.turns, self._life)
        for disk in self.disks:
            disk.turns = None
        if not self.turns.failures:
            self._look_again()

    def _open(self) -> None:
        """Open the storage with locks of this run, on disks on which threads take turns from now on."""
        self.back_ends = [
            StorageBackEnd(f"bookie-{number}:3181", disk=disk, segment_bytes=SEGMENT_BYTES)
            for number, disk in enumerate(self.disks)
        ]
        for disk in self.disks:
            disk.turns = self.turns
        if self.random.random() < 0.4:
            self._lose_power_at(self.turns.points + int(self.random.expovariate(1 / 4000)) + 20)

    def _lose_power_at(self, last: int) -> None:
        def look(point: int) -> None:
            if point >= last and not self.power_lost:
                self.power_lost = True
                self.sometimes["power lost"] += 1
                for disk in self.disks:
                    disk.stop_now()
                self.turns.end()

        self.turns.at_point = look

    async def _life(self) -> None:
        loop, random = asyncio.get_running_loop(), self.random
        self._open()
        opened = [back_end._open for back_end in self.back_ends]
        holdings = SpreadHoldings(
            [IndexHoldings(each.index, each.reader) for each in opened], lambda i: i % len(opened)
        )
        limits = MachineLimits(storage_reads_max=2, lac_persist_ms=50)
        self.witness = Witness(BookieMachine(holdings, limits, logs=len(opened)), self.disks, self.turns.fail)
        failed = asyncio.Event()

        def on_failed(error: BookKeeperError) -> None:
            self.errors.append(error)
            failed.set()
            if any(log.committer.queue.frames for log in engine._logs):
                self.turns.fail("the bookie has ended, and frames still wait to be written")

        engine = BookieEngine(
            cast(Any, self.witness),
            [OpenLog(each.log, each.reader, maintained(each, LIMITS, loop)) for each in opened],
            group_bytes_max=random.choice((2 << 10, 16 << 10, 1 << 20)),
            group_frames_max=random.choice((1, 3, 1000)),
            on_failed=on_failed,
        )
        self.streams = [Stream(engine, ledger_id, self.turns.fail) for ledger_id in range(random.randint(2, 5))]
        work = [loop.create_task(self._client(engine, stream, Random(random.random()))) for stream in self.streams]
        trouble = loop.create_task(self._trouble(engine, Random(random.random())))
        ended = loop.create_task(failed.wait())
        everything = asyncio.gather(*work)
        if random.random() < 0.3:  # stop at any moment, under load
            await a_while(random, 2.0)
        else:
            await asyncio.wait([everything, ended], return_when="FIRST_COMPLETED")
        if everything.done():
            everything.result()
            trouble.cancel()
            if not failed.is_set() and random.random() < 0.7:
                await asyncio.sleep(random.choice((1.0, 12.0)))  # for compaction, checkpoints, idle groups
                self._look_rested(engine)
        else:
            self.sometimes["stopped under load"] += 1
        self._look_at(engine)
        for task in (everything, trouble, ended):
            task.cancel()
        await asyncio.gather(everything, trouble, ended, *work, return_exceptions=True)
        self._no_space(False)
        began = loop.time()
        await engine.stop()
        self.sometimes["stopped"] += 1
        if loop.time() - began > 0.4 and not self.time_passes:
            self.turns.fail(f"a stop took {loop.time() - began:.1f} s in which nobody could run")
        self._assert_ended(engine)
        for each in opened:
            each.directory.close()

    async def _client(self, engine: BookieEngine, stream: Stream, random: Random) -> None:
        for _ in range(random.randint(2, 8)):
            what = random.random()
            if what < 0.75:
                frames = [
                    [random.randbytes(random.choice((10, 400, 3000))) for _ in range(random.randint(1, 3))]
                    for _ in range(random.randint(1, 6))
                ]
                reason = await stream.write(frames)
                self._allow(stream, reason)
            elif what < 0.9 and stream.confirmed:
                trailer = await stream.read(0, max(stream.confirmed))
                self._allow(stream, trailer.reason)
                if any(payload != stream.confirmed.get(i, payload) for i, payload in stream.seen.items()):
                    self.turns.fail(f"a read of ledger {stream.ledger_id} brought other bytes than were acked")
            elif what < 0.93:
                await stream.fence()
                self.sometimes["fenced"] += 1
            elif what < 0.96:
                self.doomed.add(stream.ledger_id)
                engine.feed(ev.LedgersDeleted([stream.ledger_id]))
                self.sometimes["deleted"] += 1
            else:
                await asyncio.sleep(random.choice((0.01, 0.2, 6.0)))

    def _allow(self, stream: Stream, reason: Reason | None) -> None:
        if reason:
            self.sometimes[f"refused: {reason.name}"] += 1

    async def _trouble(self, engine: BookieEngine, random: Random) -> None:
        """Cause the faults of disks and the acts of operators."""
        for _ in range(random.randint(0, 4)):
            await a_while(random, 0.2)
            what = random.random()
            if what < 0.35:
                self._no_space(True)
                await a_while(random, 1.0)
                self._no_space(False)
            elif what < 0.55:
                random.choice(self.disks).faults.syncs = 1
            else:
                try:
                    for each in engine._logs:
                        each._maintenance.maintenance.stats.read()
                except BookKeeperError as error:
                    self.turns.fail(f"no statistics: {error}")

    def _no_space(self, full: bool) -> None:
        self.full |= full
        for disk in self.disks:
            disk.faults.no_space = full

    # --- what must hold ---------------------------------------------------------------------------------------------

    def _look_at(self, engine: BookieEngine) -> None:
        for log in engine._logs:
            maintenance = log._maintenance.maintenance
            self.sometimes["segments sealed"] += maintenance.log_upkeep.seals
            self.sometimes["segments recycled"] += maintenance.space.recycled
            self.sometimes["segments compacted"] += maintenance.compaction.compactor.stats.segments
        self.sometimes["groups"] += self.witness.groups
        if self.witness.refusals:
            self.sometimes["sync failed" if self.witness.failed else "no space"] += 1
        if any(disk.failed_at is not None for disk in self.disks) and len(self.errors) != 1:
            self.sometimes["stopped before the failure was told"] += 1

    def _look_rested(self, engine: BookieEngine) -> None:
        """Check a second after the last work that all upkeep is done, and that a failed disk has ended the bookie."""
        if any(disk.failed_at is not None for disk in self.disks) and not self.errors:
            self.turns.fail("a disk failed a second ago, and the bookie goes on")
        for log in engine._logs:
            if (
                log._maintenance.maintenance.log_upkeep.work.due
                and not self.full
                and not self.errors
                and not self.time_passes
            ):
                self.turns.fail("a second after the last group a segment waits for its index, or a spare is missing")
            if log._log.position_unrecorded and not self.errors and not self.time_passes:
                self.turns.fail("a second after the last group the position is not on record (S3)")

    def _assert_ended(self, engine: BookieEngine) -> None:
        """Check after a stop that everything accepted is durable, and that no answer is missing but those that stopped
        with the machine."""
        if len(self.errors) > 1:
            self.turns.fail(f"the bookie ended twice: {self.errors}")
        alive = [each.name for each in self.turns.threads if each.name.startswith("bookie-") and not each.done]
        if alive:
            self.turns.fail(f"threads outlive the stop: {alive}")
        for log in engine._logs:
            if (log._log.seal_jobs or log._log._full) and not log._log.failed:
                self.turns.fail("a clean stop left a full segment without its index")
            if any(not copies.done.done() for copies in log.committer.queue.copies):
                self.turns.fail("copies of compaction are waited for, and nobody makes them")
            if log.committer.queue.frames and not self.witness.failed:
                self.turns.fail("the commit thread ended before its work")

    def _look_again(self) -> None:
        """Check that the next start finds what was acked. Power is lost first, even after a clean stop."""
        for number, (disk, back_end) in enumerate(zip(self.disks, self.back_ends, strict=True)):
            disk.faults.no_space = False
            back_end.crash(self.random, None if self.power_lost else "nothing")
            try:
                back_end.restart()
            except (BookKeeperError, DataDirectoryError) as error:
                self.turns.failures.append(f"directory {number} does not open again: {error}")
                return
            for stream in self.streams:
                if stream.ledger_id % len(self.disks) == number and stream.ledger_id not in self.doomed:
                    self._find(back_end, stream)

    def _find(self, back_end: StorageBackEnd, stream: Stream) -> None:
        if not stream.confirmed:
            return
        self.acked += len(stream.confirmed)
        answer = ask(back_end, stream.ledger_id, 0, max(stream.confirmed))
        lost = {i: answer.unknown.get(i, "absent") for i in stream.confirmed if i not in answer.found}
        wrong = [i for i, payload in stream.confirmed.items() if answer.found.get(i, payload) != payload]
        if lost or wrong:
            self.turns.failures.append(f"ledger {stream.ledger_id} was acked and is lost: {lost}; other bytes: {wrong}")
