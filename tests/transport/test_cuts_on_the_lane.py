# SPDX-License-Identifier: Apache-2.0
"""A read of parts asks for whole entries where the bookie did not say, in its answer to hello, that it knows parts."""

from __future__ import annotations

import pytest

from bk_core.transport.lane.messages import LANE_VERSION, hello
from bk_core.transport.lane.streams import ReadStream
from bk_core.wire.lane.reasons import Cut
from bk_core.wire.proto import lane_pb2


def sent(stream: ReadStream) -> list[lane_pb2.ReadRequest]:
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
    (first,) = sent(stream)
    assert (first.id, first.HasField("hello")) == (0, True)
    woken: list[int] = []
    stream.wake = lambda: woken.append(1)
    answer = lane_pb2.HelloAnswer(version=LANE_VERSION, bookie_id="b1", parts=parts)
    stream.receive(lane_pb2.ReadResponse(hello=answer).SerializeToString())
    assert woken
    whole, ranges, head = sent(stream)
    assert (whole.id, whole.head_bytes, list(whole.range_counts)) == (1, 0, [])
    assert (list(ranges.range_counts), list(ranges.range_offsets), list(ranges.range_sizes)) == (
        ([2, 1], [0, 16, 8], [8, 8, 8]) if parts else ([], [], [])
    )
    assert head.head_bytes == (64 if parts else 0)
    assert (ranges.first_entry_id, head.first_entry_id) == (5, 9)
