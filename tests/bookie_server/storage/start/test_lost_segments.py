# SPDX-License-Identifier: Apache-2.0
"""A segment that is gone without a trace but one: what it held may be UNKNOWN and never ABSENT (RULES S3, S8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.segment import free_name, index_name, segment_name, unsealed_name
from bookie_server.storage.check.check import examine
from tests.kit.checkpoint_world import LIVE, filled
from tests.kit.segment_world import Storage, entries, fence_record, key_record
from tests.sim.disk import SimDisk

SEGMENT = 64 << 10


def rolled(path: Path) -> Path:
    """Ledger 1 in segment 1, ledger 2 and a fence in the next: none of them sealed. The folder of segments."""
    storage = Storage(path, segment_bytes=SEGMENT)
    storage.log.append_group([key_record(1), entries(1, range(10), size=400)])
    first = storage.log.position[0]
    storage.log.append_group([entries(1, range(10, 40), size=1400)])
    storage.log.append_group([key_record(2), fence_record(1), entries(2, range(40), size=1400)])
    storage.log.record_position()
    assert storage.log.position[0] > first, "the log has gone on in another segment"
    storage.close(crash=True)
    segments = path / "segments"
    assert not list(segments.glob("*.idx"))
    return segments


def names(segments: Path, kind: str) -> set[str]:
    return {path.name for path in segments.glob(f"*.{kind}")}


@pytest.mark.rule("S3", "S8")
@pytest.mark.parametrize("which", [0, -1], ids=["the one before the newest", "the newest"])
def test_no_segment_can_be_lost_unnoticed_before_it_has_its_index(tmp_path: Path, which: int) -> None:
    segments = rolled(tmp_path / "d")
    lost = sorted(segments.glob("*.segment"))[which]
    lost.unlink()
    assert any(lost.stem in line for line in examine(str(tmp_path / "d"), verify=True).limbo)
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert any(lost.name in line for line in storage.report.damage)
    assert storage.report.limbo
    held = range(1, 2) if which == 0 else range(2, 3)
    for ledger_id in held:
        answer = storage.read(ledger_id, 0, 60)
        assert not answer.absent
        assert set(answer.unknown.values()) == {Reason.LIMBO}
    storage.close()
    again = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not again.read(2, 0, 60).absent, "it is not forgotten either"
    again.close()


def test_a_segment_has_its_mark_until_it_has_its_index(tmp_path: Path) -> None:
    segments = rolled(tmp_path / "d")
    begun = {path.stem for path in segments.glob("*.segment")}
    assert names(segments, "unsealed") == {f"{stem}.unsealed" for stem in begun}
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    active, _ = storage.log.position
    sealed = {path.stem for path in segments.glob("*.idx")}
    assert begun == sealed
    assert not names(segments, "unsealed") & {f"{stem}.unsealed" for stem in sealed}
    assert unsealed_name(active) in names(segments, "unsealed")
    storage.close()


@pytest.mark.parametrize("beside", [free_name, index_name])
def test_a_mark_beside_what_explains_it_goes(tmp_path: Path, beside: object) -> None:
    """A crash between two steps leaves it there."""
    segments = rolled(tmp_path / "d")
    Storage(tmp_path / "d", segment_bytes=SEGMENT).close()
    sealed = sorted(segments.glob("*.idx"))[0].stem
    generation = int(sealed, 16) if beside is index_name else 0xFF
    (segments / unsealed_name(generation)).touch()
    if beside is free_name:
        (segments / free_name(generation)).write_bytes(bytes(SEGMENT))
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not storage.report.damage
    assert unsealed_name(generation) not in names(segments, "unsealed")
    assert storage.log.position[0] > generation or beside is index_name, "a generation is never used twice"
    storage.close()


@pytest.mark.parametrize("size", [SEGMENT, 2 * SEGMENT], ids=["of the right size", "of another size"])
def test_an_index_beside_a_drained_segment_goes_and_tells_of_no_loss(tmp_path: Path, size: int) -> None:
    """A crash between two steps leaves it there, and the next start may be told another size of segments."""
    segments = rolled(tmp_path / "d")
    Storage(tmp_path / "d", segment_bytes=SEGMENT).close()
    [drained, *_] = sorted(segments.glob("*.idx"))
    drained.with_suffix(".segment").rename(drained.with_suffix(".free"))
    drained.with_suffix(".free").write_bytes(bytes(size))
    predicted = examine(str(tmp_path / "d"), verify=True)
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert storage.report.damage == predicted.start.damage == []
    assert not drained.exists()
    storage.close()


def test_a_directory_without_marks_is_as_good(tmp_path: Path) -> None:
    segments = rolled(tmp_path / "d")
    for mark in segments.glob("*.unsealed"):
        mark.unlink()
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not storage.report.damage
    assert set(storage.read(2, 0, 39).found) == set(range(40))
    storage.close()


def test_a_recycled_segment_leaves_no_mark(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    storage.append(key_record(1), entries(1, range(10)))
    active, _ = storage.log.position
    storage.log.pool.ensure(1)
    storage.close(crash=True)
    segments = tmp_path / "d" / "segments"
    assert {path.stem for path in segments.glob("*.unsealed")} >= {segment_name(active).removesuffix(".segment")}
    for _ in range(3):  # each start begins a segment, uses nothing of it, and the next one recycles it
        Storage(tmp_path / "d", segment_bytes=SEGMENT).close(crash=True)
    assert {path.stem for path in segments.glob("*.unsealed")} <= {path.stem for path in segments.glob("*.segment")}


def test_spares_may_be_removed_by_hand(tmp_path: Path) -> None:
    segments = rolled(tmp_path / "d")
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    storage.log.pool.ensure(2)
    storage.close(crash=True)
    for unused in [*segments.glob("*.tmp"), *segments.glob("*.free")]:
        unused.unlink()
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not storage.report.damage
    storage.close()


def test_a_disk_without_room_for_a_name_goes_without_the_mark() -> None:
    disk = SimDisk()
    storage = Storage(Path("/d"), files=disk, segment_bytes=SEGMENT)
    storage.append(entries(1, range(30), size=1400))
    storage.log.pool.ensure(1)
    disk.faults.no_byte = disk.faults.no_space = True
    storage.append(entries(1, range(30, 60), size=1400))
    storage.close(crash=True)
    disk.faults.no_byte = disk.faults.no_space = False
    again = Storage(Path("/d"), files=disk, segment_bytes=SEGMENT)
    assert set(again.read(1, 0, 59).found) == set(range(60))
    again.close()


@pytest.mark.rule("S3", "S4")
def test_what_is_written_after_all_segments_were_lost_is_not_taken_for_recycled_by_the_next_start(
    tmp_path: Path,
) -> None:
    """The checkpoint lists the lost ones up to a generation: what is new must stand above it."""
    world = filled(tmp_path / "d")
    world.recycle()
    world.storage.close(crash=True)
    for path in [path for path in world.segments.iterdir() if path.suffix != ".checkpoint"]:
        path.unlink()
    storage = world.again()
    assert storage.report.limbo
    storage.append(entries(LIVE, range(500, 520)))
    for _ in range(2):
        storage = world.again()
        assert storage.report.drained == []
        assert set(storage.read(LIVE, 500, 519).found) == set(range(500, 520))
    storage.close()


# --- indexes that cannot be read ---


def sealed(path: Path) -> Path:
    """Ledger 1 in a sealed segment, ledger 2 in the newest one. The index of the sealed one."""
    storage = Storage(path, segment_bytes=SEGMENT)
    storage.append(key_record(1), *[entries(1, range(k, k + 10), size=1400) for k in range(0, 40, 10)])
    storage.append(key_record(2), *[entries(2, range(k, k + 10), size=1400) for k in range(0, 40, 10)])
    storage.close()
    return min((path / "segments").glob("*.idx"))


@pytest.mark.rule("S3", "S8")
def test_a_sealed_segment_of_which_nothing_can_be_read_is_no_empty_one(tmp_path: Path) -> None:
    index = sealed(tmp_path / "d")
    index.write_bytes(bytes(index.stat().st_size))
    segment = index.with_suffix(".segment")
    kept = segment.read_bytes()[:4096]
    segment.write_bytes(kept + bytes(segment.stat().st_size - len(kept)))  # its header is there, and no frame
    predicted = examine(str(tmp_path / "d"), verify=True).start
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert storage.report.limbo
    assert any(segment.name in line for line in storage.report.damage)
    assert predicted.damage == storage.report.damage
    answer = storage.read(1, 0, 9)
    assert not answer.absent
    assert set(answer.unknown.values()) == {Reason.LIMBO}
    storage.close()


@pytest.mark.rule("S3")
def test_an_unreadable_index_of_a_sound_segment_loses_nothing(tmp_path: Path) -> None:
    index = sealed(tmp_path / "d")
    index.write_bytes(bytes(index.stat().st_size))
    storage = Storage(tmp_path / "d", segment_bytes=SEGMENT)
    assert not storage.report.limbo
    assert set(storage.read(1, 0, 39).found) == set(range(40))
    storage.close()
