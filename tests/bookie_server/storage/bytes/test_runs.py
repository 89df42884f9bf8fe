# SPDX-License-Identifier: Apache-2.0
"""Sealed segments on a disk: runs of small frames, their damage, and index blocks read one by one (RULES S5, S7)."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from bk_core.entries.frame import decode_frame, frame_extent, split_frames
from bk_core.errors import IntegrityError
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import IndexBlock, Place
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.reader import IndexReader
from bookie_server.storage.index.search import SPARSE_SECTION, DamagedPlaces, Search
from tests.kit.segment_world import Storage, entries, striped
from tests.kit.whole_files import decode_index_file

GOLDEN = Path(__file__).parents[3] / "golden"
SEGMENT = 128 << 10


def sealed(path: Path, **files: Files) -> Storage:
    """A storage with a sealed first segment: two ledgers in turn, a group each, two striped ones, and large frames."""
    storage = Storage(path, segment_bytes=SEGMENT, **files)
    for k in range(12):
        storage.append(
            entries(1, [2 * k], size=300),
            entries(2, range(3 * k, 3 * k + 3)),
            entries(1, [2 * k + 1]),
            striped(3, 4 * k, 2, index=(4 * k + 1) % 3),  # both entries of the span, then the last two of three:
            striped(3, 4 * k + 1, 3, index=(4 * k + 3) % 3),  # dense, but not as the header says
            striped(5, 9 * k, 9, index=k % 3),
        )
    while 1 not in storage.index.sealed_generations():
        storage.append(entries(4, range(100, 103), size=20_000))
    return storage


def runs_in(storage: Storage, ledger_id: int, last: int) -> list[Place]:
    return [piece.place for piece in storage.lookup(ledger_id, 0, last).pieces if piece.place.is_run]


def path_of(storage: Storage, generation: int = 1) -> Path:
    return Path(storage.directory.segments_path) / segment_name(generation)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_every_entry_of_a_sealed_segment_is_read_alone_and_together(tmp_path: Path) -> None:
    storage = sealed(tmp_path / "d")
    assert runs_in(storage, 1, 23)
    for ledger_id, count in ((1, 24), (2, 36), (3, 48)):
        assert set(storage.read(ledger_id, 0, count + 3).found) == set(range(count))
        assert storage.read(ledger_id, 0, count + 3).absent == set(range(count, count + 4))
        for first in range(count):
            assert set(storage.read(ledger_id, first, first).found) == {first}
            assert set(storage.read(ledger_id, first, first + 4).found) == set(range(first, min(first + 5, count)))
    assert storage.reader.rereads == 0, "nothing is taken for damaged"
    before = storage.read(5, 0, 120)
    assert len(before.found) == 12 * 6
    storage.close()
    again = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert again.read(5, 0, 120) == before
    again.close()


def test_a_run_never_brings_frames_of_others_or_of_other_ids(tmp_path: Path) -> None:
    storage = sealed(tmp_path / "d")
    for run in runs_in(storage, 2, 40):
        found = storage.reader.read_entries(run, 4, 7)
        if found is not None:
            for header, frame in split_frames(found):
                assert header.ledger_id == 2
                assert set(decode_frame(frame).entry_ids().tolist()) <= set(range(4, 8))
    storage.close()


@pytest.mark.rule("S5")
@pytest.mark.parametrize("where", [0, 3, 20, 44, 45, 52, 60, 90])
def test_a_damaged_frame_of_a_run_hides_no_other(tmp_path: Path, where: int) -> None:
    """Whatever byte of it is bad, those that say how long it is too; its neighbours are served and it is UNKNOWN."""
    storage = sealed(tmp_path / "d")
    run = runs_in(storage, 2, 40)[0]
    members = storage.reader.membership(run)
    assert len(members.firsts) > 2
    for k in (0, 1, len(members.firsts) - 1):
        flip(path_of(storage), members.offsets[k] + where)
        lost = set(range(members.firsts[k], members.lasts[k] + 1))
        storage.reader.release(1)
        answer = storage.read(2, 0, 35)
        assert set(answer.found) == set(range(36)) - lost
        assert answer.unknown == dict.fromkeys(lost, Reason.DAMAGED)
        assert not answer.absent
        flip(path_of(storage), members.offsets[k] + where)  # whole again; a start forgets the damage
        storage.close()
        storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
        assert set(storage.read(2, 0, 35).found) == set(range(36))
    storage.close()


@pytest.mark.rule("S5")
def test_damage_spreads_through_a_run_and_each_time_only_what_is_bad_is_unknown(tmp_path: Path) -> None:
    storage = sealed(tmp_path / "d")
    run = runs_in(storage, 2, 40)[0]
    members = storage.reader.membership(run)
    lost: set[int] = set()
    for k in (3, 1, 5, 0):
        flip(path_of(storage), members.offsets[k] + 70)
        lost |= set(range(members.firsts[k], members.lasts[k] + 1))
        answer = storage.read(2, 0, 35)
        assert set(answer.found) == set(range(36)) - lost
        assert set(answer.unknown) == lost
        known = storage.reader.membership(run)
        storage.index.learn(2, run, members if k == 3 else known)  # what was remembered may be older than the damage
    storage.close()


@pytest.mark.rule("S5")
def test_a_run_that_the_disk_refuses_to_give_is_unknown_but_for_what_can_be_read(tmp_path: Path) -> None:
    class Broken(Files):
        bad: range = range(0)

        def _pread(self, handle: int, size: int, offset: int) -> bytes:
            self._check(size, offset)
            return super()._pread(handle, size, offset)

        def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
            self._check(size, offset)
            return super().read_past_cache(path, size, offset)

        def _check(self, size: int, offset: int) -> None:
            if offset < self.bad.stop and offset + size > self.bad.start:
                raise OSError(errno.EIO, "bad sector")

    files = Broken()
    storage = sealed(tmp_path / "d", files=files)
    run = runs_in(storage, 1, 23)[0]
    files.bad = range(9 * 4096, 10 * 4096)  # behind the end of the .idx
    assert run.offset < files.bad.start < run.offset + run.size
    answer = storage.read(1, 0, 23)
    assert answer.unknown
    assert answer.found
    assert {*answer.unknown, *answer.found} == set(range(24))
    files.bad = range(SEGMENT)
    assert not storage.read(1, 0, 23).found
    assert set(storage.read(1, 0, 23).unknown) == set(range(24))
    storage.close()


def test_the_entry_with_the_greatest_lac_of_a_run_is_found(tmp_path: Path) -> None:
    storage = sealed(tmp_path / "d")
    run = runs_in(storage, 2, 40)[0]
    entry = storage.reader.read_lac_entry(run)
    extent = frame_extent(entry)
    assert extent.first == extent.last
    members = storage.reader.membership(run)
    assert extent.last in members.lasts
    storage.close()


def test_the_end_of_a_sealed_ledger_needs_no_read(tmp_path: Path) -> None:
    storage = sealed(tmp_path / "d")
    end = storage.index.last_entry(1)
    assert (end.entry_id, end.bound) == (23, 23)
    frame = storage.reader.read_entries(end.place, 23, 23)
    assert decode_frame(frame).entry_ids().tolist() == [23]
    storage.index.mark_damaged(1, end.place)
    end = storage.index.last_entry(1)
    assert end.entry_id < 23
    assert end.bound == 23
    storage.close()


@pytest.mark.rule("S7")
@pytest.mark.parametrize("number", [SPARSE_SECTION, 0])
def test_an_unreadable_block_of_an_index_makes_unknown_and_asks_for_a_new_one(tmp_path: Path, number: int) -> None:
    storage = sealed(tmp_path / "d")
    path = Path(storage.directory.segments_path) / index_name(1)
    whole = path.read_bytes()
    header, rows, _ = decode_index_file(whole)
    sparse_at = len(whole) - 2 * 4096
    flip(path, (sparse_at if number == SPARSE_SECTION else 4096 * (1 + number)) + 17)
    answer = storage.read(1, 0, 30)
    assert set(answer.unknown) >= set(range(24))
    assert storage.index.damaged_indexes == {1}
    assert header.generation == 1
    assert rows.size
    path.write_bytes(whole)
    storage.reader.release(1)
    assert set(storage.read(1, 0, 23).unknown) == set(range(24)), "until it is made anew"
    storage.close()


def test_a_block_of_another_index_file_is_refused(tmp_path: Path) -> None:
    storage = sealed(tmp_path / "d")
    while 2 not in storage.index.sealed_generations():
        storage.append(entries(4, range(100, 103), size=20_000))
    one, two = (Path(storage.directory.segments_path) / index_name(generation) for generation in (1, 2))
    mixed = bytearray(one.read_bytes())
    mixed[4096:8192] = two.read_bytes()[4096:8192]
    one.write_bytes(mixed)
    with pytest.raises(IntegrityError):
        storage.reader.membership(IndexBlock(1, 0))
    storage.close()


def test_an_index_is_read_in_parts(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "segment.idx", tmp_path / index_name(0x1234))
    header, rows, _ = decode_index_file((GOLDEN / "segment.idx").read_bytes())
    indexes = IndexReader(str(tmp_path), header.incarnation, Files(), 4)
    known = {IndexBlock(0x1234, number): indexes.read(IndexBlock(0x1234, number)) for number in (SPARSE_SECTION, 0, 1)}
    sparse = known[IndexBlock(0x1234, SPARSE_SECTION)]
    ledger_id = int(rows["ledger"][0])
    assert sparse.blocks(ledger_id, 0, 5) == range(1)
    block = known[IndexBlock(0x1234, 0)]
    search = Search(ledger_id, 0, 5, 64, 1 << 20, known.get, DamagedPlaces())
    block.candidates(search)
    assert (search.covered()[0][0].first, search.covered()[0][0].last) == (0, 5)
    with pytest.raises(IntegrityError):
        indexes.read(IndexBlock(0x1234, 2))
    with pytest.raises(IntegrityError):
        IndexReader(str(tmp_path), bytes(16), Files(), 4).read(IndexBlock(0x1234, 0))
    indexes.close()
