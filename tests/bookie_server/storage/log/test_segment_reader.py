# SPDX-License-Identifier: Apache-2.0
"""Reads: every one checked, a mismatch asked of the disk before it is called damage (RULES S5)."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from bk_core.entries.frame import decode_frame
from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.membership import Striping
from bookie_server.storage.bytes.segment import segment_name
from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.log.segment_reader import SegmentReader
from tests.kit.segment_world import Storage, entries, key_record, striped


class StaleCache(Files):
    """A page cache that holds other bytes than the disk for as long as it is told to."""

    stale = False

    def read(self, handle: Handle, size: int, offset: int) -> bytes:
        data = super().read(handle, size, offset)
        return bytes(size) if self.stale else data


@pytest.mark.rule("S5")
def test_a_stale_cache_is_not_damage(tmp_path: Path) -> None:
    files = StaleCache()
    storage = Storage(tmp_path / "d", files=files)
    frame = entries(1, range(10))
    place = storage.append(frame)[0]
    files.stale = True
    assert bytes(storage.reader.read(place))[:60] == frame[:60]
    assert storage.reader.rereads == 1
    storage.close()


@pytest.mark.rule("S5")
def test_every_byte_of_a_frame_is_checked(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    place = storage.append(entries(1, range(3), size=10), entries(1, range(3, 6), size=10))[0]
    path = tmp_path / "d" / "segments" / segment_name(place.generation)
    good = path.read_bytes()
    for at in range(place.offset, place.offset + place.size):
        bad = bytearray(good)
        bad[at] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(IntegrityError):
            storage.reader.read(place)
    path.write_bytes(good)
    assert decode_frame(storage.reader.read(place)).count == 3
    storage.close()


@pytest.mark.rule("S5")
def test_a_frame_read_from_the_wrong_place_fails_its_stamp(tmp_path: Path) -> None:
    """A misdirected write or read: whole, valid frames of the same size in each other's place."""
    storage = Storage(tmp_path / "d")
    one, other = storage.append(entries(1, [0]), entries(1, [1]))
    assert one.size == other.size
    path = tmp_path / "d" / "segments" / segment_name(one.generation)
    content = bytearray(path.read_bytes())
    first, second = (slice(place.offset, place.offset + place.size) for place in (one, other))
    content[first], content[second] = content[second], content[first]
    path.write_bytes(content)
    for place in (one, other):
        with pytest.raises(IntegrityError, match="not written to this place"):
            storage.reader.read(place)
    storage.close()


def test_a_frame_of_another_ledger_is_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    place = storage.append(entries(1, [0]))[0]
    with pytest.raises(IntegrityError, match="another ledger"):
        storage.reader.read(place, ledger_id=2)
    storage.close()


def test_what_the_system_refuses_is_an_integrity_error(tmp_path: Path) -> None:
    class Broken(Files):
        broken = False

        def read(self, handle: Handle, size: int, offset: int) -> bytes:
            if self.broken:
                raise OSError(errno.EIO, "bad sector")
            return super().read(handle, size, offset)

        def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
            if self.broken:
                raise OSError(errno.EIO, "bad sector")
            return super().read_past_cache(path, size, offset)

    files = Broken()
    storage = Storage(tmp_path / "d", files=files)
    place = storage.append(entries(1, [0]))[0]
    files.broken = True
    with pytest.raises(IntegrityError, match="bad sector"):
        storage.reader.read(place)
    files.broken = False
    assert (storage.reader.io_errors, storage.reader.damaged) == (1, 0)
    with pytest.raises(IntegrityError):
        storage.reader.read(Place(77, place.offset, place.size))
    assert (storage.reader.io_errors, storage.reader.damaged) == (2, 0)
    with pytest.raises(IntegrityError):
        storage.reader.read(Place(place.generation, place.offset + 64, place.size))
    assert (storage.reader.io_errors, storage.reader.damaged) == (2, 1)
    storage.close()


def test_a_long_frame_is_read_into_memory_that_is_used_again(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    frames = [entries(1, [k], size=100_000) for k in range(3)]
    places = [storage.append(frame)[0] for frame in frames]
    first, second = storage.reader.read(places[0]), storage.reader.read(places[1])
    addresses = [np.frombuffer(each, dtype=np.uint8).ctypes.data for each in (first, second)]
    assert [bytes(each)[64:] for each in (first, second)] == [bytes(frame)[64:] for frame in frames[:2]]
    del first
    third = storage.reader.read(places[2])
    assert np.frombuffer(third, dtype=np.uint8).ctypes.data == addresses[0]
    assert bytes(second)[64:] == bytes(frames[1])[64:], "nobody writes where somebody reads"
    assert addresses[0] % 4096 == 0
    storage.close()


def test_entries_are_cut_out_of_a_frame(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    place = storage.append(entries(1, range(100, 200)))[0]
    for first, last in ((100, 199), (150, 150), (0, 120), (190, 500)):
        frame = storage.reader.read_entries(place, first, last, ledger_id=1)
        ids = decode_frame(frame).entry_ids().tolist()
        assert ids == list(range(max(first, 100), min(last, 199) + 1))
    assert storage.reader.read_entries(place, 0, 99) is None
    storage.close()


def test_the_reader_says_which_ids_a_sparse_frame_holds(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    stripe, sparse = storage.append(striped(1, 0, 20, ensemble=5, quorum=3, index=2), entries(2, [9, 1, 2]))
    assert storage.reader.membership(stripe) == Striping(5, 3, 2)
    runs = storage.reader.membership(sparse)
    assert (runs.starts.tolist(), runs.ends.tolist()) == ([1, 9], [2, 9])
    storage.close()


@pytest.mark.rule("S5")
def test_read_ahead_is_off_in_segments_that_are_being_written(tmp_path: Path) -> None:
    advised: list[Handle] = []

    class Watching(Files):
        def advise_random(self, handle: Handle) -> None:
            advised.append(handle)
            super().advise_random(handle)

    storage = Storage(tmp_path / "d", files=Watching())
    place = storage.append(key_record(1), entries(1, range(4)))[1]
    storage.reader.read(place)
    storage.reader.read(place)
    assert len(advised) == 1
    storage.close()
    again = Storage(tmp_path / "d", files=Watching())
    again.reader.read(place)
    assert len(advised) == 1, "that segment is sealed"
    again.close()


def test_only_so_many_segments_are_open_at_once(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d", segment_bytes=16 << 10)
    places = [storage.append(entries(1, [k], size=3000))[0] for k in range(12)]
    assert len({place.generation for place in places}) > 4
    open_now: set[Handle] = set()

    class Counting(Files):
        def open_read(self, path: str) -> Handle:
            handle = super().open_read(path)
            open_now.add(handle)
            return handle

        def close(self, handle: Handle) -> None:
            open_now.discard(handle)
            super().close(handle)

    directory = storage.directory
    reader = SegmentReader(directory.segments_path, directory.identity, files=Counting(), open_segments_max=3)
    for place in places * 2:
        reader.read(place)
        assert len(open_now) <= 3
    reader.close()
    assert not open_now
    storage.close()
