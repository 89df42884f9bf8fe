# SPDX-License-Identifier: Apache-2.0
"""A client whose frames have right checksums and say what cannot be: refused, the ledger untouched, others served."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import crc32c
import pytest

from bk_core.wire.lane import Reason
from tests.kit.apache_frames import encode_apache
from tests.kit.lanes import DEADLINE_S, Listener, open_lane


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


def test_entries_in_apaches_form_at_ids_that_are_taken_are_refused_and_the_bookie_lives(tmp_path: Path) -> None:
    async def story() -> None:
        async with asyncio.timeout(30), open_lane("grpc", tmp_path) as lane:
            await lane.write(7, 0, [b"a", b"b"])
            listener = Listener()
            session = lane.attach(7, listener)
            entries = [struct.pack(">qqqq", 7, entry_id, -1, 1) + b"digest" + b"x" for entry_id in (0, 1)]
            lane.transport.send(lane.bookie_id, session, bytes(encode_apache(7, entries, session=session)))
            assert await listener.ended(session) == (0, Reason.INTEGRITY)
            assert (await lane.read(7, 0, 1))[0] == {0: b"a", 1: b"b"}

    asyncio.run(story())


@pytest.mark.rule("P5")
@pytest.mark.parametrize("name", HOSTILE)
def test_frames_that_say_what_cannot_be_are_refused_and_others_served(name: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with asyncio.timeout(30), open_lane("grpc", tmp_path) as lane:
            await lane.write(3, 0, [b"a", b"b"])
            listener = Listener()
            session = lane.attach(7, listener)
            frame = bytearray(HOSTILE[name])
            struct.pack_into("<I", frame, 60, session)
            lane.transport.send(lane.bookie_id, session, bytes(frame))
            for low in (10, 12):  # what was taken would have to be cut
                await lane.read(7, low, low)
            assert await lane.read(3, 1, 1) == ({1: b"b"}, (await lane.read(3, 1, 1))[1])
            assert await listener.ended(session) == (0, Reason.INTEGRITY)
            said = await lane.transport.read_lac(lane.bookie_id, 7, deadline_s=DEADLINE_S)
            assert said.last_entry_id == -1

    asyncio.run(story())
