# SPDX-License-Identifier: Apache-2.0
"""Starts from a checkpoint: what recycled segments said is known, or it is known that it is lost (S4, S8, I11)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bk_core.entries.frame import FrameKind, encode_record
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.index_file import decode_index_header
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from tests.kit.checkpoint_world import (
    BOTH,
    CONFLICT,
    DEAD,
    DROPPED,
    FENCED,
    GONE,
    LEDGERS,
    LIMBO,
    LIVE,
    RECORDS,
    UNHEARD,
    WITH_LAC,
    World,
    filled,
    stripped,
)
from tests.kit.index_state import state_of
from tests.kit.segment_world import drop_record, entries, fence_record, lac_record, limbo_record


@pytest.mark.rule("S4")
@pytest.mark.parametrize("crash", [False, True])
def test_all_state_outlives_the_segments_it_stood_in(tmp_path: Path, crash: bool) -> None:
    world = filled(tmp_path / "d")
    before = stripped(world.picture())
    live = world.storage.read(LIVE, 0, 200)
    drained = world.recycle()
    assert len(drained) >= 2
    assert 1 in drained
    for _ in range(3):
        storage = world.again(crash=crash)
        assert storage.report.damage == []
        assert not storage.report.limbo
        assert stripped(world.picture()) == before
        again = storage.read(LIVE, 0, 200)
        assert (again.found, again.absent) == (live.found, live.absent)
        assert not any((world.segments / segment_name(generation)).exists() for generation in drained)
    state = world.picture()
    assert state[DEAD].deleted
    assert state[GONE].deleted, "the tombstone stood in a recycled segment"
    assert state[FENCED].fenced
    assert state[WITH_LAC].lac == 41
    assert state[CONFLICT].trouble is Reason.DAMAGED
    troubles = [state[ledger_id].trouble for ledger_id in (LIMBO, DROPPED, BOTH)]
    assert troubles == [Reason.LIMBO, Reason.COPY_DROPPED, Reason.LIMBO]
    world.storage.close()


@pytest.mark.rule("S4")
def test_state_is_the_same_with_a_checkpoint_and_without(tmp_path: Path) -> None:
    """Nothing is recycled here: the segments alone say the same."""
    pictures = []
    for k, marks in enumerate([(), (3,), (3, 12), (0, 7, 20, 33)]):
        world = World(tmp_path / str(k))
        frames = [*RECORDS, *(entries(LIVE, range(10 * k, 10 * k + 10), size=1000) for k in range(20))]
        random.Random(5).shuffle(frames)
        for at, frame in enumerate(frames):
            world.storage.append(frame)
            if at in marks:
                world.checkpoint()
        storage = world.again(crash=True)
        assert storage.report.checkpoint.number == len(marks)
        pictures.append(stripped(world.picture()))
        storage.close()
    assert all(picture == pictures[0] for picture in pictures)


@pytest.mark.rule("S4")
def test_a_dropped_copy_stays_away_when_the_record_of_the_drop_is_recycled(tmp_path: Path) -> None:
    world = World(tmp_path / "d")
    world.storage.append(entries(DROPPED, range(10)), entries(LIVE, range(160)))
    for k in range(4):
        world.storage.append(entries(LIVE, range(160 + 10 * k, 170 + 10 * k), size=1000))
    while world.storage.log.position[0] == 1:
        world.storage.append(entries(DEAD, [0], size=1000))
    world.storage.append(drop_record(DROPPED, 1))
    for k in range(8):
        world.storage.append(entries(DEAD, range(10 * k, 10 * k + 10), size=1000))
    world.storage.append(entries(DROPPED, [3], lac=2), encode_record(FrameKind.DELETED, DEAD))
    world.storage.index.drop_segment(2)
    world.checkpoint()
    assert world.checkpointer.may_recycle(2)
    world.storage.log.pool.recycle(2)
    assert (world.segments / segment_name(1)).exists()
    for _ in range(2):
        answer = world.again(crash=True).read(DROPPED, 0, 9)
        assert set(answer.found) == {3}
        assert answer.unknown == {k: Reason.COPY_DROPPED for k in range(10) if k != 3}
    world.storage.close()


@pytest.mark.rule("S8")
def test_limbo_of_every_ledger_outlives_its_segment(tmp_path: Path) -> None:
    world = World(tmp_path / "d")
    world.storage.append(limbo_record(EVERY_LEDGER))
    world.fill()
    assert 1 in world.recycle()
    storage = world.again()
    assert state_of(storage.index, UNHEARD).trouble is Reason.LIMBO
    assert storage.index.lookup(UNHEARD, 0, 3).absent == ()
    storage.close()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 + 100] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def put_back_an_older_one(path: Path) -> None:
    path.write_bytes(sorted(path.parent.glob("*.checkpoint"))[0].read_bytes())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


@pytest.mark.long
@pytest.mark.rule("S8")
@pytest.mark.parametrize("how", [damage, remove, put_back_an_older_one, cut])
@pytest.mark.parametrize("both", [False, True])
def test_a_lost_checkpoint_is_never_an_empty_start(tmp_path: Path, how: Callable[[Path], None], both: bool) -> None:
    """The state in recycled segments may be gone: nothing is denied, no add accepted. One start makes that durable."""
    world = filled(tmp_path / "d")
    world.checkpoint()
    world.recycle()
    world.storage.close()
    for path in world.checkpoints() if both else world.checkpoints()[-1:]:
        how(path)
    rows = []
    for life in range(3):
        storage = world.open()
        assert storage.report.checkpoint_lost == storage.report.limbo == (life == 0)
        assert bool(storage.report.damage) == (life == 0)
        state = world.picture()
        for ledger_id in (*LEDGERS, UNHEARD):
            assert state[ledger_id].trouble is not Reason.REASON_NONE, ledger_id
            answer = storage.read(ledger_id, 0, 300)
            assert not answer.absent, ledger_id
        assert set(storage.read(LIVE, 0, 300).found) == set(range(160))
        rows.append(len(storage.index.export_ledgers(0, 1000)))
        storage.close()
    assert len(set(rows)) == 1, "one limbo record, and none for each ledger"


@pytest.mark.rule("S8")
def test_what_the_older_checkpoint_and_the_segments_say_is_still_known_after_a_loss(tmp_path: Path) -> None:
    world = World(tmp_path / "d")
    world.storage.append(fence_record(FENCED))
    for k in range(8):
        world.storage.append(entries(DEAD, range(10 * k, 10 * k + 10), size=1000))
    world.checkpoint()
    world.fill()
    world.recycle()
    world.storage.append(lac_record(WITH_LAC, 99))
    world.storage.close()
    damage(world.checkpoints()[-1])
    storage = world.open()
    assert storage.report.checkpoint_lost
    assert state_of(storage.index, FENCED).fenced, "from the older checkpoint"
    assert state_of(storage.index, WITH_LAC).lac == 99, "from the segment"
    storage.close()


@pytest.mark.rule("S4")
def test_an_unreadable_checkpoint_under_which_nothing_was_recycled_does_no_harm(tmp_path: Path) -> None:
    world = filled(tmp_path / "d")
    before = stripped(world.picture())
    world.recycle()
    world.storage.close()
    newest = world.checkpoints()[-1]
    number = world.storage.report.checkpoint.number
    (world.segments / f"{int(newest.stem, 16) + 1:016x}.checkpoint").write_bytes(newest.read_bytes())
    (world.segments / f"{int(newest.stem, 16) + 2:016x}.checkpoint.tmp").write_bytes(b"half")
    storage = world.open()
    assert len(storage.report.damage) == 1
    assert not storage.report.limbo
    assert stripped(world.picture()) == before
    assert storage.report.checkpoint.number == number + 1
    assert not list(world.segments.glob("*.tmp"))
    world.checkpoint()
    assert world.checkpointer.newest.number == number + 3, "above all numbers in the directory"
    storage.close()


@pytest.mark.rule("S8")
@pytest.mark.parametrize("with_index", [False, True])
def test_a_segment_that_the_checkpoint_counts_on_and_is_missing_is_lost(tmp_path: Path, with_index: bool) -> None:
    """No header of another segment names it as the newest sealed one: only the list tells."""
    world = filled(tmp_path / "d")
    world.recycle()
    held = sorted(world.checkpointer.newest.segments)
    gone = held[0]
    world.storage.close()
    (world.segments / segment_name(gone)).unlink()
    if not with_index:
        (world.segments / index_name(gone)).unlink()
    storage = world.open()
    assert any(segment_name(gone) in line for line in storage.report.damage)
    assert storage.report.limbo != with_index
    answer = storage.read(LIVE, 0, 200)
    assert answer.unknown
    assert not answer.absent & set(range(160))
    assert state_of(storage.index, FENCED).fenced
    storage.close()
    assert not world.open().report.limbo, "known from then on"
    assert world.storage.read(LIVE, 0, 200).unknown
    world.storage.close()


@pytest.mark.rule("S4")
@pytest.mark.parametrize("left", ["both", "segment", "index"])
def test_what_a_crash_left_of_drained_segments_is_put_aside_unread(tmp_path: Path, left: str) -> None:
    world = filled(tmp_path / "d")
    before = stripped(world.picture())
    drained = world.drain()
    world.checkpoint()
    world.storage.close(crash=True)
    for generation in drained:
        segment, index = world.segments / segment_name(generation), world.segments / index_name(generation)
        if left == "index":
            segment.unlink()
        else:
            segment.write_bytes(bytes(segment.stat().st_size))  # whatever stands in it
        if left == "segment":
            index.unlink()
    storage = world.open()
    assert storage.report.damage == []
    assert storage.report.drained == drained
    assert stripped(world.picture()) == before
    assert not any((world.segments / segment_name(generation)).exists() for generation in drained)
    assert not any((world.segments / index_name(generation)).exists() for generation in drained)
    assert storage.log.pool.free_segments >= (len(drained) if left != "index" else 0)
    storage.close()


@pytest.mark.rule("S4")
def test_a_start_names_the_checkpoint_in_the_identity_before_it_recycles(tmp_path: Path) -> None:
    """A crash came between the checkpoint and IDENTITY; the start recycles under it, so that its loss must show."""
    world = filled(tmp_path / "d")
    drained = world.drain()
    world.storage.directory.record_checkpoint = lambda number: None
    world.checkpoint()
    world.storage.close(crash=True)
    assert world.open().report.drained == drained
    assert world.storage.directory.identity.checkpoint == 1
    world.storage.close()
    remove(world.checkpoints()[-1])
    assert world.open().report.checkpoint_lost
    world.storage.close()


@pytest.mark.rule("S7")
def test_a_damaged_index_of_a_covered_segment_is_rebuilt_and_changes_nothing(tmp_path: Path) -> None:
    world = filled(tmp_path / "d")
    before = stripped(world.picture())
    world.recycle()
    held = sorted(world.checkpointer.newest.segments)
    world.storage.close()
    for path in (world.segments / index_name(held[0]), world.segments / index_name(held[-1])):
        path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    storage = world.open()
    assert storage.report.indexes_rebuilt == [held[0], held[-1]]
    assert not storage.report.limbo
    assert stripped(world.picture()) == before
    assert set(storage.read(LIVE, 0, 300).found) == set(range(160))
    world.checkpoint()
    assert set(held) <= world.checkpointer.newest.segments
    storage.close()


class Watching(Files):
    """Notes which parts of ``.idx`` files are read."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.read_parts: list[tuple[str, int, int]] = []

    def open_read(self, path: str) -> int:
        handle = super().open_read(path)
        self.paths[handle] = path
        return handle

    def read(self, handle: int, size: int, offset: int) -> bytes:
        if size and self.paths.get(handle, "").endswith(".idx"):
            self.read_parts.append((self.paths[handle], offset, size))
        return super().read(handle, size, offset)


@pytest.mark.rule("S7")
def test_a_start_reads_no_index_records_and_no_state_that_a_checkpoint_has(tmp_path: Path) -> None:
    filled(tmp_path / "d").storage.close()
    World(tmp_path / "d").storage.close()
    for with_checkpoint in (False, True):
        files = Watching()
        world = World(tmp_path / "d", files)
        parts: dict[str, list[tuple[int, int]]] = {}
        for path, offset, size in files.read_parts:
            parts.setdefault(path, []).append((offset, size))
        checked = 0
        for path, read in parts.items():
            sections = decode_index_header(Path(path).read_bytes()[:4096])
            states = [] if with_checkpoint or not sections.state_range[1] else [sections.state_range]
            summary = [sections.summary_range] if sections.summary_range[1] else []
            assert sorted(read) == sorted([(0, 4096), *states, *summary])
            checked += 1
        assert checked >= 4
        world.checkpoint()
        world.storage.close()
