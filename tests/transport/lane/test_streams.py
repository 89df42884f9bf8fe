# SPDX-License-Identifier: Apache-2.0
"""The client's side of the lane's streams: what leaves in one message, and who hears what."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import pytest

from bk_core.errors import Outcome, RemoteProtocolError, TransportError
from bk_core.transport.lane.direct import ALONE_BYTES
from bk_core.transport.lane.messages import LANE_VERSION, hello
from bk_core.transport.lane.streams import (
    MESSAGE_FRAMES_BYTES,
    MESSAGE_FRAMES_MAX,
    AddStream,
    ControlStream,
    LaneStream,
    ReadStream,
    too_late,
)
from bk_core.transport.port import NewSession, ReadPart, RefusedError
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.grpc_frames import pack
from bk_core.wire.lane.reasons import NAMED_MAX, AttachMode, Cut, Reason
from bk_core.wire.proto import lane_pb2
from tests.kit.lanes import KEY, Listener

WELCOME = lane_pb2.HelloAnswer(version=1, bookie_id="b1", instance_id="c")


def opened(kind: type[Any]) -> Any:
    """A stream that was welcomed."""
    stream = kind(hello("b1", "c", "", "test"))
    stream.next_message()
    answer = {
        AddStream: lane_pb2.AddResponse,
        ReadStream: lane_pb2.ReadResponse,
        ControlStream: lane_pb2.ControlResponse,
    }
    stream.receive(answer[kind](hello=WELCOME).SerializeToString())
    return stream


def sent(stream: AddStream) -> Any:
    """The next request that leaves, or None."""
    message = stream.next_message()
    return None if message is None else lane_pb2.AddRequest.FromString(pack(message))


def attach(stream: AddStream, session: int, listener: Listener) -> None:
    stream.attach(NewSession(7, KEY, AttachMode.WRITE, session, listener))


@pytest.mark.rule("L4")
async def test_all_that_is_queued_leaves_in_one_message() -> None:
    stream, listener = opened(AddStream), Listener()
    for session in (1, 2, 3):
        attach(stream, session, listener)
        stream.send(session, b"frame of %d " % session)
    stream.detach(2)
    message = sent(stream)
    assert [one.session for one in message.attach] == [1, 2, 3]
    assert message.frames == b"frame of 1 frame of 3 ", "what was detached is not sent"
    assert list(message.detach) == [2]
    assert sent(stream) is None


async def test_many_sessions_and_grants_leave_in_several_messages_each_behind_what_it_needs() -> None:
    """A bookie takes no more of them with one message, because its loop stands still meanwhile."""
    stream, listener, count = opened(AddStream), Listener(), 2 * NAMED_MAX + 1
    stream._secure = True
    for session in range(1, count + 1):
        stream.show(1000 + session, b"new for another")
        stream.show(session, b"%d" % session)
        stream.attach(NewSession(session, KEY, AttachMode.WRITE, session, listener))
        stream.send(session, b"%d " % session)
    stream.detach(1)
    shown, attached, frames, detached = set[bytes](), list[int](), b"", list[int]()
    while (message := sent(stream)) is not None:
        assert len(message.grants) <= NAMED_MAX
        assert len(message.attach) <= NAMED_MAX
        shown |= set(message.grants)
        attached += [each.session for each in message.attach]
        assert all(b"%d" % session in shown for session in attached)
        frames += message.frames
        assert set(map(int, frames.split())) <= set(attached)
        detached += message.detach
        assert not detached or frames.split()[-1] == b"%d" % count
    assert (attached, detached) == ([*range(1, count + 1)], [1])
    assert [*map(int, frames.split())] == [*range(2, count + 1)]


async def test_detach_leaves_behind_the_last_frame() -> None:
    stream, listener = opened(AddStream), Listener()
    attach(stream, 1, listener)
    attach(stream, 2, listener)
    stream.send(1, bytes(MESSAGE_FRAMES_BYTES))
    stream.send(1, b"more")
    stream.detach(2)
    first, second = sent(stream), sent(stream)
    assert (len(first.frames), list(first.detach)) == (MESSAGE_FRAMES_BYTES, [])
    assert (second.frames, list(second.detach)) == (b"more", [2])


@pytest.mark.rule("L5")
async def test_large_frames_travel_alone_and_small_ones_in_bounded_numbers() -> None:
    stream, listener = opened(AddStream), Listener()
    attach(stream, 1, listener)
    stream.alone_bytes = ALONE_BYTES
    small = MESSAGE_FRAMES_BYTES // ALONE_BYTES + 1
    lengths = [MESSAGE_FRAMES_BYTES + 1, 5, ALONE_BYTES, ALONE_BYTES, 1, *[ALONE_BYTES - 1] * small]
    for length in (*lengths, *[1] * (MESSAGE_FRAMES_MAX + 1)):
        stream.send(1, bytes(length))
    messages = list(itertools.takewhile(bool, iter(lambda: sent(stream), None)))
    sizes = [len(message.frames) for message in messages if message]
    gathered = (small - 1) * (ALONE_BYTES - 1)
    assert sizes[:4] == [MESSAGE_FRAMES_BYTES + 1, 5, ALONE_BYTES, ALONE_BYTES]
    assert sizes[4:] == [1 + gathered, ALONE_BYTES - 1 + MESSAGE_FRAMES_MAX - 1, 2]


async def test_frames_of_ended_sessions_hold_up_nobody() -> None:
    stream, listener = opened(AddStream), Listener()
    attach(stream, 1, listener)
    attach(stream, 2, listener)
    for _ in range(2 * MESSAGE_FRAMES_MAX):
        stream.send(1, b"ended")
    stream.detach(1)
    stream.send(2, b"goes on")
    message = sent(stream)
    assert (message.frames, list(message.detach)) == (b"goes on", [1])


async def test_large_frames_share_a_message_on_a_lane_that_gains_nothing_otherwise() -> None:
    stream, listener = opened(AddStream), Listener()
    attach(stream, 1, listener)
    for _ in range(MESSAGE_FRAMES_BYTES // ALONE_BYTES):
        stream.send(1, bytes(ALONE_BYTES))
    message = sent(stream)
    assert len(message.frames) == MESSAGE_FRAMES_BYTES


@pytest.mark.rule("P1")
async def test_ended_session_is_told_once_and_its_frames_are_dropped() -> None:
    stream, listener = opened(AddStream), Listener()
    attach(stream, 1, listener)
    for _ in range(3):
        stream.send(1, b"sent")
    sent(stream)
    stream.send(1, b"queued")
    end = lane_pb2.SessionEnded(session=1, frames=3, reason=lane_pb2.FENCED)
    stream.receive(lane_pb2.AddResponse(sessions=[1, 9], frames=[2, 5], ended=[end, end]).SerializeToString())
    assert listener.said == [("acked", 1, 2), ("ended", 1, 3, Reason.FENCED)]
    stream.send(1, b"late")
    message = sent(stream)
    assert (message.frames, list(message.detach)) == (b"", [1])


@pytest.mark.rule("P1")
@pytest.mark.parametrize(
    "answer",
    [
        lane_pb2.AddResponse(sessions=[1], frames=[2]),
        lane_pb2.AddResponse(sessions=[1, 2], frames=[1]),
        lane_pb2.AddResponse(ended=[lane_pb2.SessionEnded(session=1, frames=5)]),
    ],
)
async def test_acks_of_frames_that_were_never_sent_end_the_stream(answer: lane_pb2.AddResponse) -> None:
    stream, listener = opened(AddStream), Listener()
    attach(stream, 1, listener)
    stream.send(1, b"x")
    sent(stream)

    with pytest.raises(RemoteProtocolError):
        stream.receive(answer.SerializeToString())
    assert listener.said == []


async def test_break_is_told_to_everybody_once() -> None:
    stream, listener = opened(AddStream), Listener()
    attach(stream, 1, listener)
    attach(stream, 2, listener)
    stream.fail(TransportError("cut"))
    stream.fail(TransportError("cut again"))
    assert [words[:2] for words in listener.said] == [("broken", 1), ("broken", 2)]
    assert str(stream.broken).count("again") == 0, "why it broke, not what came of that"


@pytest.mark.rule("P4")
async def test_answer_of_a_read_is_parts_then_a_trailer() -> None:
    stream = opened(ReadStream)
    call = stream.read(7, 0, 9, 1000, None)
    stream.next_message()
    rest = lane_pb2.ReadResponse(id=1, trailer=lane_pb2.ReadTrailer(answered_through=9)).SerializeToString()
    stream.receive(lane_pb2.ReadResponse(id=1).SerializeToString(), memoryview(b"some frames"))
    stream.receive(rest, memoryview(b"last"))
    first, second, third = await call.next(), await call.next(), await call.next()
    assert isinstance(first, ReadPart)
    assert isinstance(second, ReadPart)
    assert (bytes(first.frames), bytes(second.frames)) == (b"some frames", b"last")
    assert third == ReadTrailer(9)
    call.cancel()
    assert stream.next_message() is None, "nothing is cancelled after its end"


@pytest.mark.rule("L5")
async def test_a_bookie_that_answers_without_end_is_cut_off_and_keeps_nothing_in_memory() -> None:
    stream = opened(ReadStream)
    call = stream.read(7, 0, 9, 1000, None)
    part = lane_pb2.ReadResponse(id=1).SerializeToString(), memoryview(bytes(4 << 20))
    for _ in range(2):
        stream.receive(*part)
    with pytest.raises(RemoteProtocolError, match="more than was asked for"):
        stream.receive(*part)
    assert len(call.answers) == 2


async def test_each_read_has_its_own_deadline_which_each_part_puts_off() -> None:
    stream, told = opened(ReadStream), list[tuple[str, object]]()
    calls = [stream.read(7, 0, 9, 1000, None, deadline_s=deadline_s) for deadline_s in (30.0, 0.3, 0.3)]
    for name, call in zip(("long", "short", "other"), calls, strict=True):
        call.tell(partial(lambda name, *said: told.extend((name, each) for each in said if each is not None), name))
    waited = stream.read(7, 0, 9, 1000, None, deadline_s=0.3)
    idle = stream.read(7, 0, 9, 1000, None, deadline_s=0.05)
    while stream.next_message() is not None:
        pass
    await asyncio.sleep(0.2)
    stream.receive(lane_pb2.ReadResponse(id=3).SerializeToString(), memoryview(b"part"))
    assert calls[2].due > calls[1].due + 0.1
    with pytest.raises(RefusedError) as late:
        await waited.next()
    assert late.value.reason is Reason.TIMEOUT
    names = [name for name, answer in told if isinstance(answer, RefusedError)]
    assert "short" in names
    await asyncio.sleep(0.3)
    assert [(name, type(answer)) for name, answer in told if name != "long"] == [
        ("other", memoryview), ("short", RefusedError), ("other", RefusedError)
    ]  # fmt: skip
    message = stream.next_message()
    assert message is not None
    assert sorted(lane_pb2.ReadRequest.FromString(message.rest).cancel) == [2, 3, 4], "the bookie need not go on"
    stream.fail(TransportError("it broke"))
    assert isinstance(told[-1][1], TransportError)
    assert told[-1][0] == "long"
    with pytest.raises(TransportError, match="it broke"):
        await idle.next()


async def test_a_version_that_was_not_offered_is_refused() -> None:
    stream = ControlStream(hello("b1", "c", "", "test"))
    stream.next_message()
    answer = lane_pb2.ControlResponse(hello=lane_pb2.HelloAnswer(version=2, bookie_id="b1", instance_id="c"))
    with pytest.raises(RemoteProtocolError, match="version"):
        stream.receive(answer.SerializeToString())


async def test_cancelled_read_says_so_after_it_was_asked() -> None:
    stream = opened(ReadStream)
    stream.read(7, 0, 9, 1000, None).cancel()
    stream.read(7, 10, 19, 1000, KEY)
    messages = [lane_pb2.ReadRequest.FromString(stream.next_message().rest) for _ in range(2)]
    assert [(m.id, m.fence, m.ledger_key, list(m.cancel)) for m in messages] == [
        (1, False, b"", []),
        (2, True, KEY, [1]),
    ]


async def test_refused_and_cut_reads_raise() -> None:
    stream = opened(ReadStream)
    refused, cut = stream.read(7, 0, 9, 1000, None), stream.read(7, 0, 9, 1000, None)
    trailer = lane_pb2.ReadTrailer(reason=lane_pb2.DELETED, message="gone")
    stream.receive(lane_pb2.ReadResponse(id=1, trailer=trailer).SerializeToString())
    with pytest.raises(RefusedError) as error:
        await refused.next()
    assert error.value.reason is Reason.DELETED
    stream.fail(TransportError("cut"))
    with pytest.raises(TransportError):
        await cut.next()


async def test_call_without_an_answer_ends_at_its_deadline_and_is_cancelled() -> None:
    stream = opened(ControlStream)
    with pytest.raises(RefusedError) as error:
        await stream.call(lane_pb2.ControlRequest(deadline_ms=10), 0.01)
    assert error.value.reason is Reason.TIMEOUT
    stream.next_message()
    cancel = lane_pb2.ControlRequest.FromString(stream.next_message().rest)
    assert cancel.cancel.id == 1


async def two_calls_of_which_one_was_cancelled(stream: ControlStream) -> asyncio.Task[lane_pb2.ControlResponse]:
    """The cancelled one has not had its turn yet."""
    calls = [asyncio.ensure_future(stream.call(lane_pb2.ControlRequest(), 5)) for _ in range(2)]
    await asyncio.sleep(0)
    calls[0].cancel()
    return calls[1]


async def test_a_call_that_was_cancelled_in_the_same_turn_keeps_nobody_from_hearing_of_the_break() -> None:
    stream = opened(ControlStream)
    call = await two_calls_of_which_one_was_cancelled(stream)
    stream.fail(TransportError("cut"))
    with pytest.raises(TransportError, match="cut"):
        await call


async def test_an_answer_for_a_call_that_was_cancelled_in_the_same_turn_is_dropped() -> None:
    stream = opened(ControlStream)
    call = await two_calls_of_which_one_was_cancelled(stream)
    for number in (1, 2):
        stream.receive(lane_pb2.ControlResponse(id=number).SerializeToString())
    assert (await call).id == 2


@pytest.mark.rule("L1")
@pytest.mark.parametrize("kind", [AddStream, ReadStream, ControlStream])
@pytest.mark.parametrize(
    "answer",
    [
        lane_pb2.HelloAnswer(version=1, bookie_id="b2", instance_id="c"),
        lane_pb2.HelloAnswer(version=1, bookie_id="b1", instance_id="other"),
        lane_pb2.HelloAnswer(reason=lane_pb2.UNSUPPORTED_VERSION, bookie_id="b1", instance_id="c"),
        None,
    ],
    ids=str,
)
async def test_wrong_answer_to_hello_is_an_error(kind: type[LaneStream], answer: lane_pb2.HelloAnswer | None) -> None:
    stream = kind(hello("b1", "c", "", "test"))
    response = {"AddStream": lane_pb2.AddResponse, "ReadStream": lane_pb2.ReadResponse}.get(
        kind.__name__, lane_pb2.ControlResponse
    )
    with pytest.raises((TransportError, RemoteProtocolError)):
        stream.receive(response(hello=answer).SerializeToString())
    assert not stream.greeted


def test_who_got_no_answer_in_time_does_not_know_whether_it_was_applied() -> None:
    assert too_late("b1", 5).outcome is Outcome.UNKNOWN
    assert RefusedError(Reason.FENCED, "fenced").outcome is Outcome.UNKNOWN
    assert RefusedError(Reason.BAD_REQUEST, "no").outcome is Outcome.NOT_APPLIED


def read_requests(stream: ReadStream) -> list[lane_pb2.ReadRequest]:
    found = []
    while (message := stream.next_message()) is not None:
        found.append(lane_pb2.ReadRequest.FromString(message.rest))
    return found


@pytest.mark.rule("L1")
@pytest.mark.parametrize("parts", [True, False])
def test_a_bookie_is_asked_for_parts_only_if_it_offers_them(parts: bool) -> None:
    stream = ReadStream(hello("b1", "", "", "test"))
    stream.read(7, 0, 0, 1 << 20, None)
    stream.read(7, 5, 6, 1 << 20, None, Cut(0, 5, (((0, 8), (16, 8)), ((8, 8),))))
    stream.read(7, 9, 9, 1 << 20, None, Cut(head=64))
    (first,) = read_requests(stream)
    assert (first.id, first.HasField("hello")) == (0, True)
    woken: list[int] = []
    stream.wake = lambda: woken.append(1)
    answer = lane_pb2.HelloAnswer(version=LANE_VERSION, bookie_id="b1", parts=parts)
    stream.receive(lane_pb2.ReadResponse(hello=answer).SerializeToString())
    assert woken
    whole, ranges, head = read_requests(stream)
    assert (whole.id, whole.head_bytes, list(whole.range_counts)) == (1, 0, [])
    assert (list(ranges.range_counts), list(ranges.range_offsets), list(ranges.range_sizes)) == (
        ([2, 1], [0, 16, 8], [8, 8, 8]) if parts else ([], [], [])
    )
    assert head.head_bytes == (64 if parts else 0)
    assert (ranges.first_entry_id, head.first_entry_id) == (5, 9)
