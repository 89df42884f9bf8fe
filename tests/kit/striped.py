# SPDX-License-Identifier: Apache-2.0
"""Makes ensemble changes that are certain to begin inside a frame, by stopping and killing bookies of striped ledgers.

With E > Qw, an entry whose write set has no ack quorum stops the LAC, wherever the entry is in its frame. So a test
stops bookies such that the first entry of the next frame can be confirmed, and the second or third cannot. It sends the
frame, sees the LAC stop inside the frame, and kills one of the stopped bookies. The new ensemble then begins at the
entry after the LAC.

As a program, ``python -m tests.kit.striped URI SHAPE``, it writes frames until it is killed. It prints the ledger's id,
and then the last entry of each confirmed frame.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bk_cli.local.cluster import BookieProcess, LocalCluster
from bk_core import client
from bk_core.client.config import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.model import LedgerMetadata

ROWS = 600  # rows of a frame; a multiple of each ensemble size here, so that each frame begins at index 0
WAIT_S = 20.0
QUICK = ClientConfig(reconnect_budget_ms=200)  # makes a killed bookie count as failed soon


@dataclass(frozen=True)
class Shape:
    """The ensemble size, the quorums and the strikes. A strike names the indices to stop; the bookie at the first index
    is then killed."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    strikes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "ensemble_size": self.ensemble_size,
            "write_quorum_size": self.write_quorum_size,
            "ack_quorum_size": self.ack_quorum_size,
        }


SHAPES = {"5/3/2": Shape(5, 3, 2, ((2, 3), (3, 2))), "4/2/2": Shape(4, 2, 2, ((2,), (3,)))}


def rows_of(frame: int) -> list[bytes]:
    """Return the payloads of one frame. Their lengths vary, and no two are equal."""
    return [b"%d/%d " % (frame, row) + b"*" * (row * 37 % 1500) for row in range(ROWS)]


def batch_of(frame: int) -> EntryBatch:
    return EntryBatch.from_list(rows_of(frame))


async def done(answer: Any) -> Any:
    """Return the result of a call of either API: the asyncio one, or the blocking one, which has its own loop."""
    return await answer if inspect.isawaitable(answer) else answer


async def until(condition: Any, what: str) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {WAIT_S:g} s"
        await asyncio.sleep(0.01)


class Strikes:
    """Stops, kills and revives bookies of one cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._stopped: list[BookieProcess] = []

    def bookie(self, bookie_id: str) -> BookieProcess:
        return next(bookie for bookie in self._cluster.bookies if bookie.bookie_id == bookie_id)

    def stop(self, bookie_id: str) -> None:
        self._stopped.append(self.bookie(bookie_id))
        self._signal(self._stopped[-1], signal.SIGSTOP)

    def kill(self, bookie_id: str) -> None:
        self.bookie(bookie_id).kill()

    def resume(self) -> None:
        """Continue those of the stopped bookies that still run."""
        while self._stopped:
            bookie = self._stopped.pop()
            if bookie.is_running:
                self._signal(bookie, signal.SIGCONT)

    def mend(self) -> None:
        """Make all bookies run again."""
        self.resume()
        for bookie in self._cluster.bookies:
            if not bookie.is_running:
                bookie.start()
        self._cluster.wait_ready()

    @staticmethod
    def _signal(bookie: BookieProcess, number: signal.Signals) -> None:
        assert bookie.pid is not None
        os.kill(bookie.pid, number)


async def write_with_changes(ledger: Any, shape: Shape, strikes: Strikes) -> list[bytes]:
    """Append frames to a new ledger, with one ensemble change for each strike. Return the payloads, all of them
    confirmed."""
    written = rows_of(0)
    await done(ledger.append_batch(batch_of(0)))
    await done(ledger.flush())
    for number, struck in enumerate(shape.strikes, start=1):
        ensemble = ledger.metadata.last_fragment.ensemble
        for index in struck:
            strikes.stop(ensemble[index])
        before, fragments = ledger.last_add_confirmed, len(ledger.metadata.fragments)
        for _ in range(3):
            frame = len(written) // ROWS
            await done(ledger.append_batch(batch_of(frame)))
            written += rows_of(frame)
        await until(lambda before=before: ledger.last_add_confirmed > before, "a LAC inside a frame")
        strikes.kill(ensemble[struck[0]])
        await until(lambda known=fragments: len(ledger.metadata.fragments) > known, "an ensemble change")
        strikes.resume()
        await done(ledger.flush())
        if number == shape.write_quorum_size - 1 and number < len(shape.strikes):
            await asyncio.to_thread(strikes.mend)  # the next death would take the last copy of some entry
    return written


def check_changes(metadata: LedgerMetadata, shape: Shape) -> None:
    """Check that each strike made one fragment, and that none of the fragments begins where a frame begins."""
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    assert len(starts) == 1 + len(shape.strikes), starts
    assert all(start % ROWS for start in starts[1:]), f"a fragment begins where a frame begins: {starts}"


def payloads(batches: Iterator[EntryBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.to_list()]


async def write_for_ever(uri: str, shape: Shape) -> None:
    async with await client.connect(uri, config=QUICK) as bookkeeper:
        ledger = await bookkeeper.create_ledger(**shape.sizes)
        print(ledger.ledger_id, flush=True)
        frame = 0
        while True:
            await ledger.append_batch(batch_of(frame))
            frame += 1
            if frame % 3 == 0:
                print(ledger.last_add_confirmed, flush=True)
                await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(write_for_ever(sys.argv[1], SHAPES[sys.argv[2]]))
