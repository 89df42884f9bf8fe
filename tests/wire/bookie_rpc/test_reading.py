# SPDX-License-Identifier: Apache-2.0
"""A burst read in columns says what the same frames say when each is read by itself, whatever they are."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import RemoteProtocolError
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.connection import AnswerReader, RequestReader
from bk_core.wire.bookie_rpc.frames import I64
from bk_core.wire.bookie_rpc.layouts import MessageReader
from bk_core.wire.bookie_rpc.runs import ABSENT, LAC_TIME, AddAnswers, AddRun, BatchRead, ReadAnswers, ReadRun, Single
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.amount import examples, some
from tests.kit.bookie_wire import FENCE, KEY, as_expected, as_read, burst_of, field, frame, message, told

ALL = ("add", "read", "other", "fence")
WIRES = [(answers, version) for answers in (False, True) for version in (3, 2)]


def reader_of(answers: bool, version: int) -> RequestReader | AnswerReader:
    if answers:
        return AnswerReader(version)
    made = RequestReader()
    made.version = version
    return made


@pytest.mark.rule("L6")
@pytest.mark.parametrize(("answers", "version"), WIRES)
def test_columns_say_what_single_messages_say(answers: bool, version: int) -> None:
    for seed in range(some(160, 40)):
        kinds = [("add",), ("read",), ("add", "read"), ALL][seed % 4]
        reader = reader_of(answers, version)
        for part in range(3):  # the layouts of the first burst serve the others
            burst = b"".join(burst_of(seed + 1000 * part, answers=answers, version=version, count=40, kinds=kinds))
            assert as_read(burst, reader) == as_expected(burst, answers=answers, version=version), seed


@pytest.mark.rule("L6")
@pytest.mark.parametrize(("answers", "version"), WIRES)
@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1), count=st.integers(0, 60))
def test_where_a_receive_ends_changes_nothing(answers: bool, version: int, seed: int, cut: float, count: int) -> None:
    burst = b"".join(burst_of(seed, answers=answers, version=version, count=count, kinds=ALL))
    at = int(cut * len(burst))
    reader = reader_of(answers, version)
    first = reader.read(burst[:at])
    rest = burst[first.used :]
    assert first.fault is None
    assert first.used <= at
    whole, used, fault, _ = as_expected(burst, answers=answers, version=version)
    said = told(first.items) + [_later(item, len(told(first.items))) for item in told(reader.read(rest).items)]
    assert not fault
    assert used == len(burst)
    assert _by_frame(said) == _by_frame(whole)


def _later(item: object, by: int) -> object:
    """The item as if ``by`` frames had come before it in the same burst."""
    if isinstance(item, tuple):
        return (*item[:2], item[2] + by, *item[3:]) if isinstance(item[0], str) else (item[0] + by, *item[1:])
    values = {name: getattr(item, name) for name in item.__dataclass_fields__}
    return type(item)(**{**values, "frame": values["frame"] + by})


def _by_frame(items: list[object]) -> list[object]:
    """Reads and adds of two receives are in another order than those of one."""

    def frame_of(item: Any) -> int:
        if isinstance(item, tuple):
            return int(item[2] if isinstance(item[0], str) else item[0])
        return int(item.frame)

    return sorted(items, key=frame_of)


@pytest.mark.rule("L5")
@pytest.mark.parametrize(("answers", "version"), WIRES)
def test_a_burst_cut_at_any_byte_gives_its_whole_frames(answers: bool, version: int) -> None:
    for count in (3, 20):
        frames = burst_of(count, answers=answers, version=version, count=count, kinds=("add", "read"), large=30)
        ends = [0, *itertools.accumulate(map(len, frames))]
        burst = b"".join(frames)
        for at in range(len(burst) + 1):
            found = reader_of(answers, version).read(burst[:at])
            assert found.fault is None
            assert found.used == max(end for end in ends if end <= at)
            assert len(told(found.items)) == ends.index(found.used)


def add(txn: int, ledger: int, entry: int, body: bytes, order: tuple[int, ...] = (0, 1, 2, 3), **more: int) -> bytes:
    fields: list[tuple[int, int | bytes]] = [(1, ledger), (2, entry), (3, KEY), (4, body)]
    inner = [fields[k] for k in order]
    if "flag" in more:
        inner.insert(more.get("flag_at", 4), (100, more["flag"]))
    return frame(message([(1, message([(1, 3), (2, 2), (3, txn)])), (101, message(inner))]))


@pytest.mark.rule("L6")
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("flag_at", [None, 0, 4])
def test_each_order_of_fields_is_read_in_columns(order: tuple[int, ...], flag_at: int | None) -> None:
    more = {} if flag_at is None else {"flag": 1, "flag_at": flag_at}
    burst = b"".join(add(300 + k, 7, 1000 + k, b"%03d" % k, order, **more) for k in range(50))
    calls = 0

    def counted(content: memoryview, begin: int, number: int, column: I64) -> Single | None:
        nonlocal calls
        calls += 1
        return v3.read_request(content, begin, number, column)

    reader = RequestReader()
    reader._v3 = MessageReader(v3.REQUESTS, counted)
    (run,) = reader.read(burst).items
    assert isinstance(run, AddRun)
    assert calls == 1, "all but the first have its layout"
    assert [bytes(piece) for piece in run.bodies().pieces()] == [b"%03d" % k for k in range(50)]
    assert run.txns.tolist() == list(range(300, 350))
    assert run.entry_ids.tolist() == list(range(1000, 1050))
    assert run.recovery.tolist() == [0 if flag_at is None else 1] * 50
    keys = run.keys()
    assert keys is not None
    assert keys.tobytes() == KEY * 50


@pytest.mark.parametrize("entry", [0, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -1])
@pytest.mark.parametrize("txn", [0, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_large_and_negative_numbers(entry: int, txn: int) -> None:
    for count in (1, 20):
        reader, told_reader = RequestReader(), AnswerReader()
        request = pb.Request()
        request.header.version, request.header.operation, request.header.txnId = pb.VERSION_THREE, pb.READ_ENTRY, txn
        request.readRequest.ledgerId = request.readRequest.entryId = entry
        (run,) = reader.read(v3.framed(request) * count).items
        assert isinstance(run, ReadRun)
        assert set(run.txns.tolist()) == {txn}
        assert set(run.entry_ids.tolist()) == set(run.ledger_ids.tolist()) == {entry}
        response = v3.answer(request)
        response.readResponse.maxLAC = entry
        (answers,) = told_reader.read(v3.framed(response) * count).items
        assert isinstance(answers, ReadAnswers)
        assert set(answers.txns.tolist()) == {txn}
        assert set(answers.max_lacs.tolist()) == set(answers.entry_ids.tolist()) == {entry}
        assert {row[LAC_TIME] for row in answers.rows()} == {ABSENT}
        assert set(answers.body_lengths.tolist()) == {-1}


def test_entries_of_every_size_up_to_the_limit() -> None:
    for size in (0, 1, 31, 127, 128, 16_383, 16_384, 70_000, 2**21 - 1, 2**21, (5 << 20) - 200):
        body = bytes(size)
        copies = 8 if size < 100_000 else 1
        (run,) = RequestReader().read(add(1, 7, 5, body) * copies).items
        assert isinstance(run, AddRun)
        assert run.body_lengths.tolist() == [size] * copies
        assert run.bodies().joined() == body * copies


def test_a_number_that_is_longer_than_it_need_be_is_read() -> None:
    txn = b"\x18\x85\x80\x00"  # 5, in three bytes
    content = field(1, b"\x08\x03\x10\x01" + txn) + field(100, message([(1, 7), (2, 5)]))
    (run,) = RequestReader().read(frame(content) * 30).items
    assert isinstance(run, ReadRun)
    assert set(run.txns.tolist()) == {5}


def test_fields_that_come_twice_are_read_as_protobuf_reads_them() -> None:
    twice = field(1, message([(1, 3), (2, 1), (3, 1)])) + field(100, message([(1, 7), (2, 5), (2, 6)]))
    (run,) = RequestReader().read(frame(twice) * 20).items
    assert isinstance(run, ReadRun)
    assert set(run.entry_ids.tolist()) == {6}


def test_adds_and_reads_in_turn_make_two_runs_and_a_fence_divides_them() -> None:
    read = frame(message([(1, message([(1, 3), (2, 1), (3, 9)])), (100, message([(1, 7), (2, 5)]))]))
    fence = frame(message([(1, message([(1, 3), (2, 1), (3, 9)])), (100, FENCE)]))
    items = RequestReader().read((add(1, 7, 5, b"") + read) * 20 + fence + add(1, 7, 6, b"")).items
    assert [type(item) for item in items] == [AddRun, ReadRun, Single, AddRun]
    assert isinstance(items[0], AddRun)
    assert items[0].frames.tolist() == list(range(0, 40, 2))


def header(version: int, operation: int) -> bytes:
    return field(1, message([(1, version), (2, operation), (3, 1)]))


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (header(2, 2) + field(101, message([(1, 7), (2, 5), (3, KEY), (4, b"")])), "EBADVERSION"),
        (header(3, 12), "EBADREQ"),
        (header(3, 3), "EBADREQ"),
        (header(3, 2), "EBADREQ"),
        (header(3, 10) + field(100, message([(1, 7), (2, 5)])), "EBADREQ"),
    ],
    ids=["version", "batch read", "range read", "no body", "another body"],
)
def test_what_is_not_served_is_refused_and_the_connection_lives(content: bytes, status: str) -> None:
    for before in (0, 20):
        found = RequestReader().read(add(1, 7, 5, b"") * before + frame(content) + add(1, 7, 6, b""))
        single = found.items[-2]
        assert found.fault is None
        assert isinstance(single, Single)
        assert single.status is Status[status]
        told_back = pb.Response.FromString(v3.refusal(single)[4:])
        assert told_back.status == Status[status]
        assert told_back.header.txnId == 1
        if single.request.HasField("addRequest"):
            assert (told_back.addResponse.status, told_back.addResponse.entryId) == (Status[status], 5)


V2_ADD = frame(struct.pack(">I", 2 << 24 | 1 << 16) + KEY + struct.pack(">qqqq", 7, 5, 4, 3))


@pytest.mark.parametrize("before", [0, 3, 20])
def test_the_first_frame_that_is_no_message_of_version_3_changes_the_connection_for_good(before: int) -> None:
    reader = RequestReader()
    found = reader.read(add(1, 7, 5, b"x" * 32) * before + V2_ADD * 20)
    assert found.fault is None
    assert reader.version == 2
    packets = told(RequestReader().read(V2_ADD * 20).items)
    assert told(found.items)[before:] == [_later(item, before) for item in packets]
    then = reader.read(add(1, 7, 5, b"x" * 32))
    assert then.fault is not None, "a message of version 3 is no packet"
    assert then.used == 0


NO_PACKETS = [b"", b"\x02", b"\x02\x09\x00\x00", b"\x02\x01\x00\x00" + KEY, b"\x02\x02\x00\x01" + bytes(16)]


@pytest.mark.parametrize("content", NO_PACKETS)
def test_what_neither_version_knows_is_a_fault_behind_what_came_before_it(content: bytes) -> None:
    for good in (0, 3, 30):
        found = RequestReader().read(V2_ADD * good + frame(content) + V2_ADD * 9)
        assert isinstance(found.fault, RemoteProtocolError)
        assert found.used == good * len(V2_ADD)
        assert sum(len(item) for item in found.items if isinstance(item, AddRun)) == good


def test_version_0_and_1_of_packets_and_their_refused_sisters() -> None:
    ids = struct.pack(">qq", 7, 5)
    packets = [
        (struct.pack(">I", 2), 0, Status.EOK),
        (struct.pack(">I", 1 << 24 | 2 << 16), 1, Status.EOK),
        (struct.pack(">I", 3 << 24 | 2 << 16), 3, Status.EBADVERSION),
        (struct.pack(">I", 0xFF << 24 | 2 << 16), 255, Status.EBADVERSION),
    ]
    for head, version, status in packets:
        for count in (1, 20):
            items = RequestReader().read(frame(head + ids) * count).items
            if status is Status.EOK:
                (run,) = items
                assert isinstance(run, ReadRun)
                assert set(run.txns.tolist()) == {version}
            else:
                found = {(item.request.header.txnId, item.status) for item in items if isinstance(item, Single)}
                assert found == {(version, status)}
    (fence,) = RequestReader().read(frame(struct.pack(">I", 1 << 24 | 2 << 16 | 1) + ids)).items
    assert isinstance(fence, Single)
    assert fence.request.readRequest.flag == pb.ReadRequest.FENCE_LEDGER
    assert not fence.request.readRequest.HasField("masterKey"), "so it is refused: version 1 has no key to fence with"


def test_batch_reads_with_and_without_a_fence() -> None:
    numbers = struct.pack(">qqqiq", 7, 5, 99, -1, 2**40)
    (plain,) = RequestReader().read(frame(struct.pack(">I", 2 << 24 | 7 << 16) + numbers)).items
    assert plain == BatchRead(0, 2, 7, 5, 99, -1, 2**40)
    (fence,) = RequestReader().read(frame(struct.pack(">I", 2 << 24 | 7 << 16 | 5) + numbers + KEY)).items
    assert fence == BatchRead(0, 2, 7, 5, 99, -1, 2**40, fencing=True, high_priority=True, key=KEY)


@pytest.mark.parametrize("version", [3, 2])
def test_a_client_drops_a_bookie_that_answers_nonsense(version: int) -> None:
    rng = random.Random(1)
    for good in (0, 2, 20):
        frames = burst_of(3, answers=True, version=version, count=good, kinds=("add",))
        for nonsense in (b"", b"\x0a", rng.randbytes(40), b"\x0a\x06\x08\x03\x10\x02\x18\x01\x10\x00"):
            found = AnswerReader(version).read(b"".join(frames) + frame(nonsense))
            assert isinstance(found.fault, RemoteProtocolError)
            assert sum(len(item) for item in found.items if isinstance(item, AddAnswers)) == good


def test_an_answer_without_a_body_counts_by_its_header() -> None:
    head = message([(1, message([(1, 3), (2, 2), (3, 11)])), (2, 502)])
    for count in (1, 20):
        (run,) = AnswerReader().read(frame(head) * count).items
        assert isinstance(run, AddAnswers)
        assert set(run.statuses.tolist()) == {Status.EUA}
        assert set(run.txns.tolist()) == {11}


def test_the_status_of_the_header_counts_before_that_of_the_body() -> None:
    inner = message([(1, 403), (2, 7), (3, 5)])
    for outer, expected in ((0, 403), (501, 501)):
        content = message([(1, message([(1, 3), (2, 1), (3, 11)])), (2, outer), (100, inner)])
        for count in (1, 20):
            (run,) = AnswerReader().read(frame(content) * count).items
            assert isinstance(run, ReadAnswers)
            assert set(run.statuses.tolist()) == {expected}


@examples(0.5)
@given(st.binary(max_size=300), st.booleans(), st.sampled_from([3, 2]))
def test_any_bytes_are_read_or_refused(data: bytes, answers: bool, version: int) -> None:
    assert as_read(data, reader_of(answers, version)) == as_expected(data, answers=answers, version=version)
