# SPDX-License-Identifier: Apache-2.0
"""A client of ours in a process of its own, so that its processor time and memory are its own: ``python -m
benchmarks.networks.clients`` reads commands as lines of JSON and answers them."""

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

DATA_BYTES, FRAME_BYTES = 32 << 20, 1 << 20
Answer = dict[str, Any]


class Client:
    """The commands. Each public method is one."""

    def __init__(self) -> None:
        self._data = memoryview(random.Random(1).randbytes(DATA_BYTES))

    async def open(self, uri: str, lane: str) -> Answer:
        """Connect, and open a ledger with one entry. What there is now is hidden from Python's garbage collector, as
        docs/python.md recommends."""
        self._client = await client.connect(uri, config=ClientConfig(lanes=lane, frame_bytes=FRAME_BYTES))
        self._writer = await self._client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        await self._writer.append(b"first")
        gc.collect()
        gc.freeze()
        return {}

    async def append(self, count: int, rows: int, size: int, in_flight: int) -> Answer:
        """Append ``count`` batches of ``rows`` entries, ``in_flight`` batches at a time."""
        lengths, batch_bytes = np.full(rows, size, dtype=np.uint32), rows * size
        places = DATA_BYTES // batch_bytes

        async def some(first: int) -> None:
            for number in range(first, count, in_flight):
                at = number % places * batch_bytes
                batch = EntryBatch(lengths=lengths, payload=self._data[at : at + batch_bytes])
                await self._writer.wait_confirmed(await self._writer.append_batch(batch))

        return await clocked(lambda: asyncio.gather(*(some(first) for first in range(in_flight))))

    async def single(self, count: int, size: int) -> Answer:
        """Return the milliseconds of an append, one at a time: median and p99."""
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            await self._writer.append(bytes(self._data[:size]))
            samples.append((time.perf_counter() - began) * 1e3)
        return {"p50": float(np.percentile(samples, 50)), "p99": float(np.percentile(samples, 99))}

    async def close(self) -> Answer:
        """Close the ledger, and return its id for reading."""
        await self._writer.close()
        return {"ledger": self._writer.ledger_id}

    async def read(self, ledger_id: int) -> Answer:
        """Read the whole ledger, without looking into the entries."""
        async with await self._client.open_ledger(ledger_id, recover=False) as reader:

            async def all_of_it() -> None:
                seen = 0
                async for batch in reader.read(0, reader.last_add_confirmed):
                    seen += len(batch)
                assert seen == reader.last_add_confirmed + 1

            return {"bytes": reader.length, **await clocked(all_of_it)}


async def clocked(work: Callable[[], Awaitable[object]]) -> Answer:
    began = time.perf_counter()
    await work()
    return {"seconds": time.perf_counter() - began}


async def serve() -> None:
    """Carry out one command after the other until the input ends."""
    loop, commands = asyncio.get_running_loop(), Client()
    say({"id": 0, "ok": {}})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command: Mapping[str, Any] = json.loads(line)
        given = {name: value for name, value in command.items() if name not in ("id", "do")}
        try:
            say({"id": command["id"], "ok": await getattr(commands, command["do"])(**given)})
        except Exception as error:  # the caller must get every error
            say({"id": command["id"], "error": {"name": type(error).__name__, "message": str(error)}})


def say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
