# SPDX-License-Identifier: Apache-2.0
"""What the client's lane over Apache's wire costs by itself, without sockets: nanoseconds an entry. The clock is that
of the wall, because the one of the CPU costs half a millisecond a look on some machines: run it on a quiet one.

``python -m benchmarks.apache_client [RUNS]`` prints the least and the median of the runs. Adds: frames of 1 MiB become
requests for three bookies, and their answers become acks. Reads: a range is asked, its answers become frames, and these
are decoded and verified. The bookies' part is done beforehand and not counted.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame, verified_batches
from bk_core.errors import BookKeeperError
from bk_core.model import DigestType
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.packing import Packer, bodies_of_frame
from bk_core.transport.bookie_rpc.reads import RangeRead
from bk_core.transport.port import NewSession, ReadPart, ReadTrailer
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.connection import RequestReader
from bk_core.wire.bookie_rpc.frames import Buffer
from bk_core.wire.bookie_rpc.runs import AddRun, ReadRun
from bk_core.wire.lane import AttachMode, Reason

LEDGER, KEY = 5, bytes(20)
FRAME_BYTES = 1 << 20
RECEIVE_BYTES = 512 << 10
BOOKIES = 3
DIGESTER = Digester(DigestType.CRC32C, b"", LEDGER)
T = TypeVar("T")


class Taker:
    """Takes acks and parts, and decodes the parts."""

    def __init__(self) -> None:
        self.entries = 0

    def on_acked(self, session: int, frames: int) -> None: ...
    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None: ...
    def on_broken(self, session: int, message: str) -> None: ...

    def __call__(self, answer: ReadPart | ReadTrailer | BookKeeperError) -> None:
        if isinstance(answer, ReadPart):
            self.entries += sum(map(len, verified_batches(answer.frames, DIGESTER, always=False)))


def frame_of(size: int, entry: int) -> tuple[bytearray, int]:
    count = max(1, size // (entry + 40))
    payload = np.random.default_rng(4711).bytes(count * entry)
    batch = EntryBatch(
        lengths=np.full(count, entry, dtype=np.uint32), payload=memoryview(payload), first_entry_id=100_000
    )
    made = encode_frame(
        batch, digester=DIGESTER, ledger_id=LEDGER, lac=99_999, length_before=100_000 * entry, session=1
    )
    return made, count


def clocked(act: Callable[[], T], spent: list[float]) -> T:
    begun = time.perf_counter()
    result = act()
    spent[0] += time.perf_counter() - begun
    return result


def add_run(frame: bytearray, spent: list[float]) -> None:
    """One frame to three bookies, and their acks."""
    packer = Packer()
    exchanges = [Exchange(packer) for _ in range(BOOKIES)]
    for exchange in exchanges:
        exchange.adds.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, Taker()))
        clocked(partial(exchange.adds.send, 1, frame), spent)
    for exchange in exchanges:
        while buffers := clocked(partial(sent, exchange), spent):
            (run,) = RequestReader().read(b"".join(buffers)).items
            assert isinstance(run, AddRun)
            answers = v3.add_answers(run.txns, LEDGER, run.entry_ids)
            clocked(partial(take, exchange, answers), spent)


def sent(exchange: Exchange) -> list[Buffer]:
    return [buffer for buffers in iter(exchange.next_buffers, None) for buffer in buffers]


def take(exchange: Exchange, answers: bytes) -> None:
    exchange.receive(answers)
    exchange.tell()


def read_run(frame: bytearray, count: int, spent: list[float]) -> None:
    """A range of all entries of the frame, received by pieces."""
    _, bodies = bodies_of_frame(frame, LEDGER)
    exchange, taker = Exchange(Packer()), Taker()
    clocked(lambda: exchange.read(RangeRead(LEDGER, 100_000, 99_999 + count, 64 << 20, None, taker)), spent)
    while buffers := clocked(partial(sent, exchange), spent):
        rest = b""
        answers = []
        for run in RequestReader().read(b"".join(buffers)).items:
            assert isinstance(run, ReadRun)
            first = int(run.entry_ids[0]) - 100_000
            some = bodies.slice(first, first + len(run))
            answers.append(b"".join(v3.read_answers(run.txns, LEDGER, run.entry_ids, some, max_lacs=99_999)))
        data = b"".join(answers)
        for at in range(0, len(data), RECEIVE_BYTES):
            received = rest + data[at : at + RECEIVE_BYTES]
            rest = received[clocked(partial(exchange.receive, received), spent) :]
    assert taker.entries == count


def cases() -> Iterator[tuple[str, Callable[[list[float]], None], int]]:
    for name, entry in (("100 B", 100), ("1 KB", 1000), ("64 KB", 65_536)):
        frame, count = frame_of(FRAME_BYTES, entry)
        yield f"{name}: three bookies add", partial(add_run, frame), count
        longer, more = frame_of(4 * FRAME_BYTES, entry)
        yield f"{name}: one bookie reads", partial(read_run, longer, more), more
    one, _ = frame_of(1, 100)
    yield "one entry: three bookies add", partial(add_run, one), 1
    yield "one entry: one bookie reads", partial(read_run, one, 1), 1


def main(runs: int) -> None:
    print(f"{'':40}{'least':>10}{'median':>10}   ns an entry")
    for name, run, count in cases():
        figures = []
        for _ in range(runs):
            spent = [0.0]
            run(spent)
            figures.append(spent[0] * 1e9 / count)
        print(f"{name:40}{min(figures):>10.0f}{statistics.median(figures):>10.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
