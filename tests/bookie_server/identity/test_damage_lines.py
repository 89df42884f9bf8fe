# SPDX-License-Identifier: Apache-2.0
"""What a bookie logs of files that are of no use as a whole: a line each, with what becomes of what was in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_server.engine.holdings import answer_read
from bookie_server.machine import events as ev
from bookie_server.machine.disk_places import IndexBlock
from bookie_server.machine.events import Piece
from bookie_server.storage.bytes.segment import index_name, segment_name
from tests.kit.segment_world import Storage, entries


def test_a_missing_segment_is_logged_once_and_not_for_each_of_its_frames(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage(tmp_path / "d")
    places = storage.append(*(entries(1, range(5 * k, 5 * k + 5)) for k in range(6)))
    path = tmp_path / "d" / "segments" / segment_name(places[0].generation)
    pieces = [Piece(place, 5 * k, 5 * k + 4) for k, place in enumerate(places)]
    path.unlink()
    for piece in (*pieces, *pieces):
        assert answer_read(storage.reader, ev.ReadFrames((1, 1), [piece])) == ev.FramesRead((1, 1), [None])
    lines = [record.getMessage() for record in caplog.records if "damage" in record.getMessage()]
    assert len(lines) == 1
    assert f"{path.name} is missing" in lines[0]
    storage.close(crash=True)


def test_a_damaged_index_is_logged_once_with_how_long_its_entries_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage(tmp_path / "d", segment_bytes=64 << 10)
    while not storage.index.sealed_generations():
        storage.append(*(entries(k, range(5)) for k in range(40)))
    [generation, *_] = storage.index.sealed_generations()
    path = tmp_path / "d" / "segments" / index_name(generation)
    whole = path.read_bytes()
    blocks = [IndexBlock(generation, number) for number in range(3)]

    def ask_all() -> list[str]:
        caplog.clear()
        for block in blocks:
            assert answer_read(storage.reader, ev.ReadMemberships((1, 1), [block])) == ev.MembershipsRead(
                (1, 1), [None]
            )
        return [record.getMessage() for record in caplog.records if "damage" in record.getMessage()]

    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    [line] = ask_all()
    assert line.startswith(f"damage: {path.name}, block 0")
    assert "UNKNOWN until the index is rebuilt" in line
    assert ask_all() == []
    storage.reader.release(generation)  # as when it was made anew
    assert len(ask_all()) == 1
    storage.close(crash=True)
