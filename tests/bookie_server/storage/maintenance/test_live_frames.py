# SPDX-License-Identifier: Apache-2.0
"""What compaction reads of a segment: all that is live, checked; and what becomes of damage (RULES S4, S5)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from bk_core.entries.batch import I64, EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import IndexBlock
from bookie_server.storage.bytes.index_file import build_index
from bookie_server.storage.bytes.joined_frames import frame_sizes
from bookie_server.storage.maintenance.sealed import live_frames
from bookie_server.storage.maintenance.sealed.live_frames import LiveFrames
from tests.kit.compaction_world import CompactionWorld, deleted
from tests.kit.segment_world import assert_honest, entries, striped
from tests.kit.whole_files import decode_index_file

DEAD = 100


def small_world() -> tuple[CompactionWorld, list[bytes]]:
    """One sealed segment: ledger 1 in runs, 2 in single frames, 3 striped, 4 large, and dead ones between."""
    world = CompactionWorld()
    live: list[bytes] = []
    for k in range(12):
        some = [entries(1, [k], lac=k - 1, size=100), entries(1, [20 + k], size=100)]
        if k % 4 == 0:
            some += [entries(2, range(3 * k, 3 * k + 2), size=700), striped(3, 9 * k, 9)]
        if k == 5:
            some.append(entries(4, range(3), size=3000))
        world.append(*some, entries(DEAD, [k], size=1000))
        live += some
    world.roll()
    world.append(*deleted(DEAD))
    return world, live


def read(world: CompactionWorld, generation: int = 1, live: I64 | None = None) -> list[bytes]:
    """Every frame given out of a segment, but for the stamp; sorted."""
    directory = world.storage.directory
    frames = LiveFrames(world.disk, directory.segments_path, generation, directory.identity.incarnation_bytes)
    live = world.storage.index.ledgers_in(generation) if live is None else live
    while not frames.read_index(live):
        pass
    found: list[bytes] = []
    while not frames.at_end:
        table = frames.next()
        assert table is not None, frames.damage
        ends = table.starts + frame_sizes(table.heads)
        for start, end in zip(table.starts.tolist(), ends.tolist(), strict=True):
            frame = bytes(table.data[start:end])
            found.append(frame[:60] + frame[64:])
    frames.close()
    return sorted(found)


def unstamped(frames: list[bytes]) -> list[bytes]:
    return sorted(frame[:60] + frame[64:] for frame in frames)


@pytest.mark.rule("S4")
@pytest.mark.parametrize(("window", "gap"), [(1 << 20, 128 << 10), (8192, 0), (4096, 4096), (20_000, 600)])
def test_all_that_is_live_is_read_once_however_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, window: int, gap: int
) -> None:
    monkeypatch.setattr(live_frames, "WINDOW_BYTES", window)
    monkeypatch.setattr(live_frames, "GAP_BYTES", gap)
    world, live = small_world()
    assert world.storage.index.sealed_generations()[0] == 1
    found = [frame for generation in (1,) for frame in read(world, generation)]
    assert found == unstamped(live)


def test_nothing_is_read_where_nothing_is_live() -> None:
    world, _ = small_world()
    assert read(world, live=np.empty(0, dtype=np.int64)) == []


@pytest.mark.rule("S4")
def test_dropped_copies_are_not_live_and_later_ones_are() -> None:
    world = CompactionWorld()
    before, after = [entries(1, [k]) for k in range(5)], [entries(1, [k]) for k in range(3)]
    other = [entries(2, [k], size=300) for k in range(4)]
    world.append(*before, *other)
    world.roll()
    world.drop(1)
    world.append(*after)
    second = world.storage.log.position[0]
    world.roll()
    assert read(world) == unstamped(other)
    assert read(world, second) == unstamped(after)


def test_what_looks_like_a_frame_inside_a_payload_is_not_taken_for_one() -> None:
    """The payload of these frames begins at a multiple of 64 and is a frame of the same ledger."""
    world = CompactionWorld()
    inner = entries(1, [3])
    made = []
    for k in range(0, 64, 8):
        batch = EntryBatch.from_list([inner, *[b"x" * 9] * 7])
        digester = Digester(DigestType.CRC32C, b"", 1)
        frame = encode_frame(batch, digester=digester, ledger_id=1, first_entry_id=k, lac=-1, length_before=0)
        made.append(bytes(frame))
        world.append(made[-1], entries(2, [k], size=200))
    world.roll()
    assert [frame for frame in read(world) if b"x" * 9 in frame] == unstamped(made)
    assert world.compact()
    assert world.storage.read(1, 0, 63).found.keys() == set(range(64))


# --- damage -----------------------------------------------------------------------------------------------------------

Harm = Callable[[CompactionWorld, int, int], None]


def flip(world: CompactionWorld, offset: int, size: int) -> None:
    world.disk.flip_bit(world.segment(1), offset + size - 1)


def flip_header(world: CompactionWorld, offset: int, size: int) -> None:
    world.disk.flip_bit(world.segment(1), offset + 24)


def flip_stamp(world: CompactionWorld, offset: int, size: int) -> None:
    world.disk.flip_bit(world.segment(1), offset + 61)


def flip_magic(world: CompactionWorld, offset: int, size: int) -> None:
    world.disk.flip_bit(world.segment(1), offset)


def eio(world: CompactionWorld, offset: int, size: int) -> None:
    world.disk.break_sector(world.segment(1), offset)


def other_frame(world: CompactionWorld, offset: int, size: int) -> None:
    """A whole frame of the same segment stands where another should."""
    place = next(place for place in world.places_of(DEAD) if place.generation == 1)
    world.disk.copy_range(world.segment(1), place.offset, offset, 128)


HARMS: dict[str, Harm] = {
    "payload": flip, "header": flip_header, "stamp": flip_stamp, "magic": flip_magic, "sector": eio,
    "misplaced": other_frame,
}  # fmt: skip


@pytest.mark.rule("S5", "S8", "I5")
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("ledger_id", [1, 2, 3, 4])
def test_a_damaged_frame_is_not_copied_and_its_segment_is_kept(
    ledger_id: int, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    world, live = small_world()
    place = next(place for place in world.places_of(ledger_id) if place.generation == 1)
    HARMS[harm](world, place.offset, place.size)
    for _ in range(2):  # in this life and in the next one
        with caplog.at_level(logging.ERROR):
            world.compact(major=True)
            world.compact(major=True)
        assert 1 in world.storage.index.sealed_generations()
        assert world.compactor.stats.damaged_segments == 1
        assert 1 not in world.compactor.take_drained()
        assert len([record for record in caplog.records if "is kept" in record.message]) == 1
        caplog.clear()
        answers = assert_honest(world.storage, live)
        assert Reason.DAMAGED in answers[ledger_id].unknown.values()
        assert all(not answer.unknown for other, answer in answers.items() if other != ledger_id) or harm == "sector"
        world.restart()


def test_damage_among_what_is_dead_does_not_matter() -> None:
    world, live = small_world()
    for place in world.places_of(DEAD):
        if place.generation == 1:
            flip(world, place.offset, place.size)
    assert world.compact(major=True)
    assert 1 not in world.storage.index.sealed_generations()
    assert_honest(world.storage, live, healthy=True)


def test_a_segment_known_to_be_damaged_is_not_even_read() -> None:
    world, _ = small_world()
    place = next(place for place in world.places_of(2) if place.generation == 1)
    world.storage.index.mark_damaged(2, place)
    world.compact(major=True)
    assert 1 in world.storage.index.sealed_generations()
    assert world.compactor.stats.damaged_segments == 0


@pytest.mark.rule("S4")
def test_a_damaged_segment_is_given_up_once_all_in_it_is_dead() -> None:
    world, _ = small_world()
    place = next(place for place in world.places_of(2) if place.generation == 1)
    flip(world, place.offset, place.size)
    world.compact(major=True)
    world.append(*deleted(1, 2, 3, 4))
    world.compact()
    assert 1 in world.compactor.take_drained()


@pytest.mark.rule("S5")
def test_what_only_the_page_cache_has_wrong_is_read_from_the_disk() -> None:
    world, live = small_world()
    for ledger_id in (1, 2, 3):
        place = next(place for place in world.places_of(ledger_id) if place.generation == 1)
        world.disk._find(world.segment(1)).cache[place.offset + place.size - 1] ^= 1
    assert world.compact(major=True)
    assert 1 not in world.storage.index.sealed_generations()
    assert_honest(world.storage, live, healthy=True)


@pytest.mark.rule("S8")
def test_a_segment_that_is_gone_is_kept_in_the_index() -> None:
    world, live = small_world()
    world.disk.lose_file(world.segment(1))
    world.compact(major=True)
    assert 1 in world.storage.index.sealed_generations()
    answers = assert_honest(world.storage, live)
    assert all(answer.unknown for answer in answers.values())


@pytest.mark.rule("S7")
@pytest.mark.parametrize("what", ["a block", "the header", "all of it"])
def test_a_damaged_index_keeps_its_segment_until_it_is_made_anew(what: str) -> None:
    world, live = small_world()
    path = world.index_file(1)
    header, rows, states = decode_index_file(world.disk.read_file(path))
    if what == "all of it":
        world.disk.lose_file(path)
    else:
        world.disk.flip_bit(path, 4096 + 8 if what == "a block" else 20)
    world.compact(major=True)
    assert 1 in world.storage.index.sealed_generations()
    assert world.storage.index.damaged_indexes == {1}
    assert_honest(world.storage, live)
    built = build_index(header, rows, states)
    world.disk.write_atomically(path, built.data)
    world.storage.reader.release(1)
    world.storage.index.index_rebuilt(1, built.summary)
    assert world.compact(major=True)
    assert 1 not in world.storage.index.sealed_generations()
    assert_honest(world.storage, live, healthy=True)


def test_an_index_of_another_segment_is_damage() -> None:
    world, live = small_world()
    world.append(*(entries(5, range(10 * k, 10 * k + 10), size=1000) for k in range(9)))
    world.disk.write_atomically(world.index_file(1), world.disk.read_file(world.index_file(2)))
    world.storage.reader.release(1)
    world.compact(major=True)
    assert 1 in world.storage.index.sealed_generations()
    assert_honest(world.storage, live)


def test_a_frame_larger_than_segments_are_now_keeps_its_segment() -> None:
    world = CompactionWorld(segment_bytes=256 << 10)
    live = [entries(1, range(3), size=30_000)]
    world.append(*live)
    world.storage.close()
    world._segment_bytes = 64 << 10
    world.open()
    assert world.compact(major=True) == 0
    assert world.storage.index.sealed_generations() == [1]
    assert world.compactor.step(1, major=True) == 0
    assert_honest(world.storage, live, healthy=True)


@pytest.mark.rule("S8")
def test_lost_entries_that_a_re_made_index_names_keep_its_segment() -> None:
    """Their record leads to where no frame can stand."""
    world, live = small_world()
    path = world.index_file(1)
    header, rows, states = decode_index_file(world.disk.read_file(path))
    lost = rows[rows["ledger"] == 2][:1].copy()
    lost["first"], lost["last"], lost["offset"], lost["size"] = 50, 59, lost["offset"] + 1, 64
    built = build_index(header, np.concatenate((rows, lost)), states)
    world.disk.write_atomically(path, built.data)
    world.storage.reader.release(1)
    world.storage.index.mark_damaged(2, IndexBlock(1, 0))
    world.storage.index.index_rebuilt(1, built.summary)
    world.compact(major=True)
    assert 1 in world.storage.index.sealed_generations()
    assert set(world.storage.read(2, 50, 59).unknown) == set(range(50, 60))
    assert_honest(world.storage, live)
