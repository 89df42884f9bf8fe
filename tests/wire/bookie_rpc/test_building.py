# SPDX-License-Identifier: Apache-2.0
"""What is built in columns is what protobuf writes, and is read back as it was meant."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.apache import split_entries
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.errors import InvalidArgumentError
from bk_core.model import DigestType
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import AnswerReader, RequestReader
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX
from bk_core.wire.bookie_rpc.runs import (
    ABSENT,
    PRIORITY,
    AddAnswers,
    AddRun,
    BatchAnswer,
    BatchRead,
    ReadAnswers,
    ReadRun,
    Single,
    WireAnswer,
)
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.apache_frames import entry_bytes
from tests.kit.bookie_requests import add_requests, fencing_read, read_requests
from tests.kit.bookie_wire import KEY

UNSIGNED = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
SIGNED = st.one_of(st.integers(-1, 300), st.integers(-(2**63), 2**63 - 1))
ROWS = st.lists(st.tuples(UNSIGNED, SIGNED, SIGNED, st.binary(max_size=200)), min_size=1, max_size=40)
EQUAL_ROWS = st.lists(st.tuples(UNSIGNED, SIGNED, SIGNED, st.binary(min_size=9, max_size=9)), min_size=1, max_size=40)
EDGES = st.sampled_from([1, 2, 3, 127, 128, 129, 16_383, 16_384, 2**40, 2**63 - 1])
MANY_ROWS = st.lists(st.tuples(EDGES, EDGES, EDGES, st.binary(max_size=4)), min_size=30, max_size=60)
"""More rows than are built one by one, of few widths: several rows of each, in any order."""
COPIES = st.sampled_from([0, 50, 1 << 20])


def i64(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def u64(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def bodies_of(entries: list[bytes]) -> Bodies:
    return Bodies.of_entries(b"".join(entries), i64(list(map(len, entries))))


def header(message: pb.Request | pb.Response, operation: pb.OperationType, txn: int, priority: int = 0) -> None:
    message.header.version, message.header.operation, message.header.txnId = pb.VERSION_THREE, operation, txn
    if priority:
        message.header.priority = priority


@pytest.mark.rule("L6")
@given(
    st.one_of(ROWS, EQUAL_ROWS, MANY_ROWS), st.booleans(), st.sampled_from([0, 100]), st.sampled_from([0, 1]), COPIES
)
def test_adds_are_protobufs_own_bytes(
    rows: list[tuple[int, int, int, bytes]], recovery: bool, priority: int, write_flags: int, copy_below: int
) -> None:
    txns, ledgers, entries, bodies = map(list, zip(*rows, strict=True))
    expected = []
    for txn, ledger, entry, body in rows:
        request = pb.Request()
        header(request, pb.ADD_ENTRY, txn, priority)
        add = request.addRequest
        add.ledgerId, add.entryId, add.masterKey, add.body = ledger, entry, KEY, body
        if recovery:
            add.flag = pb.AddRequest.RECOVERY_ADD
        if write_flags:
            add.writeFlags = write_flags
        expected.append(v3.framed(request))
    built = v3.add_requests(
        u64(txns),
        i64(ledgers),
        i64(entries),
        KEY,
        bodies_of(bodies),
        recovery=recovery,
        priority=priority,
        write_flags=write_flags,
        copy_below=copy_below,
    )
    assert b"".join(built) == b"".join(expected)
    (run,) = RequestReader().read(b"".join(built)).items
    assert isinstance(run, AddRun)
    assert run.bodies().joined() == b"".join(bodies)
    assert (run.txns.tolist(), run.ledger_ids.tolist(), run.entry_ids.tolist()) == (txns, ledgers, entries)
    assert set(run.recovery.tolist()) == {int(recovery)}
    assert {row[PRIORITY] for row in run.rows()} == {priority}
    assert set(run.write_flags.tolist()) == {write_flags}


@pytest.mark.rule("L6")
@given(
    st.one_of(
        st.lists(st.tuples(UNSIGNED, SIGNED, SIGNED, st.sampled_from(list(Status))), min_size=1, max_size=40),
        st.lists(st.tuples(EDGES, EDGES, EDGES, st.sampled_from(list(Status))), min_size=30, max_size=60),
    )
)
def test_reads_and_plain_answers_are_protobufs_own_bytes(rows: list[tuple[int, int, int, Status]]) -> None:
    txns, ledgers, entries, statuses = map(list, zip(*rows, strict=True))
    reads, adds, refused = [], [], []
    for txn, ledger, entry, status in rows:
        request = pb.Request()
        header(request, pb.READ_ENTRY, txn, 100)
        request.readRequest.ledgerId, request.readRequest.entryId = ledger, entry
        reads.append(v3.framed(request))
        refused.append(v3.framed(v3.answer(request, status)))
        response = pb.Response(status=int(status))
        header(response, pb.ADD_ENTRY, txn)
        answer = response.addResponse
        answer.status, answer.ledgerId, answer.entryId = int(status), ledger, entry
        adds.append(v3.framed(response))
    numbers = u64(txns), i64(ledgers), i64(entries)
    assert v3.read_requests(*numbers, priority=100) == b"".join(reads)
    assert v3.add_answers(*numbers, i64(statuses)) == b"".join(adds)
    assert [v3.add_answer(*numbers, int(status)) for *numbers, status in rows] == adds
    assert v3.refused_reads(*numbers, i64(statuses)) == b"".join(refused)


@pytest.mark.rule("MUST1")
def test_each_ack_of_many_widths_names_its_own_add() -> None:
    entries = list(range(100, 200)) + list(range(16_350, 16_450))
    txns = entries[::-1]
    (run,) = AnswerReader().read(v3.add_answers(u64(txns), 7, i64(entries))).items
    assert isinstance(run, AddAnswers)
    assert list(zip(run.txns.tolist(), run.entry_ids.tolist(), strict=True)) == list(zip(txns, entries, strict=True))


@pytest.mark.rule("L6")
@given(st.one_of(ROWS, EQUAL_ROWS, MANY_ROWS), st.sampled_from([None, -1, 5, "each"]), st.booleans(), COPIES)
def test_read_answers_are_protobufs_own_bytes(
    rows: list[tuple[int, int, int, bytes]], lac: int | str | None, timed: bool, copy_below: int
) -> None:
    txns, ledgers, entries, bodies = map(list, zip(*rows, strict=True))
    expected = []
    for txn, ledger, entry, body in rows:
        response = pb.Response(status=pb.EOK)
        header(response, pb.READ_ENTRY, txn)
        answer = response.readResponse
        answer.status, answer.ledgerId, answer.entryId, answer.body = pb.EOK, ledger, entry, body
        if lac is not None:
            answer.maxLAC = entry if lac == "each" else int(lac)
        if timed:
            answer.lacUpdateTimestamp = 1_700_000_000_123
        expected.append(v3.framed(response))
    max_lacs = i64(entries) if lac == "each" else None if lac is None else int(lac)
    times = 1_700_000_000_123 if timed else None
    numbers = u64(txns), i64(ledgers), i64(entries)
    built = v3.read_answers(*numbers, bodies_of(bodies), max_lacs=max_lacs, lac_times=times, copy_below=copy_below)
    assert b"".join(built) == b"".join(expected)
    (run,) = AnswerReader().read(b"".join(built)).items
    assert isinstance(run, ReadAnswers)
    assert run.bodies().joined() == b"".join(bodies)
    expected_lacs = [ABSENT if lac is None else lac] * len(rows)
    assert run.max_lacs.tolist() == (entries if lac == "each" else expected_lacs)


@pytest.mark.rule("L6")
@given(st.one_of(ROWS, EQUAL_ROWS, MANY_ROWS), st.booleans(), st.sampled_from([0, 100]), COPIES)
def test_packets_of_version_2_are_read_as_they_were_meant(
    rows: list[tuple[int, int, int, bytes]], recovery: bool, priority: int, copy_below: int
) -> None:
    _, ledgers, entries, _ = map(list, zip(*rows, strict=True))
    whole = [struct.pack(">qqqq", ledger, entry, -1, 0) + body for _, ledger, entry, body in rows]
    numbers = v2.VERSION, i64(ledgers), i64(entries)
    added = add_requests(
        v2, *numbers, KEY, bodies_of(whole), recovery=recovery, priority=priority, copy_below=copy_below
    )
    reader, answers = RequestReader(), AnswerReader(2)
    (adds,) = reader.read(b"".join(added)).items
    assert isinstance(adds, AddRun)
    assert adds.bodies().joined() == b"".join(whole)
    assert (adds.ledger_ids.tolist(), adds.entry_ids.tolist()) == (ledgers, entries)
    assert set(adds.recovery.tolist()) == {int(recovery)}
    assert {row[PRIORITY] for row in adds.rows()} == {priority}
    (reads,) = reader.read(read_requests(v2, *numbers, priority=priority)).items
    assert isinstance(reads, ReadRun)
    assert (reads.ledger_ids.tolist(), reads.entry_ids.tolist()) == (ledgers, entries)
    found = v2.read_answers(*numbers, bodies_of(whole), copy_below=copy_below)
    (read,) = answers.read(b"".join(found)).items
    assert isinstance(read, ReadAnswers)
    assert read.bodies().joined() == b"".join(whole)
    assert (read.ledger_ids.tolist(), read.entry_ids.tolist()) == (ledgers, entries)
    batch = BatchRead(0, 2, ledgers[0], entries[0], 77, 10, -1)
    (asked,) = reader.read(v2.batch_read(batch)).items
    assert asked == batch
    (told,) = answers.read(b"".join(v2.batch_answer(batch, bodies_of(whole), copy_below=copy_below))).items
    assert isinstance(told, BatchAnswer)
    assert list(map(bytes, told.bodies.pieces())) == whole
    assert (told.request_id, told.ledger_id, told.first_entry_id) == (77, ledgers[0], entries[0])


@given(st.lists(st.tuples(SIGNED, SIGNED, st.sampled_from(list(Status)), st.integers(0, 2)), min_size=1, max_size=40))
def test_statuses_of_version_2(rows: list[tuple[int, int, Status, int]]) -> None:
    ledgers, entries, statuses, versions = map(list, zip(*rows, strict=True))
    sent = [Status.EIO if status is Status.EUNKNOWNLEDGERSTATE else status for status in statuses]
    for built, kind in ((v2.add_answers, AddAnswers), (v2.refused_reads, ReadAnswers)):
        (run,) = AnswerReader(2).read(built(u64(versions), i64(ledgers), i64(entries), i64(statuses))).items
        assert isinstance(run, (AddAnswers, ReadAnswers))
        assert isinstance(run, kind)
        assert run.statuses.tolist() == sent
        assert run.txns.tolist() == versions
        assert run.entry_ids.tolist() == entries
    numbers = zip(versions, ledgers, entries, map(int, statuses), strict=True)
    all_at_once = v2.add_answers(u64(versions), i64(ledgers), i64(entries), i64(statuses))
    assert b"".join(v2.add_answer(*each) for each in numbers) == all_at_once


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize("sizes", [[5] * 40, [0, 5, 1000], [20_000] * 3, [7]])
@pytest.mark.parametrize("wire", [v3, v2], ids=["v3", "v2"])
def test_entries_of_a_batch_arrive_in_apaches_layout(digest_type: DigestType, sizes: list[int], wire: object) -> None:
    batch = EntryBatch.from_list([bytes([k % 256]) * size for k, size in enumerate(sizes)], first_entry_id=100)
    batch = replace(batch, ledger_id=7, lac=99, length_before=12)
    digester = Digester(digest_type, b"passwd", 7)
    bodies = Bodies.of_batch(batch, digester)
    assert bodies.joined() == b"".join(entry_bytes(batch, digester))
    module = v3 if wire is v3 else v2
    burst = b"".join(add_requests(module, 2, 7, batch.entry_ids(), KEY, bodies))
    (run,) = RequestReader().read(burst).items
    assert isinstance(run, AddRun)
    arrived = run.bodies()
    lengths = np.asarray(arrived.lengths, dtype=np.uint32)
    begins = lengths.cumsum(dtype=np.int64) - lengths
    assert split_entries(memoryview(arrived.joined()), begins, lengths, digester).to_list() == batch.to_list()
    assert arrived.headers().tolist() == bodies.headers().tolist()
    assert arrived.headers()[:, 1].tolist() == batch.entry_ids().tolist()


def test_headers_of_entries_that_are_too_short_are_minus_one() -> None:
    entry = struct.pack(">qqqq", 7, 5, 4, 3)
    bodies = bodies_of([entry, entry[:31], b"", entry + b"x"])
    assert bodies.headers().tolist() == [[7, 5, 4, 3], [-1] * 4, [-1] * 4, [7, 5, 4, 3]]


def test_lengths_that_do_not_add_up_are_refused() -> None:
    for lengths in ([3, 3], [8, -1], [4]):
        with pytest.raises(InvalidArgumentError):
            Bodies.of_entries(b"1234567", i64(lengths))


@pytest.mark.rule("L5")
def test_an_entry_of_the_greatest_size_fits_into_a_frame_of_each_kind() -> None:
    greatest = i64([2**63 - 1])
    bodies = bodies_of([bytes(32 + 20 + ENTRY_BYTES_MAX)])
    for module in (v3, v2):
        txn = 2**63 - 1 if module is v3 else 2
        more = {} if module is v2 else {"write_flags": -1}
        head = {"recovery": True, "priority": 2**32 - 1}
        added = add_requests(module, txn, -1, greatest, KEY, bodies, **head, **more)
        assert sum(map(len, added)) <= FRAME_BYTES_MAX
        read = module.read_answers(txn, -1, greatest, bodies, max_lacs=-1, lac_times=-1)
        assert sum(map(len, read)) <= FRAME_BYTES_MAX


def test_large_entries_are_sent_from_where_they_are() -> None:
    payload = bytes(100_000)
    bodies = Bodies.of_entries(payload, i64([50_000, 50_000]))
    for built in (
        v3.add_requests(i64([1, 2]), 7, i64([5, 6]), KEY, bodies),
        v3.read_answers(i64([1, 2]), 7, i64([5, 6]), bodies),
        v2.read_answers(2, 7, i64([5, 6]), bodies),
    ):
        views = [part for part in built if isinstance(part, memoryview)]
        assert [len(view) for view in views] == [50_000, 50_000]
        assert all(view.obj is payload for view in views)
        assert len(built) <= 5


def test_nothing_is_built_of_nothing() -> None:
    none, empty = i64([]), Bodies.of_entries(b"", i64([]))
    for module in (v3, v2):
        assert add_requests(module, none, 7, none, KEY, empty) == []
        assert module.read_answers(2, 7, none, empty) == []
        assert read_requests(module, none, 7, none) == module.add_answers(none, 7, none) == b""
    assert empty.headers().shape == (0, 4)


SINGLE = {
    "writeLac": pb.WRITE_LAC,
    "readLac": pb.READ_LAC,
    "forceLedger": pb.FORCE_LEDGER,
    "getBookieInfo": pb.GET_BOOKIE_INFO,
    "getListOfEntriesOfLedger": pb.GET_LIST_OF_ENTRIES_OF_LEDGER,
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_answers_of_each_operation_name_what_was_asked(name: str) -> None:
    request = v3.request(SINGLE[name], 9, priority=100)
    body = getattr(request, name + "Request")
    if name == "getBookieInfo":
        body.requested = 3
    else:
        body.ledgerId = 7
    if name == "writeLac":
        body.lac, body.masterKey, body.body = 5, KEY, b"lac"
    (single,) = RequestReader().read(v3.framed(request)).items
    assert isinstance(single, Single)
    assert single.request == request
    (answer,) = AnswerReader().read(v3.framed(v3.answer(single.request, Status.ENOLEDGER))).items
    assert isinstance(answer, WireAnswer)
    assert answer.status is Status.ENOLEDGER
    assert answer.response.header.txnId == 9
    told = getattr(answer.response, name + "Response")
    assert told.status == Status.ENOLEDGER
    assert name == "getBookieInfo" or told.ledgerId == 7


def test_authentication_in_both_versions() -> None:
    request = v3.request(pb.AUTH, 9)
    request.authRequest.authPluginName, request.authRequest.payload = "sasl", b"\x00token"
    (single,) = RequestReader().read(v3.framed(request)).items
    assert isinstance(single, Single)
    assert single.request == request
    (of_v2,) = RequestReader().read(v2.auth(request.authRequest)).items
    assert isinstance(of_v2, Single)
    assert of_v2.request.authRequest == request.authRequest
    (answer,) = AnswerReader(2).read(v2.auth(request.authRequest)).items
    assert isinstance(answer, WireAnswer)
    assert answer.status is Status.EOK
    assert answer.response.authResponse == request.authRequest


def test_refusals_of_version_2_name_the_request_they_refuse() -> None:
    reader = RequestReader()
    fence = fencing_read(7, -1, KEY, priority=100)
    (single,) = reader.read(fence).items
    assert isinstance(single, Single)
    (run,) = AnswerReader(2).read(v2.refusal(replace(single, status=Status.EUA))).items
    assert isinstance(run, ReadAnswers)
    assert (run.statuses.tolist(), run.entry_ids.tolist()) == ([Status.EUA], [-1])
    batch = BatchRead(0, 2, 7, 5, 77, 10, -1, status=Status.ENOENTRY)
    (told,) = AnswerReader(2).read(v2.refusal(batch)).items
    assert isinstance(told, BatchAnswer)
    assert (told.request_id, told.status, len(told.bodies)) == (77, Status.ENOENTRY, 0)
