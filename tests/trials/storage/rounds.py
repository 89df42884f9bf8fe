# SPDX-License-Identifier: Apache-2.0
"""Rounds of a bookie's life under mixed load: many ledgers, small and large frames, fences, deletions, and then the
end.

The end is ``kill -9`` or, over :mod:`tests.trials.storage.power`, a loss of power. Then the bookie starts; sometimes it
dies in its start and starts again. Every ledger is read in full and compared with the oracle.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bk_core.errors import BookKeeperError, TransportError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieServiceInfo
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import AttachMode, EntryRange, Reason
from tests.kit.lanes import Lane, Listener
from tests.trials.kit.nursery import Nursery
from tests.trials.kit.process import READY_S, ServerProcess
from tests.trials.storage.bookie import BOOKIE_ID
from tests.trials.storage.counts import Counts
from tests.trials.storage.oracle import Oracle, payload_of, size_of

WRITERS = 5
GROUP_BYTES = 300_000
LIFE_S = 1.5
"""The maximum length of a life in seconds. A life ends at a random moment before."""


class Process(ServerProcess):
    """The bookie's process."""

    def __init__(self, nursery: Nursery, path: Path, uri: str, power: bool, seed: str) -> None:
        super().__init__(nursery, "the bookie", path / "bookie.log")
        self.path, self._uri, self._power = path, uri, power
        self._rng = random.Random(seed)
        self._counts, self._taken = Counts(path / "counts"), Counter[str]()
        self._starts = self._kills = 0

    def start(self) -> None:
        self.begin(
            "tests.trials.storage.bookie:run",
            data=str(self.path / "data"),
            uri=self._uri,
            counts=str(self.path / "counts"),
            power_seed=self._rng.randrange(1 << 30) if self._power else None,
        )
        self._starts += 1

    def kill(self) -> None:
        self._kills += self.child is not None
        super().kill()

    def take_counts(self) -> Counter[str]:
        """Return the starts, kills and counts of segments since the last call."""
        totals = self._counts.totals() + Counter({"starts": self._starts, "kills": self._kills})
        new, self._taken = totals - self._taken, totals
        return new


class StorageRound:
    """One life of the bookie, its end, and the check of what the next life answers."""

    def __init__(self, process: Process, store: MetadataStore, oracle: Oracle, rng: random.Random) -> None:
        self._process, self._store, self._oracle, self._rng = process, store, oracle, rng
        self._busy: set[int] = set()
        self._ending = False

    def run(self, runner: asyncio.Runner) -> float:
        """Run one round. The bookie runs before and after it. Return how long the bookie took to start again. Raises
        RuntimeError if it does not start."""
        runner.run(self._life())
        self._process.kill()
        if self._rng.random() < 0.25:
            self._process.start()
            time.sleep(self._rng.uniform(0.0, 0.4))
            self._process.kill()
            self._oracle.counts["killed in the start"] += 1
        began = time.monotonic()
        self._process.start()
        self._process.wait_ready()
        took_s = time.monotonic() - began
        runner.run(self._read_back())
        return took_s

    # --- load ---

    async def _life(self) -> None:
        lane = await _connected(self._store)
        tasks = [asyncio.create_task(self._write(lane)) for _ in range(WRITERS)]
        tasks += [asyncio.create_task(act(lane)) for act in (self._fence, self._delete, self._read)]
        await asyncio.sleep(self._rng.uniform(0.05, LIFE_S))
        self._ending = self._rng.random() < 0.2  # sometimes nothing is under way at the end
        if self._ending:
            await asyncio.sleep(self._rng.uniform(0.1, 0.4))
        await asyncio.to_thread(self._process.kill)
        self._ending = True
        done, late = await asyncio.wait(tasks, timeout=10)
        for task in late:
            task.cancel()
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, BookKeeperError):
                raise error
        await lane.transport.close()

    async def _write(self, lane: Lane) -> None:
        while not self._ending:
            ledger_id = self._choose()
            self._busy.add(ledger_id)
            try:
                if not await self._session(lane, ledger_id):
                    return
            finally:
                self._busy.discard(ledger_id)

    def _choose(self) -> int:
        ledgers = self._oracle.ledgers
        old = [k for k, one in ledgers.items() if not (one.hinted or one.perhaps_fenced or k in self._busy)]
        if old and self._rng.random() < 0.5:
            return self._rng.choice(old)
        return max(ledgers, default=0) + 1

    async def _session(self, lane: Lane, ledger_id: int) -> bool:
        """Write some frames of one ledger. Return False if the bookie has ended."""
        one, listener = self._oracle.of(ledger_id), Listener()
        session = lane.attach(ledger_id, listener, mode=AttachMode.WRITE)
        sent: list[Sequence[int]] = []
        for _ in range(self._rng.choice((1, 3, 10, 25))):
            ids = self._next_ids(ledger_id, one.next_id)
            one.next_id = ids[-1] + 1
            one.maybe.update(ids)
            sent.append(ids)
            self._oracle.counts["operations"] += 1
            lane.send(session, ledger_id, ids[0], [payload_of(ledger_id, k) for k in ids], lac=ids[0] - 1)
            if self._rng.random() < 0.3:
                await asyncio.sleep(0)
            if self._ending or _over(listener):
                break
        with contextlib.suppress(TimeoutError):
            await listener.until(lambda said: _durable(listener) >= len(sent) or _over(listener))
        for ids in sent[: _durable(listener)]:
            one.acked.update(ids)
            one.maybe.difference_update(ids)
            self._oracle.counts["acked"] += len(ids)
        lane.link.detach(session)
        return not any(words[0] == "broken" for words in listener.said)

    def _next_ids(self, ledger_id: int, first: int) -> range:
        wanted, last, size = self._rng.choice((1, 1, 1, 4, 30)), first, 0
        while last < first + wanted and size < GROUP_BYTES:
            size += size_of(ledger_id, last)
            last += 1
        return range(first, last)

    async def _fence(self, lane: Lane) -> None:
        while not self._ending:
            await asyncio.sleep(self._rng.uniform(0.05, 0.4))
            ids = [k for k, one in self._oracle.ledgers.items() if not (one.hinted or one.fenced)]
            if not ids:
                continue
            one = self._oracle.of(ledger_id := self._rng.choice(ids))
            one.perhaps_fenced = True
            await lane.fence(ledger_id)
            one.fenced = True
            self._oracle.counts.update(("fenced", "operations"))

    async def _delete(self, lane: Lane) -> None:
        """Send hints of deletions. Repeat those that an earlier life got and did not carry out, because a bookie does
        not remember them."""
        again = [k for k, one in self._oracle.ledgers.items() if one.hinted and not one.deleted]
        if again:
            await lane.link.delete_hint(again, deadline_s=5)
        while not self._ending:
            await asyncio.sleep(self._rng.uniform(0.05, 0.25))
            old = [k for k, one in self._oracle.ledgers.items() if not one.hinted and k not in self._busy]
            if len(old) < 8:
                continue
            some = self._rng.sample(old, self._rng.randint(1, 6))
            for ledger_id in some:
                self._oracle.of(ledger_id).hinted = True
            await lane.link.delete_hint(some, deadline_s=5)
            self._oracle.counts["hinted"] += len(some)
            self._oracle.counts["operations"] += 1

    async def _read(self, lane: Lane) -> None:
        """Read acked entries while everything else goes on, compaction of them too."""
        while not self._ending:
            await asyncio.sleep(self._rng.uniform(0, 0.04))
            ledgers = [k for k, one in self._oracle.ledgers.items() if one.acked and not one.hinted]
            if not ledgers:
                continue
            one = self._oracle.of(ledger_id := self._rng.choice(ledgers))
            first = self._rng.choice(tuple(one.acked))
            last = first + self._rng.choice((0, 3, 60))
            acked = {k for k in one.acked if first <= k <= last}
            self._oracle.counts["operations"] += 1
            try:
                found, trailer = await lane.read(ledger_id, first, last)
            except RefusedError as error:
                if not one.hinted:
                    self._oracle.refused(ledger_id, error.reason)
                continue
            if not one.hinted:  # a hinted ledger may be deleted by now
                absent, unknown = _ids(trailer.absent), _ids(trailer.unknown)
                acked = {k for k in acked if k <= trailer.answered_through}
                self._oracle.heard(ledger_id, found, absent - set(found), unknown, acked)

    # --- afterwards ---

    async def _read_back(self) -> None:
        lane = await _connected(self._store)
        for ledger_id in list(self._oracle.ledgers):
            await self._read_ledger(lane, ledger_id)
        for ledger_id, one in self._oracle.ledgers.items():
            if one.fenced and not one.hinted:
                await self._check_fence(lane, ledger_id)
        await lane.transport.close()

    async def _read_ledger(self, lane: Lane, ledger_id: int) -> None:
        one = self._oracle.of(ledger_id)
        found: dict[int, bytes] = {}
        absent: set[int] = set()
        unknown: set[int] = set()
        first, last = 0, one.next_id + 2
        try:
            while first <= last:
                entries, trailer = await lane.read(ledger_id, first, last, bytes_max=8 << 20)
                found.update(entries)
                if any(gap.reason is Reason.DELETED for gap in trailer.unknown):
                    raise RefusedError(Reason.DELETED, "deleted")
                absent |= _ids(trailer.absent)
                unknown |= _ids(trailer.unknown)
                assert trailer.answered_through >= first, "a read answers nothing"
                first = trailer.answered_through + 1
        except RefusedError as error:
            self._oracle.refused(ledger_id, error.reason)
            return
        self._oracle.answered(ledger_id, found, absent - set(found), unknown, settle=True)

    async def _check_fence(self, lane: Lane, ledger_id: int) -> None:
        listener = Listener()
        session = lane.attach(ledger_id, listener)
        try:
            _, reason = await listener.ended(session)
        except (TimeoutError, TransportError):
            reason = Reason.REASON_NONE
        if reason is not Reason.FENCED:
            self._oracle.wrong("lost", f"the fence of ledger {ledger_id}: a writer's session ended with {reason.name}")
        lane.link.detach(session)


def _ids(ranges: Iterable[EntryRange]) -> set[int]:
    return {k for one in ranges for k in range(one.first, one.last + 1)}


def _durable(listener: Listener) -> int:
    return max((words[2] for words in listener.said if words[0] in ("acked", "ended")), default=0)


def _over(listener: Listener) -> bool:
    return any(words[0] in ("ended", "broken") for words in listener.said)


def _registered(store: MetadataStore) -> dict[str, BookieServiceInfo]:
    return {**store.read_only_bookies(), **store.writable_bookies()}


async def _connected(store: MetadataStore) -> Lane:
    """Return a lane to the bookie. Raises RuntimeError if a bookie that says it is ready stays unregistered; its log
    tells whether the disk has no room for the trial's own load (read-only)."""
    deadline = time.monotonic() + READY_S
    while BOOKIE_ID not in (bookies := await asyncio.to_thread(_registered, store)):
        if time.monotonic() > deadline:
            raise RuntimeError("the bookie is ready and not registered")
        await asyncio.sleep(0.05)
    transport = LaneTransport(Caller(await asyncio.to_thread(store.instance_id)))
    transport.update_bookies(list(bookies.values()))
    return Lane("grpc", transport, BOOKIE_ID)
