# SPDX-License-Identifier: Apache-2.0
"""Clients of ours in a process of their own, so that its processor time and memory are theirs: ``python -m
benchmarks.networks.clients`` reads commands as lines of JSON and answers them.

Each client has its own connections and its own session with ZooKeeper; all of them share one loop.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from bk_core import client
from bk_core.client.config import ClientConfig
from bk_core.entries.batch import EntryBatch

DATA_BYTES = 32 << 20
CREATED_AT_ONCE = 16
Answer = dict[str, Any]


class Clients:
    """The commands. Each public method is one."""

    def __init__(self) -> None:
        self._data = memoryview(random.Random(1).randbytes(DATA_BYTES))
        self._clients: list[client.BookKeeper] = []
        self._writers: list[client.LedgerWriter] = []

    async def connect(self, uri: str, lane: str, clients: int, frame_bytes: int) -> Answer:
        """Connect ``clients`` clients, whose frames have at most ``frame_bytes`` bytes."""
        config = ClientConfig(lanes=lane, frame_bytes=max(1024, frame_bytes))
        for _ in range(clients):
            self._clients.append(await client.connect(uri, config=config))
        return {}

    async def open(self, ledgers: int, quorums: list[int]) -> Answer:
        """Open ``ledgers`` ledgers, shared out among the clients, each with one entry. They are hidden from Python's
        garbage collector, as docs/python.md recommends."""
        some = asyncio.Semaphore(CREATED_AT_ONCE)
        ensemble, write, ack = quorums

        async def one(number: int) -> client.LedgerWriter:
            async with some:
                bookkeeper = self._clients[number % len(self._clients)]
                writer = await bookkeeper.create_ledger(
                    ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
                )
                await writer.append(b"first")
                return writer

        self._writers = await asyncio.gather(*(one(number) for number in range(ledgers)))
        gc.collect()
        gc.freeze()
        return {}

    async def append(self, count: int, rows: int, size: int, in_flight: int) -> Answer:
        """Append ``count`` batches of ``rows`` entries to the ledgers in turn, ``in_flight`` batches at a time."""
        lengths, batch_bytes = np.full(rows, size, dtype=np.uint32), rows * size
        places = DATA_BYTES // batch_bytes

        async def some(first: int) -> None:
            for number in range(first, count, in_flight):
                writer, at = self._writers[number % len(self._writers)], number % places * batch_bytes
                if rows == 1:
                    await writer.append(bytes(self._data[at : at + size]))
                    continue
                batch = EntryBatch(lengths=lengths, payload=self._data[at : at + batch_bytes])
                await writer.wait_confirmed(await writer.append_batch(batch))

        return await clocked(lambda: asyncio.gather(*(some(first) for first in range(in_flight))))

    async def single(self, count: int, size: int) -> Answer:
        """Return the milliseconds of an append, one at a time: median and p99."""
        (writer, *_), samples = self._writers, []
        for _ in range(count):
            began = time.perf_counter()
            await writer.append(bytes(self._data[:size]))
            samples.append((time.perf_counter() - began) * 1e3)
        return {"p50": float(np.percentile(samples, 50)), "p99": float(np.percentile(samples, 99))}

    async def close(self) -> Answer:
        """Close the ledgers, and return their ids for reading."""
        for writer in self._writers:
            await writer.close()
        return {"ledgers": [writer.ledger_id for writer in self._writers]}

    async def read(self, ledger_id: int, times: int = 1) -> Answer:
        """Read the whole ledger ``times`` times, without looking into the entries."""
        async with await self._clients[0].open_ledger(ledger_id, recover=False) as reader:

            async def all_of_it() -> None:
                seen = 0
                for _ in range(times):
                    async for batch in reader.read(0, reader.last_add_confirmed):
                        seen += len(batch)
                assert seen == times * (reader.last_add_confirmed + 1)

            return {"bytes": times * reader.length, **await clocked(all_of_it)}


async def clocked(work: Callable[[], Awaitable[object]]) -> Answer:
    began = time.perf_counter()
    await work()
    return {"seconds": time.perf_counter() - began}


async def serve() -> None:
    """Carry out one command after the other until the input ends."""
    loop, clients = asyncio.get_running_loop(), Clients()
    say({"id": 0, "ok": {}})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command: Mapping[str, Any] = json.loads(line)
        given = {name: value for name, value in command.items() if name not in ("id", "do")}
        try:
            say({"id": command["id"], "ok": await getattr(clients, command["do"])(**given)})
        except Exception as error:  # the caller must get every error
            say({"id": command["id"], "error": {"name": type(error).__name__, "message": str(error)}})


def say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
