# SPDX-License-Identifier: Apache-2.0
"""The hand-written codec of data messages speaks protobuf's own bytes, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.errors import RemoteProtocolError
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX, encode_varint, pack, unpack
from bk_core.wire.lane.reasons import LaneMessage
from bk_core.wire.proto import lane_pb2
from tests.kit.amount import examples

PARTS = st.lists(st.binary(max_size=400), max_size=5)


def rest_of(sessions: list[int]) -> bytes:
    return lane_pb2.AddRequest(detach=sessions).SerializeToString()


@pytest.mark.rule("L6")
@settings(derandomize=True)
@given(PARTS, st.lists(st.integers(0, 2**32 - 1), max_size=4))
def test_packed_message_equals_protobufs_own(parts: list[bytes], detach: list[int]) -> None:
    ours = pack(LaneMessage(rest_of(detach), [memoryview(part) for part in parts]))
    assert ours == lane_pb2.AddRequest(frames=b"".join(parts), detach=detach).SerializeToString()


@pytest.mark.rule("L6")
@settings(derandomize=True)
@given(st.binary(max_size=70_000), st.integers(0, 2**63))
def test_protobufs_message_is_unpacked_without_copying(frames: bytes, request: int) -> None:
    message = lane_pb2.ReadResponse(frames=frames, id=request).SerializeToString()
    view, rest = unpack(message)
    assert (bytes(view) if view is not None else b"") == frames
    assert lane_pb2.ReadResponse.FromString(bytes(rest)) == lane_pb2.ReadResponse(id=request)
    assert view is None or view.obj is message


@pytest.mark.rule("L5")
@pytest.mark.parametrize("length", [3, 200, 2**31, 2**35, 2**40])
def test_length_beyond_the_message_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(b"\x0a" + encode_varint(length) + b"xx")


@pytest.mark.rule("L5")
def test_unended_length_is_refused() -> None:
    for message in (b"\x0a", b"\x0a\xff", b"\x0a\xff\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(RemoteProtocolError):
            unpack(message)


@pytest.mark.rule("L5")
def test_message_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(bytes(MESSAGE_BYTES_MAX + 1))


@examples(3)
@given(st.binary(max_size=64))
def test_any_bytes_are_unpacked_or_refused(data: bytes) -> None:
    try:
        frames, rest = unpack(data)
    except RemoteProtocolError:
        return
    assert len(rest) + (len(frames) if frames is not None else 0) <= len(data)
