# SPDX-License-Identifier: Apache-2.0
"""The load of ``bk bench``. Writers append for some seconds, each to its own ledger, and the time of each round is
recorded.

A round is one batch of entries, from the append to the confirmation of all of them. At a given rate the time of a round
counts from the moment at which the round was due, so that a cluster that stands still gets no easier load.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from bk_core.client.bookkeeper import BookKeeper, check_sizes
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, InvalidArgumentError, NoSuchLedgerError
from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX

ROUND_BYTES_MAX = 64 << 20
"""The maximum number of payload bytes in one append of the benchmark."""
ROUNDS_MAX = 100_000
"""The maximum number of rounds in flight. Each round is a task."""
SETUP_AT_ONCE = 16
"""The maximum number of ledgers that are created at the same time."""
CUSTOM_METADATA = {"bk.bench": b"1"}
"""The custom metadata of the ledgers of a run, by which the ledgers of a killed run can be recognised."""
READ_BYTES = 4 << 20
_STEP = math.log(1.02)


class Latencies:
    """A histogram of times in steps of 2 %, of bounded size."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self.most_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[int(math.log(max(seconds, 1e-6) * 1e6) / _STEP)] += 1
        self.most_s = max(self.most_s, seconds)

    def merge(self, other: Latencies) -> None:
        self._counts.update(other._counts)
        self.most_s = max(self.most_s, other.most_s)

    def within_s(self, share: float) -> float | None:
        """Return the time that this share of all rounds did not exceed, or None if there are none."""
        wanted, seen = share * self._counts.total(), 0
        for step, number in sorted(self._counts.items()):
            seen += number
            if seen >= wanted:
                return min(self.most_s, math.exp((step + 1) * _STEP) / 1e6)
        return None


@dataclass(slots=True)
class LoadSeen:
    """The figures of the entries that were confirmed, or read, in ``seconds``."""

    seconds: float = 0.0
    entries: int = 0
    payload_bytes: int = 0
    rounds: Latencies = field(default_factory=Latencies)

    def as_object(self) -> dict[str, object]:
        took_s = self.seconds or 1e-9
        return {
            "seconds": round(self.seconds, 3),
            "entries": self.entries,
            "bytes": self.payload_bytes,
            "entriesPerS": round(self.entries / took_s, 1),
            "bytesPerS": round(self.payload_bytes / took_s),
            **{f"{name}Ms": _ms(self.rounds.within_s(share)) for name, share in SHARES.items()},
            "maxMs": _ms(self.rounds.most_s) if self.entries else None,
        }


SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLoad:
    """The parameters of a load. A round has ``batch`` entries, and each writer has ``in_flight`` rounds at the same
    time. ``entries_per_s`` is the rate of all writers together, or 0 for as fast as possible. The load ends after
    ``seconds``, or once ``bytes_max`` of payload were appended."""

    writers: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    entry_size: int
    batch: int
    in_flight: int
    seconds: float
    entries_per_s: float
    bytes_max: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and math.isfinite(self.entries_per_s)):
            raise InvalidArgumentError(
                "time and rate are numbers", value=f"{self.seconds} s, {self.entries_per_s} entries/s"
            )
        check_sizes(self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)
        if self.writers * self.in_flight > ROUNDS_MAX:
            raise InvalidArgumentError(
                "too many batches would be in flight",
                value=f"{self.writers} writers with {self.in_flight} batches each",
                remedy=f"take {ROUNDS_MAX} batches or fewer in all",
            )
        if self.entry_size > ENTRY_BYTES_MAX:
            raise InvalidArgumentError(
                "the entries are too large", value=f"{self.entry_size} bytes", remedy=f"take {ENTRY_BYTES_MAX} or less"
            )
        if self.entry_size * self.batch > ROUND_BYTES_MAX:
            raise InvalidArgumentError(
                "the batch is too large",
                value=f"{self.batch} entries of {self.entry_size} bytes",
                remedy=f"take {ROUND_BYTES_MAX // self.entry_size} entries or fewer",
            )


class Running:
    """A running load. :meth:`append` returns when it ends, and :meth:`seconds` yields the figures of each second."""

    def __init__(self, client: BookKeeper, load: BenchLoad) -> None:
        self._client, self._load = client, load
        self.total, self._now = LoadSeen(), LoadSeen()
        self._ends_s = 0.0
        lengths = np.full(load.batch, load.entry_size, dtype=np.uint32)
        self._batch = EntryBatch(lengths=lengths, payload=memoryview(os.urandom(load.entry_size * load.batch)))
        self._is_over = asyncio.Event()
        self.ledgers: list[LedgerId] = []
        self._writers: list[LedgerWriter] = []

    async def create(self) -> None:
        """Create the ledgers. Raises what ``create_ledger`` raises."""
        turns, load = asyncio.Semaphore(SETUP_AT_ONCE), self._load

        async def one() -> None:
            async with turns:
                writer = await self._client.create_ledger(
                    ensemble_size=load.ensemble_size,
                    write_quorum_size=load.write_quorum_size,
                    ack_quorum_size=load.ack_quorum_size,
                    custom_metadata=CUSTOM_METADATA,
                )
                self._writers.append(writer)
                self.ledgers.append(writer.ledger_id)

        await _all(one() for _ in range(load.writers))

    async def append(self) -> None:
        """Append until the load ends. Raises the first error of a writer."""
        load, began = self._load, time.monotonic()
        self._ends_s = began + load.seconds
        every_s = load.batch * load.writers * load.in_flight / load.entries_per_s if load.entries_per_s else 0.0
        tasks = [writer for writer in self._writers for _ in range(load.in_flight)]
        try:
            await _all(self._rounds(each, at, every_s / len(tasks) * at, every_s) for at, each in enumerate(tasks))
        finally:
            self.total.seconds = time.monotonic() - began
            self._is_over.set()

    async def _rounds(self, writer: LedgerWriter, number: int, first_s: float, every_s: float) -> None:
        load, began = self._load, time.monotonic()
        batch = self._batch
        for turn in count():
            due_s = began + first_s + turn * every_s if every_s else time.monotonic()
            if due_s > self._ends_s or time.monotonic() >= self._ends_s or self.total.payload_bytes >= load.bytes_max:
                return
            if (pause_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(pause_s)
            await writer.wait_confirmed(await writer.append_batch(batch))
            took_s = time.monotonic() - due_s
            for seen in (self.total, self._now):
                seen.entries += load.batch
                seen.payload_bytes += len(batch.payload)
                seen.rounds.add(took_s)

    async def seconds(self) -> AsyncIterator[LoadSeen]:
        """Yield the figures of each second."""
        before = time.monotonic()
        while not self._is_over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._is_over.wait()
                return
            now, self._now = self._now, LoadSeen()
            before, now.seconds = time.monotonic(), time.monotonic() - before
            yield now

    async def close(self) -> None:
        await _all(writer.close() for writer in self._writers)

    async def read(self) -> LoadSeen:
        """Read all ledgers once, one by one. They must be closed."""
        seen, began = LoadSeen(), time.monotonic()
        for ledger_id in self.ledgers:
            reader = await self._client.open_ledger(ledger_id, recover=False)
            at = time.monotonic()
            async for batch in reader.read(0, reader.last_add_confirmed):
                seen.entries += len(batch)
                seen.payload_bytes += len(batch.payload)
                seen.rounds.add(time.monotonic() - at)
                at = time.monotonic()
        seen.seconds = time.monotonic() - began
        return seen

    async def delete(self) -> list[LedgerId]:
        """Abandon the writers and delete all ledgers. Return those that could not be deleted."""
        for writer in self._writers:
            with suppress(BookKeeperError):
                await writer.abandon()
        left = []
        for ledger_id in self.ledgers:
            try:
                await self._client.delete_ledger(ledger_id)
            except NoSuchLedgerError:
                continue
            except BookKeeperError:
                left.append(ledger_id)
        return left


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all this work at the same time. The first error cancels the rest."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
