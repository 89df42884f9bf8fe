# SPDX-License-Identifier: Apache-2.0
"""A client whose frames are damaged, or have right checksums and say what cannot be: refused, the ledger untouched,
others served. On each of our lanes: what is checked for a frame does not depend on the way it came."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from pathlib import Path

import crc32c
import pytest

from bk_core.entries.frame import encode_record
from bk_core.wire.lane.reasons import Reason
from tests.kit.apache_frames import encode_apache
from tests.kit.lane_table import OURS
from tests.kit.lanes import DEADLINE_S, Listener, frame, open_lane

LONG = 100_000
LANES = pytest.mark.parametrize("lane_name", OURS)


def sealed(flags: int, columns: bytes, payload: bytes, *, count: int = 1, lac: int = 8, before: int = 50) -> bytes:
    """A frame of ledger 7 from entry 10 on, of session 1, with both CRCs right."""
    sizes = (count, len(columns), len(payload))
    head = struct.pack("<HBBHBBqqqqIII", 0x4B42, 1, 1, flags, 3, 0, 7, 10, lac, before, *sizes)
    return head + struct.pack("<III", crc32c.crc32c(head + columns), crc32c.crc32c(payload), 1) + columns + payload


TWO = struct.pack("<II", 1, 1) + b"dgstdgst"
STRIPE = struct.pack("<HHHHI", 2, 1, 0, 0, 3) + struct.pack("<III", 1, 2**32 - 1, 1) + b"dgstdgst"

HOSTILE = {
    "a length that no slice could say": sealed(1, STRIPE, b"xy", count=2, before=2**63 - 1 - 2**31),
    "ledger lengths below the least": sealed(8, TWO + struct.pack("<qq", -(2**63), -(2**63)), b"xy", count=2),
    "an id of 2^63 - 1": sealed(2, TWO + struct.pack("<qq", 10, 2**63 - 1), b"xy", count=2),
    "a LAC that no digest covers": sealed(4, TWO + struct.pack("<qq", 5, 5), b"xy", count=2, lac=2**62),
}


@LANES
async def test_entries_in_apaches_form_at_ids_that_are_taken_are_refused_and_the_bookie_lives(
    tmp_path: Path, lane_name: str
) -> None:
    async with asyncio.timeout(30), open_lane(lane_name, tmp_path) as lane:
        await lane.write(7, 0, [b"a", b"b"])
        listener = Listener()
        session = lane.attach(7, listener)
        entries = [struct.pack(">qqqq", 7, entry_id, -1, 1) + b"digest" + b"x" for entry_id in (0, 1)]
        lane.link.send(session, bytes(encode_apache(7, entries, session=session)))
        assert await listener.ended(session) == (0, Reason.INTEGRITY)
        assert (await lane.read(7, 0, 1))[0] == {0: b"a", 1: b"b"}


@pytest.mark.rule("P5")
@LANES
@pytest.mark.parametrize("name", HOSTILE)
async def test_frames_that_say_what_cannot_be_are_refused_and_others_served(
    name: str, tmp_path: Path, lane_name: str
) -> None:
    async with asyncio.timeout(30), open_lane(lane_name, tmp_path) as lane:
        await lane.write(3, 0, [b"a", b"b"])
        listener = Listener()
        session = lane.attach(7, listener)
        lane.link.send(session, of_session(bytearray(HOSTILE[name]), session))
        for low in (10, 12):  # what was taken would have to be cut
            await lane.read(7, low, low)
        assert await lane.read(3, 1, 1) == ({1: b"b"}, (await lane.read(3, 1, 1))[1])
        assert await listener.ended(session) == (0, Reason.INTEGRITY)
        said = await lane.link.read_lac(7, deadline_s=DEADLINE_S)
        assert said.last_entry_id == -1


# --- each check, with short frames and with such as are received into memory of their own ---


def of_session(data: bytearray, session: int) -> bytes:
    struct.pack_into("<I", data, 60, session)
    return bytes(data)


def flipped(data: bytes, at: int) -> bytearray:
    changed = bytearray(data)
    changed[at] ^= 1
    return changed


CHECKS: dict[str, tuple[Callable[[bytes], bytearray], Reason]] = {
    "a bit of the header": (lambda data: flipped(data, 16), Reason.INTEGRITY),
    "a bit of the lengths": (lambda data: flipped(data, 64), Reason.INTEGRITY),
    "a bit of the digests": (lambda data: flipped(data, 69), Reason.INTEGRITY),
    "the first bit of the payload": (lambda data: flipped(data, -LONG), Reason.INTEGRITY),
    "the last bit of the payload": (lambda data: flipped(data, -1), Reason.INTEGRITY),
    "another ledger": (lambda data: bytearray(frame(8, 2, [b"a"])), Reason.BAD_REQUEST),
    "a record": (lambda data: bytearray(encode_record(3, 7)), Reason.BAD_REQUEST),
    "other entries at these ids": (lambda data: bytearray(frame(7, 1, [b"c"])), Reason.INTEGRITY),
}


@LANES
@pytest.mark.parametrize("name", CHECKS)
async def test_each_frame_is_checked_before_it_is_stored(name: str, tmp_path: Path, lane_name: str) -> None:
    change, reason = CHECKS[name]

    async with asyncio.timeout(30), open_lane(lane_name, tmp_path) as lane:
        await lane.write(7, 0, [b"a", b"b"])
        listener = Listener()
        session = lane.attach(7, listener)
        good = frame(7, 2, [b"x" * LONG])
        lane.link.send(session, of_session(change(good), session))
        lane.link.send(session, of_session(bytearray(good), session))
        assert await listener.ended(session) == (0, reason)
        found, trailer = await lane.read(7, 0, 2)
        assert (found, trailer.absent[0].first) == ({0: b"a", 1: b"b"}, 2), "what follows is dropped"


@LANES
@pytest.mark.parametrize("cut", [-1, -LONG])
async def test_a_frame_that_is_cut_short_ends_the_stream(tmp_path: Path, lane_name: str, cut: int) -> None:
    async with asyncio.timeout(30), open_lane(lane_name, tmp_path) as lane:
        listener = Listener()
        session = lane.attach(7, listener)
        lane.link.send(session, frame(7, 0, [b"x" * LONG], session=session)[:cut])
        await listener.broken(session)
        await lane.write(7, 0, [b"a"])


@LANES
async def test_fence_key_and_session_are_checked_for_each_long_frame(tmp_path: Path, lane_name: str) -> None:
    async with asyncio.timeout(30), open_lane(lane_name, tmp_path) as lane:
        await lane.write(7, 0, [b"a"])
        old, stranger, nobody = Listener(), Listener(), Listener()
        writes, steals = lane.attach(7, old), lane.attach(7, stranger, key=bytes(20))
        await lane.fence(7)
        for session in (writes, steals):
            lane.send(session, 7, 1, [b"x" * LONG])
        assert await old.ended(writes) == (0, Reason.FENCED)
        assert await stranger.ended(steals) == (0, Reason.UNAUTHORIZED)
        mine = lane.attach(9, nobody)
        lane.link.send(mine, frame(9, 0, [b"x" * LONG], session=999))
        lane.send(mine, 9, 0, [b"mine"])
        await nobody.acked(mine, 1)
        assert await lane.read(9, 0, 0) == ({0: b"mine"}, (await lane.read(9, 0, 0))[1])
        assert (await lane.read(7, 0, 1))[0] == {0: b"a"}


@pytest.mark.rule("S5")
@LANES
@pytest.mark.parametrize("at", [-1, -LONG, 20], ids=["last", "first", "header"])
async def test_what_was_damaged_on_the_disk_does_not_leave_the_bookie(tmp_path: Path, lane_name: str, at: int) -> None:
    async with asyncio.timeout(30), open_lane(lane_name, tmp_path) as lane:
        stored = frame(7, 1, [b"x" * LONG])
        await lane.write(7, 0, [b"a"])
        await lane.write(7, 1, [b"x" * LONG])
        (path,) = [
            path for path in (tmp_path / "bookie").rglob("*") if path.is_file() and stored[64:] in path.read_bytes()
        ]
        begin = path.read_bytes().index(stored[64:]) - 64
        with path.open("r+b") as segment:
            segment.seek(begin + at % len(stored))
            byte = segment.read(1)[0]
            segment.seek(-1, 1)
            segment.write(bytes([byte ^ 1]))
            segment.flush()
            os.fsync(segment.fileno())
        found, trailer = await lane.read(7, 0, 1)
        assert found == {0: b"a"}
        assert [(gap.first, gap.last, gap.reason) for gap in trailer.unknown] == [(1, 1, Reason.DAMAGED)]
