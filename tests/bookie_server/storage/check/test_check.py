# SPDX-License-Identifier: Apache-2.0
"""Examining a directory offline: it says what a start will make of it, writes nothing, and repairs indexes only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bk_core.entries.frame import FrameKind, encode_record
from bk_core.errors import DataDirectoryError
from bookie_server.storage.check.check import examine
from bookie_server.storage.check.findings import MISSING, OPEN, SEALED, DirectoryFindings
from bookie_server.storage.disk.health import DiskHealth
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from tests.kit.segment_world import Storage, entries, fence_record, key_record, limbo_record
from tests.kit.whole_files import decode_index_file, encode_index_file

SEGMENT = 64 << 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Several sealed segments and an open one; ledgers 0 to 4, of which 3 is fenced, 4 deleted; 7 in limbo."""
    made = tmp_path / "data"
    storage = Storage(made, segment_bytes=SEGMENT)
    for k in range(30):
        storage.append(key_record(k % 5), entries(k % 5, range(10 * k, 10 * k + 10), size=600))
    storage.append(fence_record(3), encode_record(FrameKind.DELETED, 4))
    storage.append(limbo_record(7))
    storage.close()
    storage = Storage(made, segment_bytes=SEGMENT)
    storage.append(entries(9, [1, 2, 3]), entries(9, [7]))
    storage.close()
    return made


def check(path: Path, *, repair: bool = False, verify: bool = True) -> DirectoryFindings:
    return examine(str(path), verify=verify, repair=repair)


def segments(path: Path, suffix: str = "segment") -> list[Path]:
    return sorted((path / "segments").glob(f"*.{suffix}"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("verify", [True, False])
def test_healthy_directory_is_described_and_left_alone(path: Path, verify: bool) -> None:
    before = contents(path)
    found = check(path, verify=verify)
    assert not found.is_damaged
    assert (
        found.remedies()[-1] == "1 ledgers are in limbo: entries of them that are not found are answered UNKNOWN until "
        "they are repaired from their other copies."
    )
    assert [segment.state for segment in found.segments[-2:]] == [SEALED, OPEN]
    assert (found.identity.bookie_id, found.identity.boot_count) == ("bookie-1:3181", 2)
    assert sorted(found.ledgers) == [0, 1, 2, 3, 7, 9]
    assert found.deleted_ledgers == 1
    ledgers = found.ledgers
    assert (ledgers[3].is_fenced, ledgers[2].is_fenced, ledgers[7].trouble) == (True, False, "limbo")
    assert (ledgers[0].first, ledgers[0].last, ledgers[9].first, ledgers[9].last, ledgers[7].last) == (0, 259, 1, 7, -1)
    dead = sum(s.frame_bytes - s.live_bytes for s in found.segments)
    assert dead > 0, "the deleted ledger's"
    assert contents(path) == before


def test_torn_tail_is_no_damage_and_is_told_apart(path: Path) -> None:
    storage = Storage(path, segment_bytes=SEGMENT)
    storage.append(entries(9, [8], size=3000))
    _, place = storage.append(entries(9, [9], size=3000), entries(9, [10], size=3000))
    storage.close(crash=True)
    flip(segments(path)[-1], place.offset + 1000)
    found = check(path)
    assert not found.is_damaged
    [torn] = [note for note in found.segments[-1].notes if "torn tail" in note]
    assert "acknowledged within the last 100 ms" in torn, "it was: the disk damaged it, and that looks the same"
    assert any("whole frames above" in note for note in found.segments[-1].notes)


def test_damaged_frame_of_a_sealed_segment_is_named_down_to_its_entries(path: Path) -> None:
    storage = Storage(path, segment_bytes=SEGMENT)
    [piece] = storage.lookup(2, 20, 29).pieces
    storage.close()
    flip(path / "segments" / f"{piece.place.generation:016x}.segment", piece.place.offset + 3000)
    assert not check(path, verify=False).is_damaged, "a quick look reads no frame"
    found = check(path)
    assert found.is_damaged
    assert not found.limbo
    assert [(one.ledger_id, one.first, one.last) for one in found.lost] == [(2, 20, 29)]
    assert any("UNKNOWN" in remedy for remedy in found.remedies())


def test_group_header_of_a_sealed_segment_names_all_that_it_hides(path: Path) -> None:
    storage = Storage(path, segment_bytes=SEGMENT)
    [piece] = storage.lookup(2, 20, 29).pieces
    storage.close()
    segment = path / "segments" / f"{piece.place.generation:016x}.segment"
    data = bytearray(segment.read_bytes())
    start = piece.place.offset // 4096 * 4096
    data[start : start + 8192] = bytes(8192)
    segment.write_bytes(data)
    found = check(path)
    assert (2, 20, 29) in [(one.ledger_id, one.first, one.last) for one in found.lost]
    assert not found.limbo


def flip_index(path: Path) -> None:
    flip(segments(path, "idx")[1], 5000)  # a block that is read when it is asked for


def flip_index_header(path: Path) -> None:
    flip(segments(path, "idx")[1], 50)


def other_index(path: Path) -> None:
    first, second = segments(path, "idx")[1:3]
    shutil.copy(second, first)


@pytest.mark.parametrize("harm", [flip_index, flip_index_header, other_index])
def test_bad_index_is_repaired_from_its_segment(path: Path, harm: Callable[[Path], None]) -> None:
    good = segments(path, "idx")[1].read_bytes()
    harm(path)
    assert check(path, verify=False).is_damaged
    found = check(path)
    assert [segment.generation for segment in found.bad_indexes] == [2]
    assert any("--repair" in remedy for remedy in found.remedies())
    assert segments(path, "idx")[1].read_bytes() != good, "nothing is written without --repair"
    repaired = check(path, repair=True)
    assert (repaired.is_damaged, repaired.segments[1].repaired) == (False, True)
    assert segments(path, "idx")[1].read_bytes() == good
    storage = Storage(path, segment_bytes=SEGMENT)
    assert storage.report.indexes_rebuilt == []
    storage.close()


def test_index_that_is_whole_but_lies_is_noticed(path: Path) -> None:
    """As after a segment's file was restored from another time."""
    storage = Storage(path, segment_bytes=SEGMENT)
    storage.append(*(entries(11, range(k, k + 5), size=400) for k in range(0, 50, 5)))
    storage.close()
    Storage(path, segment_bytes=SEGMENT).close()
    older = segments(path, "idx")[-1]
    header, rows, states = decode_index_file(older.read_bytes())
    older.write_bytes(encode_index_file(header, rows[:-1], states))
    found = check(path)
    assert [segment.index_problem for segment in found.bad_indexes] == ["it does not name 10 frames of the segment"]


@pytest.mark.rule("S3")
def test_index_of_a_damaged_segment_is_never_repaired(path: Path) -> None:
    """It would hide the damage from the start, which must put the ledgers in limbo."""
    flip(segments(path, "idx")[1], 50)
    flip(segments(path)[1], 4096 + 20)
    found = check(path, repair=True)
    assert not found.segments[1].repaired
    assert found.limbo
    assert any("limbo" in remedy for remedy in found.remedies())
    storage = Storage(path, segment_bytes=SEGMENT)
    assert storage.report.limbo
    storage.close()


@pytest.mark.rule("S2")
@pytest.mark.parametrize("bad_block", [False, True], ids=["whole index", "index block bad, too"])
def test_zeroed_end_of_a_sealed_segment_is_damage_and_no_repair_forgets_it(path: Path, bad_block: bool) -> None:
    """The group before it is the last on record, and whole: but the index says that there was more."""
    storage = Storage(path, segment_bytes=SEGMENT)
    storage.append(entries(9, [20]))
    storage.log.record_position()
    storage.append(entries(9, [21]))
    storage.close()
    Storage(path, segment_bytes=SEGMENT).close()
    index = next(p for p in reversed(segments(path, "idx")) if decode_index_file(p.read_bytes())[1].size)
    header, rows, _ = decode_index_file(index.read_bytes())
    assert rows["first"][-1] == 21
    segment = index.with_suffix(".segment")
    data = segment.read_bytes()
    segment.write_bytes(data[: int(rows["offset"][-1]) // 4096 * 4096].ljust(len(data), b"\0"))
    if bad_block:
        flip(index, 5000)
    found = check(path, repair=True)
    [damaged] = [one for one in found.segments if one.damage]
    assert (damaged.generation, damaged.repaired) == (header.generation, False)
    if not bad_block:
        assert [(one.ledger_id, one.first) for one in found.lost] == [(9, 21)]
    storage = Storage(path, segment_bytes=SEGMENT)
    assert 21 in storage.read(9, 21, 21).unknown
    storage.close()


def test_newest_segment_gets_no_index_from_a_repair(path: Path) -> None:
    newest = segments(path)[-1]
    newest.with_suffix(".idx").write_bytes(b"what is this")
    found = check(path, repair=True)
    assert not found.segments[-1].repaired
    Storage(path, segment_bytes=SEGMENT).close()


def test_missing_segment_and_identity_are_told(path: Path) -> None:
    segments(path)[1].unlink()
    (path / "IDENTITY").write_bytes(b"{}")
    found = check(path)
    assert found.segments[1].state == MISSING
    assert found.lost
    assert found.identity is None
    assert any("IDENTITY" in line for line in found.damage)
    assert "--accept-loss" in found.remedies()[0]
    assert {0, 1, 2, 3} <= set(found.ledgers), "segment headers say whose directory it is"
    assert any("says that this is the directory of bookie-1:3181" in line for line in found.notes)


def test_a_directory_of_which_nothing_can_be_read_is_told(path: Path) -> None:
    (path / "IDENTITY").unlink()
    for segment in segments(path):
        segment.write_bytes(bytes(SEGMENT))
    before = contents(path)
    found = check(path)
    assert found.is_damaged
    assert len(found.limbo) >= len(found.segments)
    assert contents(path) == before


def test_mixed_cookie_is_told(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Storage(other, segment_bytes=SEGMENT).close()
    text = (other / "VERSION").read_text().replace("bookie-1:3181", "bookie-2:3181")
    (path / "VERSION").write_text(text)
    assert any("mixed" in line for line in check(path).damage)


def test_directory_in_use_and_what_is_none_are_refused(path: Path, tmp_path: Path) -> None:
    storage = Storage(path, segment_bytes=SEGMENT)
    with pytest.raises(DataDirectoryError, match="in use"):
        check(path)
    storage.close()
    with pytest.raises(DataDirectoryError, match="not a bookie's"):
        check(tmp_path)


@pytest.mark.rule("S8")
@pytest.mark.parametrize("lost", [("0000000000000007.segment",), ("0000000000000004.segment", "0000000000000004.idx")])
def test_segment_that_is_gone_without_a_trace_is_announced_as_limbo(path: Path, lost: tuple[str, ...]) -> None:
    """The newest, which nothing names, and one that the next names as the newest sealed."""
    for name in lost:
        (path / "segments" / name).unlink()
    found = check(path)
    assert any("missing" in line for line in found.limbo)
    storage = Storage(path, segment_bytes=SEGMENT)
    assert storage.report.limbo
    storage.close()


# --- checkpoints ---


def checkpointed(path: Path) -> Path:
    """Have a checkpoint made; its file."""
    storage = Storage(path, segment_bytes=SEGMENT)
    checkpointer = Checkpointer(storage.directory, DirectIndexPort(storage.index), DiskHealth())
    assert checkpointer.start()
    while checkpointer.busy:
        checkpointer.step(1 << 20)
    storage.close()
    [made] = segments(path, "checkpoint")
    return made


def test_state_that_only_a_checkpoint_has_is_shown(path: Path) -> None:
    checkpointed(path)
    found = check(path)
    assert not found.is_damaged
    assert found.checkpoint == 1
    assert found.ledgers[3].is_fenced
    assert found.deleted_ledgers == 1


@pytest.mark.rule("S4")
def test_lost_checkpoint_is_announced_as_limbo(path: Path) -> None:
    made = checkpointed(path)
    flip(made, 4096 + 10)
    found = check(path)
    assert any("checkpoint 1 is lost" in line for line in found.damage)
    assert any("under a checkpoint that is lost" in line for line in found.limbo)
    assert found.checkpoint == 0, "the new one is only what a start would write"
    assert found.in_limbo == 1, "the ledger that is in limbo now, not those that will be"
    storage = Storage(path, segment_bytes=SEGMENT)
    assert storage.report.limbo
    storage.close()


def test_segment_that_the_checkpoint_names_and_is_gone_is_announced_as_limbo(path: Path) -> None:
    checkpointed(path)
    for suffix in ("segment", "idx"):
        segments(path, suffix)[1].unlink()
    found = check(path)
    assert any("0000000000000002.segment is missing" in line for line in found.limbo)
    assert (found.segments[1].generation, found.segments[1].state) == (2, MISSING)
    storage = Storage(path, segment_bytes=SEGMENT)
    assert storage.report.limbo
    storage.close()
