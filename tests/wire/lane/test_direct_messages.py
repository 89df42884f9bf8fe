# SPDX-License-Identifier: Apache-2.0
"""Messages of the direct lane on a stream of bytes: whatever way the bytes come and go, the same messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import RemoteProtocolError
from bk_core.wire.lane.direct_messages import (
    BUFFERS_MAX,
    STREAMS,
    MessageReader,
    Received,
    SendQueue,
    preamble,
    stream_of,
)
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX
from bk_core.wire.lane.reasons import LaneMessage


class Slots:
    """Buffers, and which were asked for."""

    def __init__(self) -> None:
        self.taken: list[memoryview] = []

    def take(self, size: int) -> memoryview:
        self.taken.append(memoryview(bytearray(size)))
        return self.taken[-1]


def sent(messages: Sequence[LaneMessage], steps: Sequence[int] = ()) -> bytes:
    """What leaves, in system calls that take so many bytes."""
    queue, left = SendQueue(), bytearray()
    for message in messages:
        queue.put(message)
    assert queue.bytes == sum(8 + len(rest) + sum(map(len, frames)) for rest, frames in messages)
    for step in [*steps, *[1 << 30] * (1 + len(messages) * 4)]:
        data = b"".join(queue.next())[:step]
        left += data
        queue.sent(len(data))
    assert (queue.bytes, queue.next()) == (0, [])
    return bytes(left)


def received(data: bytes, steps: Sequence[int], slots: Slots) -> list[Received]:
    """What arrives, in system calls that give so many bytes."""
    reader, came = MessageReader(slots.take), []
    pending, turn = memoryview(data), 0
    while pending:
        size = steps[turn % len(steps)] if steps else 1 << 30
        turn += 1
        left = size
        for buffer in reader.buffers():
            count = min(len(buffer), left, len(pending))
            buffer[:count] = pending[:count]
            pending, left = pending[count:], left - count
        came += reader.received(size - left)
    assert not reader.in_message
    return came


def same(came: list[Received], messages: Sequence[LaneMessage]) -> bool:
    return [(bytes(each.frames or b""), each.rest) for each in came] == [
        (b"".join(frames), rest) for rest, frames in messages
    ]


def message(sizes: Sequence[int], rest: int, mark: int) -> LaneMessage:
    return LaneMessage(bytes([mark]) * rest, [bytes([mark + k & 0xFF]) * size for k, size in enumerate(sizes)])


MESSAGES = st.lists(
    st.builds(
        message,
        st.lists(st.sampled_from([0, 1, 100, 4_000, 20_000, 70_000]), max_size=4),
        st.sampled_from([0, 1, 50, 17_000]),
        st.integers(0, 255),
    ),
    max_size=8,
)
STEPS = st.lists(st.sampled_from([1, 7, 8, 9, 100, 5_000, 16_384, 16_385, 100_000]), min_size=1, max_size=6)


@given(MESSAGES, STEPS, STEPS)
def test_messages_come_as_they_went_in_whatever_pieces(
    messages: list[LaneMessage], out: list[int], into: list[int]
) -> None:
    data = sent(messages, out)
    assert same(received(data, into, Slots()), messages)


def test_a_message_without_anything_is_a_message() -> None:
    (came,) = received(sent([LaneMessage(b"")]), [3], Slots())
    assert came == (None, b"")


def test_frames_are_sent_from_where_they_are_and_received_into_one_buffer() -> None:
    frames = [bytes(300_000), bytearray(b"x" * 200_000)]
    queue, slots = SendQueue(), Slots()
    queue.put(LaneMessage(b"rest", frames))
    assert [buffer.obj for buffer in queue.next()[1:3]] == frames
    assert all(buffer.obj is frame for buffer, frame in zip(queue.next()[1:3], frames, strict=True))
    (came,) = received(sent([LaneMessage(b"rest", frames)]), [50_000], slots)
    (slot,) = slots.taken
    assert came.frames is not None
    assert came.frames.obj is slot.obj
    assert (len(slot), came.rest) == (500_004, b"rest")


def test_short_messages_ask_for_no_buffer() -> None:
    messages = [message([100], 20, k & 0xFF) for k in range(500)]
    slots = Slots()
    assert same(received(sent(messages), [1 << 20], slots), messages)
    assert slots.taken == []


@pytest.mark.rule("L5")
@pytest.mark.parametrize(("frames", "rest"), [(MESSAGE_BYTES_MAX, 1), (0, 2**32 - 1), (2**32 - 1, 2**32 - 1)])
def test_a_message_that_is_too_long_is_refused_before_there_is_memory_for_it(frames: int, rest: int) -> None:
    slots = Slots()
    reader = MessageReader(slots.take)
    (buffer,) = reader.buffers()
    buffer[:8] = struct.pack("<II", frames, rest)
    with pytest.raises(RemoteProtocolError, match="too long"):
        list(reader.received(8))
    assert slots.taken == []


def test_it_is_known_whether_a_message_has_begun() -> None:
    reader, data = MessageReader(Slots().take), sent([message([50_000], 3, 1)])
    assert not reader.in_message
    for k, part in enumerate((data[:3], data[3:20], data[20:-1], data[-1:])):
        position = 0
        for buffer in reader.buffers():
            count = min(len(buffer), len(part) - position)
            buffer[:count] = part[position : position + count]
            position += count
        came = list(reader.received(len(part)))
        assert (len(came), reader.in_message) == ((1, False) if k == 3 else (0, True))


def test_a_system_call_is_given_a_bounded_number_of_buffers() -> None:
    messages = [message([10], 5, k & 0xFF) for k in range(1_000)]
    queue = SendQueue()
    for each in messages:
        queue.put(each)
    assert len(queue.next()) == BUFFERS_MAX
    assert same(received(sent(messages), [1 << 20], Slots()), messages)


def test_a_preamble_names_a_stream() -> None:
    assert [stream_of(preamble(stream)) for stream in STREAMS] == list(STREAMS)


@pytest.mark.parametrize(
    "data", [b"GET / HT", b"bkdl\x02\x01\0\0", b"bkdl\x01\x00\0\0", b"bkdl\x01\x04\0\0", b"\0\0\0\x10\x01\x02\0\0"]
)
def test_what_is_no_preamble_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        stream_of(data)
