# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes on the add stream: frames with any header and right checksums are taken or refused, never a crash."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.digest import crc32c
from bk_core.wire.lane.reasons import AttachMode
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from tests.bookie_server.engine.test_holdings import striped
from tests.kit.amount import examples
from tests.kit.lanes import KEY, frame
from tests.kit.memory_holdings import MemoryHoldings, read_piece, stored

SEEDS = (
    frame(7, 0, [b"a", b"bb", b"ccc"], session=1),
    frame(7, 5, [b"x" * 50], session=1, lac=4),
    striped(0, 9, 1, session=1),
    frame(7, 1, [b"bb"], session=1),
)


def resealed(data: bytearray) -> bytes:
    """With the checksums that its own sizes call for, where they fit."""
    columns = struct.unpack_from("<I", data, 44)[0]
    end = 64 + columns
    if end <= len(data):
        struct.pack_into("<I", data, 52, crc32c(bytes(data[64:end]), crc32c(bytes(data[:52]))))
        struct.pack_into("<I", data, 56, crc32c(bytes(data[end:])))
    return bytes(data)


CHANGES = st.lists(st.tuples(st.integers(4, 150), st.integers(0, 255)), max_size=4)


@pytest.mark.long
@examples(6)
@given(st.lists(st.tuples(st.sampled_from(SEEDS), CHANGES, st.booleans()), min_size=1, max_size=4))
def test_no_frame_breaks_the_machine(frames: list[tuple[bytes, list[tuple[int, int]], bool]]) -> None:
    store = MemoryHoldings()
    machine = BookieMachine(store)
    machine.step(ev.SessionAttached(1, 1, 7, KEY, AttachMode.WRITE))
    todo: list[ev.Effect] = []
    for seed, changes, reseal in frames:
        data = bytearray(seed)
        for at, value in changes:
            if at < len(data):
                data[at] = value
        message = resealed(data) if reseal else bytes(data)
        todo += machine.step(ev.FramesArrived(1, memoryview(message)))
    todo += machine.step(ev.ReadRequested((2, 1), 7, 0, 100, 1 << 20))
    todo += machine.step(ev.ReadLacRequested((2, 2), 7))
    for _ in range(200):
        if not todo:
            return
        effect = todo.pop(0)
        if isinstance(effect, ev.Commit):
            todo += machine.step(ev.GroupCommitted([stored(one) for one in effect.frames]))
        elif isinstance(effect, ev.ReadFrames):
            todo += machine.step(ev.FramesRead(effect.request, [read_piece(piece) for piece in effect.pieces]))
        elif isinstance(effect, ev.SendPart):
            todo += machine.step(ev.PartSent(effect.request))
    raise AssertionError("does not come to rest")
