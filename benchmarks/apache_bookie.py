# SPDX-License-Identifier: Apache-2.0
"""What a bookie does for Apache's clients between socket and storage: nanoseconds of CPU an entry.

``python -m benchmarks.apache_bookie [RUNS]``: a connection and the machine, without sockets, threads and a disk. Adds:
from the bytes of a burst to the bytes of its acks. Reads: from the bytes of the requests to those of the answers, with
entries in frames of a burst and in frames of one. The last lines are a burst of one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.apache_wire import BURST_BYTES, KEY, WIRES, batch_of
from bk_core.entries.digest import Digester
from bk_core.model import DigestType
from bk_core.wire.bookie_rpc.bodies import Bodies
from tests.kit.bookie_requests import Wire, add_requests, read_requests

Case = tuple[str, Callable[[], object], int]


def cases() -> Iterator[Case]:
    for wire, version in WIRES:
        for size in (100, 1000):
            yield from burst_cases(wire, version, size, BURST_BYTES // (size + 100))
        yield from burst_cases(wire, version, 100, 1)


def burst_cases(wire: Wire, version: int, size: int, count: int) -> Iterator[Case]:
    from tests.kit.rpc_bookie import RpcBookie

    made = batch_of([size] * count)
    bodies = Bodies.of_batch(made, Digester(DigestType.DUMMY, b"", 5))
    entries = bytes(bodies.joined())
    width = len(entries) // count
    bookie = RpcBookie()
    client = bookie.connect()
    begun = [0]

    def adds() -> None:
        """New ids each time, as a writer's are."""
        first = begun[0]
        begun[0] += count
        ids = np.arange(first, first + count, dtype=np.int64)
        rows = np.frombuffer(entries, np.uint8).reshape(count, width).copy()
        rows[:, 8:16] = ids.astype(">i8").view(np.uint8).reshape(-1, 8)
        each = Bodies.of_entries(rows.tobytes(), np.full(count, width, dtype=np.int64))
        bursts.append(b"".join(map(bytes, add_requests(wire, ids, 5, ids, KEY, each))))

    bursts: list[bytes] = []
    adds()
    client.ask(bursts.pop())
    for _ in range(200 if count > 1 else 4000):
        adds()
    bursts.reverse()

    def take() -> None:
        client.connection.receive(memoryview(bursts.pop()))
        while client.connection.next_message():
            client.connection.message_left()
        bookie.store.ledgers[5].frames.clear()  # a list that is searched from its beginning is not what is timed

    name = f"v{version} {size} B" + (", one" if count == 1 else "")
    yield f"{name}: adds to acks", take, count
    if count == 1:
        return
    bookie.store.ledgers[5].frames.clear()
    ids = np.arange(count, dtype=np.int64)
    begun[0] = 0
    adds()
    client.ask(bursts.pop())
    asked = read_requests(wire, ids, 5, ids)

    def read() -> None:
        client.connection.receive(memoryview(asked))
        while client.connection.next_message():
            client.connection.message_left()

    yield f"{name}: reads to answers", read, count


def main(runs: int) -> None:
    print(f"{'':52} {'least':>8} {'median':>8}   ns of CPU an entry")
    for name, work, count in cases():
        work()
        again = max(1, 2000 // count) if count > 1 else 100
        spent = []
        for _ in range(runs):
            began = time.process_time_ns()
            for _ in range(min(again, 7)):
                work()
            spent.append((time.process_time_ns() - began) / (count * min(again, 7)))
        print(f"{name:52} {min(spent):8.0f} {statistics.median(spent):8.0f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
