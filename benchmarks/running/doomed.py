# SPDX-License-Identifier: Apache-2.0
"""A process that is killed while it writes: ``python -m benchmarks.running.doomed WHAT URI LANE …``.

``ledger URI LANE ENTRIES ENTRY_BYTES`` makes all frames of one ledger in one turn of its loop, before it can see an
ack, so that every entry carries LAC −1. It prints the ledger's id, and never sends the bookies a LAC later, like a
writer that died before the first ack came back. ``leader URI LANE LOG`` leads the log, prints the offset of its first
entry, and appends until it is killed or another leader takes over. ``load URI LANE`` appends batches to a ledger at
full rate, and prints the ledger's id when it has begun.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from bk_cli.local.children import child_environment
from bk_core import client
from bk_core.client.config import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import LeadershipLostError
from bk_core.logs.named_log import NamedLog

NEVER_MS = 3_600_000.0
FRAMES = 10
HOLD_S = 300.0  # the longest time that it outlives its parent
APPENDS_AT_ONCE = 8
WARM_BATCHES = 32


@contextmanager
def doomed(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """Start such a process, and yield it and its first line. Kill it afterwards."""
    command = [sys.executable, "-m", "benchmarks.running.doomed", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"benchmarks.running.doomed {arguments} ended before it wrote"
            yield process, line
        finally:
            process.kill()


async def write_ledger(uri: str, lane: str, entries: int, entry_bytes: int) -> None:
    """Send all frames in one turn of the loop, so that the machine has no ack yet when it numbers the last of them."""
    frame_bytes, window_bytes_max = -(-entries // FRAMES) * entry_bytes, 64 << 20
    config = ClientConfig(
        lanes=lane,
        window_bytes_max=window_bytes_max,
        frame_bytes=frame_bytes,
        explicit_lac_delay_ms=NEVER_MS,
        lac_stall_ms=NEVER_MS,
    )
    async with await client.connect(uri, config=config) as bookkeeper:
        ledger = await bookkeeper.create_ledger()
        payload = memoryview(np.random.default_rng(1).bytes(entries * entry_bytes))
        await ledger.append_batch(EntryBatch(lengths=np.full(entries, entry_bytes, dtype=np.uint32), payload=payload))
        assert ledger.last_add_confirmed == -1, "an ack was seen before the last frame was made"
        print(ledger.ledger_id, flush=True)
        await asyncio.sleep(HOLD_S)


async def append_for_ever(uri: str, lane: str) -> None:
    """Append batches of 1 MB, as fast as the window takes them."""
    rows, size = 1_000, 1_000
    data = memoryview(np.random.default_rng(2).bytes(64 * rows * size))
    lengths = np.full(rows, size, dtype=np.uint32)
    async with await client.connect(uri, config=ClientConfig(lanes=lane)) as bookkeeper, asyncio.timeout(HOLD_S):
        ledger = await bookkeeper.create_ledger()
        for number in itertools.count():
            at = number % 64 * rows * size
            last = await ledger.append_batch(EntryBatch(lengths=lengths, payload=data[at : at + rows * size]))
            if number == WARM_BATCHES:
                await ledger.wait_confirmed(last)
                print(ledger.ledger_id, flush=True)


async def lead_log(uri: str, lane: str, name: str) -> None:
    """Append a few entries at a time, as fast as acks come, until another leader takes over."""
    async with await client.connect(uri, config=ClientConfig(lanes=lane)) as bookkeeper:
        leader = await NamedLog(bookkeeper, name).lead()
        print(await leader.append(b"first"), flush=True)
        try:
            async with asyncio.timeout(HOLD_S):
                while True:
                    await asyncio.gather(*(leader.append(bytes(100)) for _ in range(APPENDS_AT_ONCE)))
        except (LeadershipLostError, TimeoutError):
            pass


def main(what: str, uri: str, lane: str, *rest: str) -> None:
    if what == "ledger":
        entries, entry_bytes = rest
        asyncio.run(write_ledger(uri, lane, int(entries), int(entry_bytes)))
    elif what == "load":
        asyncio.run(append_for_ever(uri, lane))
    else:
        asyncio.run(lead_log(uri, lane, *rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
