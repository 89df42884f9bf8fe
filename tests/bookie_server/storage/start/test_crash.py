# SPDX-License-Identifier: Apache-2.0
"""Kill the writer anywhere, garble the file anywhere: what was acked is found or reported, never denied (S3, S6)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.segment import (
    decode_group_header,
    decode_segment_header,
    encode_group_header,
    group_seed,
    segment_name,
)
from tests.kit.index_state import state_of
from tests.kit.segment_world import (
    Storage,
    assert_honest,
    entries,
    fence_record,
    key_record,
    lac_record,
    striped,
)

GROUPS: list[list[bytes]] = [
    [key_record(1), entries(1, range(40)), key_record(2), entries(2, range(3))],
    [entries(1, range(40, 60), lac=39), striped(3, 0, 30), entries(2, [7, 9, 4])],
    [fence_record(2), lac_record(1, 59), entries(1, [60], size=70_000), entries(2, range(10, 12))],
    [entries(3, range(40, 41)), entries(1, range(61, 90), lac=60)],
]


class Written:
    """A directory with the groups in it, of which those up to ``recorded`` lie below the durable position."""

    def __init__(self, path: Path, *, idle: bool) -> None:
        self.path = path
        storage = Storage(path)
        self.starts = []
        for group in GROUPS:
            self.starts.append(storage.log.position[1])
            storage.append(*group)
        self.end = storage.log.position[1]
        if idle:
            storage.log.record_position()
        recorded = GROUPS if idle else GROUPS[:-1]
        self.durable = self.end if idle else self.starts[-1]
        self.must = [frame for group in recorded for frame in group]
        self.may = [frame for group in GROUPS[len(recorded) :] for frame in group]
        self.generation = storage.log.position[0]
        storage.close(crash=True)
        self.content = self.segment.read_bytes()

    @property
    def segment(self) -> Path:
        return self.path / "segments" / segment_name(self.generation)

    def reopen_with(self, content: bytes, scratch: Path) -> Storage:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(self.path, scratch)
        (scratch / "segments" / segment_name(self.generation)).write_bytes(content)
        return Storage(scratch)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("idle") / "data", idle=True)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("busy") / "data", idle=False)


def zeroed(content: bytes, start: int, stop: int) -> bytes:
    return content[:start] + bytes(stop - start) + content[stop:]


@pytest.mark.rule("S6")
@pytest.mark.parametrize("life", ["idle", "busy"])
def test_kill_after_the_last_sync_loses_nothing(life: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    written: Written = request.getfixturevalue(life)
    storage = written.reopen_with(written.content, tmp_path / "d")
    assert_honest(storage, written.must + written.may, healthy=True)
    assert storage.report.frames_copied == len(written.may)
    assert not storage.report.damage
    storage.close()


@pytest.mark.rule("S3")
def test_a_torn_group_is_a_tail_even_with_good_frames_behind_the_bad(busy: Written, tmp_path: Path) -> None:
    start = busy.starts[-1]
    storage = busy.reopen_with(zeroed(busy.content, start + 64, start + 128), tmp_path / "d")
    answers = assert_honest(storage, busy.must, busy.may, healthy=True)
    assert not storage.report.damage
    assert 40 not in answers[3].found
    assert set(range(61, 90)) <= set(answers[1].found)
    storage.close()


@pytest.mark.rule("S3")
def test_a_flipped_bit_in_the_last_acked_group_of_an_idle_bookie_is_damage(idle: Written, tmp_path: Path) -> None:
    at = idle.starts[-1] + 64 + 64 + 2  # inside the columns of the last group's first frame
    content = bytearray(idle.content)
    content[at] ^= 1
    storage = idle.reopen_with(bytes(content), tmp_path / "d")
    assert storage.report.limbo
    assert storage.read(3, 40, 40).unknown == {40: Reason.LIMBO}
    assert storage.read(999, 0, 0).unknown == {0: Reason.LIMBO}, "a ledger that only this group knew may be lost whole"
    storage.close()
    again = Storage(tmp_path / "d")
    assert not again.report.damage, "the scanned segment was sealed"
    assert again.read(3, 40, 40).unknown == {40: Reason.LIMBO}
    assert again.read(999, 0, 0).unknown == {0: Reason.LIMBO}
    again.close()


@pytest.mark.rule("S8")
def test_damage_whose_ledger_is_known_leaves_the_others_alone(idle: Written, tmp_path: Path) -> None:
    content = bytearray(idle.content)
    at = content.index(b"2/1 ")  # in the payload of entry 1 of ledger 2
    content[at] ^= 1
    storage = idle.reopen_with(bytes(content), tmp_path / "d")
    assert not storage.report.limbo
    assert len(storage.report.damage) == 1
    unread = storage.lookup(2, 0, 2).unknown
    assert [(u.first, u.last, u.reason) for u in unread] == [(0, 2, Reason.DAMAGED)]
    assert storage.read(2, 0, 6).unknown == dict.fromkeys(range(3), Reason.DAMAGED)
    assert not storage.read(1, 0, 90).unknown
    storage.close()
    again = Storage(tmp_path / "d")
    assert again.read(2, 0, 6).unknown == dict.fromkeys(range(3), Reason.DAMAGED), "found again when it is read"
    again.close()


@pytest.mark.rule("S8")
def test_a_record_with_a_bad_payload_puts_its_ledger_in_limbo_for_good(idle: Written, tmp_path: Path) -> None:
    content = bytearray(idle.content)
    content[content.index(bytes([1]) * 20) + 10] ^= 1  # in the key of ledger 1; the stamp before it may end in a 1
    storage = idle.reopen_with(bytes(content), tmp_path / "d")
    for _ in range(2):
        assert not storage.report.limbo
        assert state_of(storage.index, 1).trouble is Reason.LIMBO
        assert state_of(storage.index, 2).trouble is Reason.REASON_NONE
        assert storage.read(1, 80, 92).unknown == dict.fromkeys((90, 91, 92), Reason.LIMBO)
        storage.close()
        storage = Storage(tmp_path / "d")
    storage.close()


def group_of_zeros(written: Written) -> bytes:
    return zeroed(written.content, *written.starts[1:3])


def gap_in_group_numbers(written: Written) -> bytes:
    """All bytes are good."""
    incarnation = decode_segment_header(written.content[:4096]).incarnation
    content = bytearray(written.content)
    for start in written.starts[2:]:
        header = decode_group_header(content[start : start + 64], incarnation)
        content[start : start + 64] = encode_group_header(
            header._replace(number=header.number + 1), group_seed(incarnation)
        )
    return bytes(content)


def shorter_than_preallocated(written: Written) -> bytes:
    return written.content[:-4096]


@pytest.mark.rule("S3")
@pytest.mark.parametrize("damaged", [group_of_zeros, gap_in_group_numbers, shorter_than_preallocated])
def test_what_no_crash_leaves_is_damage(damaged: Callable[[Written], bytes], idle: Written, tmp_path: Path) -> None:
    storage = idle.reopen_with(damaged(idle), tmp_path / "d")
    assert storage.report.limbo
    assert_honest(storage, idle.must, idle.may)
    storage.close()


@pytest.mark.rule("S3")
def test_a_missing_segment_is_damage_and_never_an_empty_start(tmp_path: Path) -> None:
    written = Written(tmp_path / "data", idle=True)
    written.segment.unlink()
    storage = Storage(written.path)
    assert storage.report.limbo
    assert_honest(storage, written.must, written.may)
    storage.close()
    again = Storage(written.path)
    assert_honest(again, written.must, written.may)
    assert not again.report.damage
    again.close()


@pytest.mark.rule("S8")
def test_limbo_of_the_directory_stays_with_ledgers_that_are_written_later(tmp_path: Path) -> None:
    written = Written(tmp_path / "data", idle=True)
    written.segment.unlink()
    for life in range(3):
        storage = Storage(written.path)
        assert storage.report.limbo == (life == 0)
        storage.append(entries(7, range(3)))
        answer = storage.read(7, 0, 4)
        assert set(answer.found) == {0, 1, 2}
        assert answer.unknown == {3: Reason.LIMBO, 4: Reason.LIMBO}
        storage.close()
