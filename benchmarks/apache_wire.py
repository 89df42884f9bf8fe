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

import numpy as np

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.model import DigestType
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import AnswerReader, RequestReader
from bk_core.wire.bookie_rpc.frames import frames
from bk_core.wire.bookie_rpc.runs import AddRun, ReadRun
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.bookie_requests import add_requests, read_requests

LEDGER, KEY = 5, bytes(20)
BURST_BYTES = 1 << 20  # about what one receive gives
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
    count, ids = len(batch), batch.entry_ids()
    plain = Bodies.of_batch(batch, Digester(DigestType.DUMMY, b"", LEDGER))
    digester = Digester(DigestType.CRC32C, b"", LEDGER)
    for wire in (v3, v2):
        version = 3 if wire is v3 else 2
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

        def build_adds(wire=wire, txns=txns):
            return add_requests(wire, txns, LEDGER, ids, KEY, plain)

        def build_digested(wire=wire, txns=txns):
            return add_requests(wire, txns, LEDGER, ids, KEY, Bodies.of_batch(batch, digester))

        def build_acks(wire=wire, run=run):
            return wire.add_answers(run.txns, run.ledger_ids, run.entry_ids)

        def build_reads(wire=wire, txns=txns):
            return read_requests(wire, txns, LEDGER, ids)

        def build_found(wire=wire, asked=asked, run=run):
            return wire.read_answers(asked.txns, asked.ledger_ids, asked.entry_ids, run.bodies(), max_lacs=7)

        of = f"v{version} {name}"
        yield f"{of}: client builds adds", build_adds, count
        yield f"{of}: client builds adds with CRC32C", build_digested, count
        yield f"{of}: bookie reads adds", lambda reader=reader, adds=adds: reader.read(adds), count
        yield f"{of}: of that, cutting", lambda adds=adds: frames(adds), count
        yield f"{of}: bookie joins the entries", lambda run=run: run.bodies().joined(), count
        yield f"{of}: bookie builds acks", build_acks, count
        yield f"{of}: client reads acks", lambda answers=answers, acks=acks: answers.read(acks), count
        yield f"{of}: client builds reads", build_reads, count
        yield f"{of}: bookie reads reads", lambda reader=reader, reads=reads: reader.read(reads), count
        yield f"{of}: bookie builds answers", build_found, count
        yield f"{of}: client reads answers", lambda answers=answers, found=found: answers.read(found), count


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
    for wire in (v3, v2):
        version = 3 if wire is v3 else 2
        reader, answers = RequestReader(), AnswerReader(version)
        reader.version = version
        add = b"".join(add_requests(wire, 2, LEDGER, ids, KEY, one))
        ack = wire.add_answers(2, LEDGER, ids)
        yield f"v{version}, one: client builds the add", lambda w=wire: w.add_requests(2, LEDGER, ids, KEY, one), 1
        yield f"v{version}, one: bookie reads the add", lambda reader=reader, add=add: reader.read(add), 1
        yield f"v{version}, one: bookie builds the ack", lambda w=wire: w.add_answers(2, LEDGER, ids), 1
        yield f"v{version}, one: client reads the ack", lambda answers=answers, ack=ack: answers.read(ack), 1


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
