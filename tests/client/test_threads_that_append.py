# SPDX-License-Identifier: Apache-2.0
"""Real threads and a real loop that append at once, changed after every few instructions: told id = found entry."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pytest

from bk_core.client import ClientConfig
from bk_core.client.writing.append_queue import AppendQueue
from bk_core.entries.batch import EntryBatch
from bk_core.errors import WindowFullError
from tests.kit.canaries import PASSWORD
from tests.kit.memory_cluster import memory_cluster, read_ledger
from tests.kit.switching import tiny_switches
from tests.kit.waiting import in_thread

SMALL = ClientConfig(window_bytes_max=8 << 10, frame_bytes=1 << 10)
EACH = 1500


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with tiny_switches():
        yield


class Told:
    """Ids and the payloads that they were told for, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._payloads: dict[int, bytes] = {}

    def note(self, first: int, payloads: Sequence[bytes]) -> None:
        with self._lock:
            for entry_id, payload in enumerate(payloads, first):
                assert entry_id not in self._payloads, f"id {entry_id} was told twice"
                self._payloads[entry_id] = payload

    def all(self) -> list[bytes]:
        """In the order of their ids, of which none is left out."""
        assert sorted(self._payloads) == list(range(len(self._payloads)))
        return [self._payloads[entry_id] for entry_id in range(len(self._payloads))]


def until_there_is_room(append: Callable[[], int]) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            return append()
        except WindowFullError:
            time.sleep(0)
    raise AssertionError("the window stays full")


def test_two_threads_put_and_one_takes_and_each_id_names_its_payload() -> None:
    queue, told, taken = AppendQueue(), Told(), list[bytes]()

    def put(name: int) -> None:
        for number in range(EACH):
            payload = b"%d-%d" % (name, number)
            with queue.lock:
                entry_id = queue.put(payload)
            told.note(entry_id, [payload])

    putting = [in_thread(put, name) for name in range(2)]
    while not all(each.done() for each in putting) or len(queue):
        if len(queue):
            taken += queue.take(100)[0].to_list()
    assert [each.exception() for each in putting] == [None, None]
    assert taken == told.all()
    assert queue.bytes == 0


@pytest.mark.long
@pytest.mark.rule("P1")
async def test_each_id_that_threads_and_tasks_were_told_names_their_entry_in_the_ledger() -> None:
    async with memory_cluster(3) as cluster:
        client, told = cluster.client(SMALL), Told()
        writer = await client.create_ledger(password=PASSWORD)

        def nowait(name: int) -> None:
            for number in range(EACH):
                payload = b"%d-%d" % (name, number)
                told.note(until_there_is_room(lambda p=payload: writer.append_nowait(p)), [payload])

        def futures(name: int) -> None:
            for number in range(EACH // 3):
                payload, made = b"%d-%d" % (name, number), list[Future[int]]()
                until_there_is_room(lambda p=payload, m=made: m.append(writer.append_future(p)) or 0)
                told.note(made[0].result(10), [payload])

        async def batches(name: int) -> None:
            for number in range(EACH // 10):
                payloads = [b"%d-%d-%d" % (name, number, k) + bytes(300) for k in range(8)]
                last = await writer.append_batch(EntryBatch.from_list(payloads))
                told.note(last - len(payloads) + 1, payloads)

        async def singles(name: int) -> None:
            for number in range(EACH // 10):
                payload = b"%d-%d" % (name, number)
                told.note(await writer.append(payload), [payload])

        work = (asyncio.to_thread(nowait, 1), asyncio.to_thread(futures, 2), batches(3), singles(4), batches(5))
        async with asyncio.timeout(40):
            await asyncio.gather(*work)
            await writer.close()
        assert await read_ledger(client, writer.ledger_id, recover=False, password=PASSWORD) == told.all()
