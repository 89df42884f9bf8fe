# SPDX-License-Identifier: Apache-2.0
"""Opening directories whose indexes are lost, and segments that lie on recycled bytes (RULES S3, S4)."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from bk_core.errors import UnknownFlagsError
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.index_file import decode_index_header
from bookie_server.storage.bytes.segment import placement_stamp, segment_name
from bookie_server.storage.disk.files import Files
from tests.kit.flagged import with_flags
from tests.kit.segment_world import Storage, assert_honest, entries, fence_record, key_record, striped
from tests.kit.whole_files import decode_index_file

SEGMENT = 64 << 10
FRAMES = [key_record(1), *(entries(1, range(10 * k, 10 * k + 10), lac=10 * k - 1, size=400) for k in range(40))]
FRAMES += [fence_record(2), striped(3, 0, 50), entries(4, [7, 1, 3])]


def filled(path: Path) -> Path:
    """A directory of several sealed segments and one open; returns the folder of segments."""
    storage = Storage(path, segment_bytes=SEGMENT)
    for start in range(0, len(FRAMES), 4):
        storage.append(*FRAMES[start : start + 4])
    storage.close()
    return path / "segments"


def test_a_lost_index_is_rebuilt_to_the_same_bytes(tmp_path: Path) -> None:
    segments = filled(tmp_path / "d")
    before = {path.name: path.read_bytes() for path in segments.glob("*.idx")}
    assert len(before) >= 3
    for name in before:
        (segments / name).unlink()
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not storage.report.damage
    assert storage.report.frames_copied == 0
    assert_honest(storage, FRAMES, healthy=True)
    for name, data in before.items():
        assert (segments / name).read_bytes() == data
    storage.close()


def test_an_index_that_is_damaged_where_a_start_reads_it_is_rebuilt(tmp_path: Path) -> None:
    """The header, the state and the summary; look-ups find out about the rest."""
    segments = filled(tmp_path / "d")
    rng = random.Random(3)
    path = sorted(segments.glob("*.idx"))[0]
    good = path.read_bytes()
    sections = decode_index_header(good[:4096])
    read = [0, 9, 17, 4095, len(good) - 1]
    for offset, size in (sections.state_range, sections.summary_range):
        read += [offset, *(offset + rng.randrange(size) for _ in range(5))]
    for at in read:
        bad = bytearray(good)
        bad[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
        assert storage.report.indexes_rebuilt == [1], at
        assert path.read_bytes() == good
        storage.close()
    path.write_bytes(good[:-4096])
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert storage.report.indexes_rebuilt == [1]
    assert_honest(storage, FRAMES, healthy=True)
    storage.close()


def test_an_index_that_is_damaged_elsewhere_is_noticed_by_who_needs_it(tmp_path: Path) -> None:
    segments = filled(tmp_path / "d")
    path = sorted(segments.glob("*.idx"))[0]
    bad = bytearray(path.read_bytes())
    bad[4096] ^= 1
    path.write_bytes(bad)
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert storage.report.indexes_rebuilt == []
    answers = assert_honest(storage, FRAMES)
    assert set(answers[1].unknown.values()) == {Reason.DAMAGED}
    assert storage.index.damaged_indexes == {1}
    storage.close()


@pytest.mark.rule("S3")
def test_a_stored_frame_with_reserved_flags_is_damage(tmp_path: Path) -> None:
    """Nobody writes one; if it lies there with right checksums and its stamp, it was not written by this version."""
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    places = storage.append(key_record(1), entries(1, range(10)), entries(1, range(10, 20)))
    identity, place = storage.directory.identity, places[1]
    storage.close()
    segment = tmp_path / "d" / "segments" / segment_name(place.generation)
    data = segment.read_bytes()
    frame = bytearray(with_flags(data[place.offset : place.offset + place.size]))
    stamp = placement_stamp(identity.incarnation_bytes, place.generation, place.offset, frame[52:60])
    frame[60:64] = stamp.to_bytes(4, "little")
    segment.write_bytes(data[: place.offset] + bytes(frame) + data[place.offset + place.size :])
    for index in segment.parent.glob("*.idx"):
        index.unlink()
    again = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert len(again.report.damage) == 1
    with pytest.raises(UnknownFlagsError):
        again.append(with_flags(entries(1, range(20, 30))))
    again.close()
    third = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    answer = third.read(1, 0, 19)
    assert set(answer.unknown) >= set(range(10))
    assert not answer.absent
    third.close()


def test_a_sealed_segment_that_is_gone_is_unknown_frame_by_frame(tmp_path: Path) -> None:
    segments = filled(tmp_path / "d")
    (segments / segment_name(2)).unlink()
    for _ in range(2):
        storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
        assert len(storage.report.damage) == 1
        assert not storage.report.limbo
        answers = assert_honest(storage, FRAMES)
        assert answers[1].unknown
        assert answers[1].found
        storage.close()


@pytest.mark.rule("S3")
def test_a_sealed_segment_gone_with_its_index_is_noticed_by_its_successor(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    for frame in FRAMES:
        storage.append(frame)
    storage.close(crash=True)
    newest = sorted((tmp_path / "d" / "segments").glob("*.idx"))[-2]
    newest.unlink()
    newest.with_suffix(".segment").unlink()
    for life in range(2):
        again = Storage(tmp_path / "d", segment_bytes=SEGMENT)
        assert again.report.limbo == (life == 0), "known for good from then on"
        assert_honest(again, FRAMES)
        again.close()


@pytest.mark.rule("S3")
def test_bytes_of_a_recycled_segment_are_never_replayed(tmp_path: Path) -> None:
    """The new life of a segment is written over the old one; what lies beyond is of another generation."""
    storage = Storage(tmp_path / "d")
    old = [entries(1, range(20 * k, 20 * k + 20)) for k in range(20)]
    for frame in old:
        storage.append(frame)
    old_content = Path(storage.directory.segments_path, segment_name(1)).read_bytes()
    storage.close()
    # The same directory, its first segment taken for recycling: generation 2 lies over the bytes of generation 1.
    storage = Storage(tmp_path / "d")
    new = [entries(2, range(20 * k, 20 * k + 20)) for k in range(3)]
    generation = storage.log.position[0]
    for frame in new:
        storage.append(frame)
    end = storage.log.position[1]
    storage.close(crash=True)
    path = tmp_path / "d" / "segments" / segment_name(generation)
    content = path.read_bytes()
    for torn in (end, end - 512, end - 4096 + 1024, end - 4096 + 64):
        path.write_bytes(content[:torn] + old_content[torn:])
        for other in path.parent.iterdir():
            if other != path:
                other.unlink()
        again = Storage(tmp_path / "d")
        assert not again.report.damage
        assert set(again.read(1, 0, 500).found) == set(), "a frame of the old life"
        assert set(range(40)) <= set(again.read(2, 0, 100).found)
        again.close(crash=True)


def test_the_index_of_a_segment_cut_at_its_durable_position_serves_nothing_above(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    storage.append(entries(1, range(5)))
    storage.append(entries(1, range(5, 9)))
    durable = storage.log.position[1] - 4096
    storage.close(crash=True)
    again = Storage(tmp_path / "d")
    header, rows, _ = decode_index_file((tmp_path / "d" / "segments" / "0000000000000001.idx").read_bytes())
    assert (header.data_end, header.group_count) == (durable, 1)
    assert rows["last"].tolist() == [4]
    assert again.lookup(1, 8, 8).pieces[0].place.generation == again.log.position[0] > 1
    again.close()


def test_a_tail_that_was_copied_is_not_copied_again(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    frames = [entries(1, range(5)), entries(1, range(5, 9))]
    storage.append(frames[0])
    storage.append(frames[1])
    storage.close(crash=True)
    for copied in (1, 0, 0):
        storage = Storage(tmp_path / "d")
        assert storage.report.frames_copied == copied
        assert_honest(storage, frames, healthy=True)
        storage.close()
        (tmp_path / "d" / "segments" / "0000000000000001.idx").unlink()


@pytest.mark.rule("S3")
def test_a_segment_that_reads_as_zeros_is_damage_and_kept(tmp_path: Path) -> None:
    segments = filled(tmp_path / "d")
    newest = sorted(segments.glob("*.segment"))[-1]
    newest.write_bytes(bytes(SEGMENT))
    for life in range(2):
        storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
        assert storage.report.limbo == (life == 0)
        assert_honest(storage, FRAMES)
        assert newest.exists()
        storage.close()


def test_leftovers_of_a_creation_cut_short_are_removed(tmp_path: Path) -> None:
    segments = filled(tmp_path / "d")
    (segments / (segment_name(99) + ".tmp")).write_bytes(b"half")
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not list(segments.glob("*.tmp"))
    assert not storage.report.damage
    assert storage.log.position[0] < 99
    storage.close()


@pytest.mark.rule("S3")
def test_the_newest_segment_that_is_gone_is_damage_although_no_successor_names_it(tmp_path: Path) -> None:
    segments = filled(tmp_path / "d")
    newest = sorted(segments.glob("*.segment"))[-1]
    assert not newest.with_suffix(".idx").exists()
    newest.unlink()
    for start in range(2):
        storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
        assert bool(storage.report.damage) == (start == 0), "limbo is on record from then on"
        assert_honest(storage, FRAMES)
        assert storage.read(999, 0, 0).unknown
        storage.close()


def test_on_a_full_disk_the_newest_segment_stays_unsealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in which everything is sealed has lost its newest segment."""
    filled(tmp_path / "d")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(Files, "create_preallocated", full)
        for _ in range(2):
            storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
            assert_honest(storage, FRAMES, healthy=True)
            storage.close()
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not storage.report.damage
    assert_honest(storage, FRAMES, healthy=True)
    storage.close()
