# SPDX-License-Identifier: Apache-2.0
"""The guard of the hot path: what a frame of a megabyte costs on its way through the real client, the direct lane and a
real bookie, all in this process. It counts, and looks at no clock, so that a busy machine makes no difference.

*Copies*: the most memory that is taken at once above what was there before, in frames. While something is copied its
source is there, too, so a copy shows however short it lives; not where the one before is still there, so the median
counts. An append builds one frame, which stays until it is acked; a read needs none. Not in it: slots, which are
counted by themselves (each side receives into one, and the bookie reads into one), and the bookie's commit group, into
which it copies a frame once.

*Calls*: of functions of ours, by all threads; the fewest of several frames, because a loaded machine cuts messages into
more pieces. Both may grow by a tenth. If a change is worth more than that, say why where you change the figures here.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import tracemalloc
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import FrameType

import numpy as np
import pytest

from bk_core.client import BookKeeper, ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.metadata import open_store
from bk_core.model import DIRECT
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import Caller
from bk_core.transport.slots import Slots
from bookie_server.main import Bookie
from tests.kit.lanes import bookie_config

ROOT = str(Path(__file__).parents[2])
OURS = (f"{ROOT}/bk_core/", f"{ROOT}/bookie_server/")
ENTRIES, ENTRY_BYTES = 1_000, 1_000
FRAMES = 12
GROWTH = 1.1

FIGURES = {"append": (1.04, 1, 372), "read": (0.05, 2, 494)}
"""What a frame costs: frames of memory, slots, calls."""


@dataclass
class Costs:
    copies: list[float] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)


@contextmanager
def counted_calls() -> Iterator[Callable[[], tuple[int, int]]]:
    """Counts the slots that are taken and the calls of our functions, in threads that begin meanwhile too."""
    slots, calls = itertools.count(), itertools.count()
    is_ours: dict[str, bool] = {}
    take = Slots.take.__code__

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if is_ours.setdefault(code.co_filename, code.co_filename.startswith(OURS)) and code.co_name[0] != "<":
                next(calls)
                if code is take:
                    next(slots)

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield lambda: (int(repr(slots)[6:-1]), int(repr(calls)[6:-1]))  # nothing is lost between threads
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


async def measured(count: Callable[[], tuple[int, int]], work: Callable[[], Awaitable[object]], costs: Costs) -> None:
    gc.collect()
    tracemalloc.reset_peak()
    memory, (slots, calls) = tracemalloc.get_traced_memory()[0], count()
    await work()
    costs.slots.append(count()[0] - slots)
    costs.calls.append(count()[1] - calls)
    costs.copies.append((tracemalloc.get_traced_memory()[1] - memory) / (ENTRIES * ENTRY_BYTES))


async def frames_there_and_back(path: Path, count: Callable[[], tuple[int, int]]) -> dict[str, Costs]:
    costs = {"append": Costs(), "read": Costs()}
    uri = f"memory://{uuid.uuid4().hex}"
    bookie = await Bookie.start(bookie_config(path, uri, scrub_bytes_per_s=1), open_store(uri), init_cluster=True)
    store = open_store(uri)
    instance_id = store.instance_id()
    config = ClientConfig()
    transport = LaneTransport(Caller(instance_id, lanes=(DIRECT,)))
    lengths = np.full(ENTRIES, ENTRY_BYTES, dtype=np.uint32)
    payload = memoryview(np.random.default_rng(1).bytes(ENTRIES * ENTRY_BYTES))
    async with BookKeeper(store, transport, instance_id=instance_id, config=config) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)

        async def append() -> None:
            last = await writer.append_batch(EntryBatch(lengths=lengths, payload=payload))
            await writer.wait_confirmed(last)

        for _ in range(FRAMES):
            await measured(count, append, costs["append"])
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        for k in range(FRAMES):

            async def read(first: int = k * ENTRIES) -> None:
                async for batch in reader.read(first, first + ENTRIES - 1):
                    assert batch.payload == payload

            await measured(count, read, costs["read"])
        await reader.close()
    await bookie.stop()
    return costs


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Costs]:
    tracemalloc.start()
    try:
        with counted_calls() as count:
            return asyncio.run(frames_there_and_back(tmp_path_factory.mktemp("hot"), count))
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("way", FIGURES)
def test_a_frame_is_copied_no_more_often(way: str, costs: dict[str, Costs]) -> None:
    assert median(costs[way].copies) <= FIGURES[way][0] * GROWTH, costs[way].copies
    assert min(costs[way].slots) == FIGURES[way][1], costs[way].slots


@pytest.mark.parametrize("way", FIGURES)
def test_a_frame_takes_no_more_calls(way: str, costs: dict[str, Costs]) -> None:
    assert min(costs[way].calls) <= FIGURES[way][2] * GROWTH, costs[way].calls
