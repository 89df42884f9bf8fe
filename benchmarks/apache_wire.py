# SPDX-License-Identifier: Apache-2.0
"""What the codecs of Apache's wire cost by themselves, without sockets: nanoseconds of CPU an entry.

``python -m benchmarks.apache_wire [RUNS]`` prints the least and the median of the runs for bursts of adds, reads and
their answers, of version 3 and 2, on both sides; CPU time, for wall time would say more of the machine's other work.
Beside it protobuf's own classes do the same, one message at a time. The last lines are a burst of one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.model import DigestType
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import AnswerReader, RequestReader
from bk_core.wire.bookie_rpc.frames import Buffer, frames
from bk_core.wire.bookie_rpc.runs import AddRun, ReadRun
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.bookie_requests import Wire, add_requests, read_requests

LEDGER, KEY = 5, bytes(20)
BURST_BYTES = 1 << 20  # about what one receive gives
WIRES: tuple[tuple[Wire, int], ...] = ((v3, 3), (v2, 2))
Case = tuple[str, Callable[[], object], int]


def batch_of(lengths: list[int]) -> EntryBatch:
    payload = np.random.default_rng(4711).bytes(sum(lengths))
    return EntryBatch(
        lengths=np.array(lengths, dtype=np.uint32),
        payload=memoryview(payload),
        ledger_id=LEDGER,
        first_entry_id=100_000,
    )


def cases() -> Iterator[Case]:
    """What is timed, and how many entries it is for."""
    lengths = {size: [size] * (BURST_BYTES // (size + 100)) for size in (100, 1000)}
    rng = np.random.default_rng(4711)
    for name, given in (
        ("100 B", lengths[100]),
        ("1 KB", lengths[1000]),
        ("50-150 B", rng.integers(50, 151, len(lengths[100])).tolist()),
    ):
        yield from burst_cases(name, batch_of(given))
    yield from one_message_at_a_time(batch_of(lengths[100]))
    yield from single_cases()


def burst_cases(name: str, batch: EntryBatch) -> Iterator[Case]:
    for wire, version in WIRES:
        yield from version_cases(wire, version, name, batch)


def version_cases(wire: Wire, version: int, name: str, batch: EntryBatch) -> Iterator[Case]:
    count, ids = len(batch), batch.entry_ids()
    plain = Bodies.of_batch(batch, Digester(DigestType.DUMMY, b"", LEDGER))
    digester = Digester(DigestType.CRC32C, b"", LEDGER)
    txns = np.arange(1_000_000, 1_000_000 + count) if version == 3 else 2
    reader, answers = RequestReader(), AnswerReader(version)
    reader.version = version

    adds = b"".join(add_requests(wire, txns, LEDGER, ids, KEY, plain))
    (run,) = reader.read(adds).items
    assert isinstance(run, AddRun)
    acks = wire.add_answers(run.txns, run.ledger_ids, run.entry_ids)
    reads = read_requests(wire, txns, LEDGER, ids)
    (asked,) = reader.read(reads).items
    assert isinstance(asked, ReadRun)
    found = b"".join(wire.read_answers(asked.txns, asked.ledger_ids, asked.entry_ids, run.bodies(), max_lacs=7))

    def build_digested() -> list[Buffer]:
        return add_requests(wire, txns, LEDGER, ids, KEY, Bodies.of_batch(batch, digester))

    def join_entries() -> Buffer:
        return run.bodies().joined()

    def build_acks() -> bytes:
        return wire.add_answers(run.txns, run.ledger_ids, run.entry_ids)

    def build_found() -> list[Buffer]:
        return wire.read_answers(asked.txns, asked.ledger_ids, asked.entry_ids, run.bodies(), max_lacs=7)

    of = f"v{version} {name}"
    yield f"{of}: client builds adds", partial(add_requests, wire, txns, LEDGER, ids, KEY, plain), count
    yield f"{of}: client builds adds with CRC32C", build_digested, count
    yield f"{of}: bookie reads adds", partial(reader.read, adds), count
    yield f"{of}: of that, cutting", partial(frames, adds), count
    yield f"{of}: bookie joins the entries", join_entries, count
    yield f"{of}: bookie builds acks", build_acks, count
    yield f"{of}: client reads acks", partial(answers.read, acks), count
    yield f"{of}: client builds reads", partial(read_requests, wire, txns, LEDGER, ids), count
    yield f"{of}: bookie reads reads", partial(reader.read, reads), count
    yield f"{of}: bookie builds answers", build_found, count
    yield f"{of}: client reads answers", partial(answers.read, found), count


def one_message_at_a_time(batch: EntryBatch) -> Iterator[Case]:
    """The same adds and acks by protobuf's classes."""
    entries = batch.to_list()

    def build() -> list[bytes]:
        made = []
        for k, entry in enumerate(entries):
            request = v3.request(pb.ADD_ENTRY, k)
            add = request.addRequest
            add.ledgerId, add.entryId, add.masterKey, add.body = LEDGER, k, KEY, entry
            made.append(v3.framed(request))
        return made

    built = build()

    def answer() -> None:
        for data in built:
            v3.framed(v3.answer(pb.Request.FromString(data[4:])))

    yield "protobuf 100 B: client builds adds", build, len(entries)
    yield "protobuf 100 B: bookie reads adds and builds acks", answer, len(entries)


def single_cases() -> Iterator[Case]:
    one = Bodies.of_batch(batch_of([100]), Digester(DigestType.DUMMY, b"", LEDGER))
    ids = np.array([100_000])
    for wire, version in WIRES:
        reader, answers = RequestReader(), AnswerReader(version)
        reader.version = version
        # adds of version 2, which our client never sends, are made by the tests' kit
        build = v3.add_requests if version == 3 else partial(add_requests, wire)
        add = b"".join(build(2, LEDGER, ids, KEY, one))
        ack = wire.add_answers(2, LEDGER, ids)
        yield f"v{version}, one: client builds the add", partial(build, 2, LEDGER, ids, KEY, one), 1
        yield f"v{version}, one: bookie reads the add", partial(reader.read, add), 1
        yield f"v{version}, one: bookie builds the ack", partial(wire.add_answers, 2, LEDGER, ids), 1
        yield f"v{version}, one: client reads the ack", partial(answers.read, ack), 1


def main(runs: int) -> None:
    print(f"{'':52} {'least':>8} {'median':>8}   ns of CPU an entry")
    for name, work, count in cases():
        work()
        again = max(1, 2000 // count)
        spent = []
        for _ in range(runs):
            began = time.process_time_ns()
            for _ in range(again):
                work()
            spent.append((time.process_time_ns() - began) / (count * again))
        print(f"{name:52} {min(spent):8.0f} {statistics.median(spent):8.0f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
