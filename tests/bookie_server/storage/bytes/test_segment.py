# SPDX-License-Identifier: Apache-2.0
"""Codecs of segment and group headers, names, the ``.idx`` and the layout of groups."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.frame import FrameKind, parse_header
from bk_core.errors import IntegrityError
from bookie_server.storage.bytes.index_file import IndexHeader, StateCollector
from bookie_server.storage.bytes.index_rows import INDEX_ROW, sorted_rows
from bookie_server.storage.bytes.intervals import IntervalSet
from bookie_server.storage.bytes.segment import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    GroupHeader,
    SegmentHeader,
    decode_group_header,
    decode_segment_header,
    encode_group_header,
    encode_segment_header,
    group_seed,
    index_name,
    parse_name,
    placement_stamp,
    seeded_stamp,
    segment_name,
    stamp_seed,
    unsealed_name,
)
from bookie_server.storage.log.layout import plan_groups
from tests.kit.amount import examples
from tests.kit.segment_world import entries
from tests.kit.whole_files import decode_index_file, encode_index_file

INCARNATION = bytes(range(16))
SEGMENT = SegmentHeader(7, INCARNATION, 1 << 20, 1_760_000_000_000, 3, 6, "bookie-ö:3181")
GROUP = GroupHeader(7, 12, 8192, 3, 40_960, 40_960)


def test_every_byte_of_a_segment_header_is_checked() -> None:
    block = encode_segment_header(SEGMENT)
    assert decode_segment_header(block) == SEGMENT
    for at in range(4096):
        bad = bytearray(block)
        bad[at] ^= 0x20
        with pytest.raises(IntegrityError):
            decode_segment_header(bytes(bad))
    with pytest.raises(IntegrityError):
        decode_segment_header(block[:4095])


def test_every_byte_of_a_group_header_is_checked_and_so_is_the_incarnation() -> None:
    block = encode_group_header(GROUP, group_seed(INCARNATION))
    assert decode_group_header(block, INCARNATION) == GROUP
    assert decode_group_header(block, INCARNATION[::-1]) is None
    assert decode_group_header(block[:63], INCARNATION) is None
    for at in range(64):
        bad = bytearray(block)
        bad[at] ^= 0x20
        assert decode_group_header(bytes(bad), INCARNATION) is None


def test_a_group_that_makes_no_sense_is_refused_with_a_right_crc() -> None:
    for odd in (
        GROUP._replace(group_bytes=0),
        GROUP._replace(group_bytes=4097),
        GROUP._replace(offset=40_961),
        GROUP._replace(durable=45_056),
    ):
        assert decode_group_header(encode_group_header(odd, group_seed(INCARNATION)), INCARNATION) is None


@pytest.mark.rule("S3")
def test_a_stamp_is_of_one_place_in_one_life() -> None:
    stamps = {
        placement_stamp(incarnation, generation, offset, crcs)
        for incarnation in (INCARNATION, bytes(16))
        for generation in (1, 2)
        for offset in (4160, 8192)
        for crcs in (b"12345678", b"12345679")
    }
    assert len(stamps) == 16
    seed = stamp_seed(INCARNATION, 7)
    assert seeded_stamp(seed, 4160, b"12345678") == placement_stamp(INCARNATION, 7, 4160, b"12345678")


def test_names_are_read_as_they_are_written() -> None:
    assert parse_name(segment_name(0xABC)) == (0xABC, "segment")
    assert parse_name(index_name(1)) == (1, "idx")
    assert parse_name(unsealed_name(16)) == (16, "unsealed")
    for name in ("0000000000000ABC.segment", "abc.segment", segment_name(1) + ".tmp", "LOCK", "0" * 16):
        assert parse_name(name) is None


@examples(0.4)
@given(st.integers(0, 200), st.integers(0, 130), st.integers(0, 1 << 30))
def test_an_index_file_is_read_as_it_was_written(row_count: int, state_count: int, seed: int) -> None:
    rng = random.Random(seed)
    rows = np.zeros(row_count, dtype=INDEX_ROW)
    for row in rows:
        first = rng.randrange(100)
        row["ledger"], row["first"], row["last"] = rng.randrange(3), first, first + rng.randrange(30)
        row["offset"], row["lac"] = rng.randrange(1 << 40), rng.randrange(-1, 1 << 62)
    states = StateCollector()
    for k in range(state_count):
        states.add(k, FrameKind.LEDGER_KEY, bytes([k]) * 20)
    ordered = sorted_rows(rows)
    header = IndexHeader(9, INCARNATION, 1 << 19, 4)
    data = encode_index_file(header, ordered, states.rows())
    assert len(data) % 4096 == 0
    read_header, read_rows, read_states = decode_index_file(data)
    assert read_header == header
    assert read_rows.tobytes() == ordered.tobytes()
    assert read_states.tobytes() == states.rows().tobytes()
    peaks: dict[int, int] = {}
    keys = []
    for ledger, first, last, peak, _, offset, *_ in ordered.tolist():
        peaks[ledger] = max(last, peaks.get(ledger, -1))
        assert peak == peaks[ledger]
        keys.append((ledger, first, last, offset))
    assert keys == sorted(keys)


def test_of_lac_records_only_the_newest_is_kept_as_state() -> None:
    states = StateCollector()
    bodies = [bytes(8) + lac.to_bytes(8, "big", signed=True) + b"dgst" for lac in (5, 300, -1)]
    for body in bodies:
        states.add(1, FrameKind.LAC, body)
    rows = states.rows()
    assert bytes(rows["payload"][0])[:20] == bodies[1]
    assert rows.size == 1


@examples(1)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=20))
def test_an_interval_set_agrees_with_a_set(ranges: list[tuple[int, int]]) -> None:
    intervals, plain = IntervalSet(), set()
    for first, length in ranges:
        intervals.add(first, first + length)
        plain.update(range(first, first + length + 1))
    assert {i for i in range(-2, 80) if i in intervals} == plain
    assert len(intervals) == sum(i - 1 not in plain for i in plain)
    for first, last in ((0, 79), (5, 5), (20, 40)):
        seen = [(i, inside) for low, high, inside in intervals.split(first, last) for i in range(low, high + 1)]
        assert seen == [(i, i in plain) for i in range(first, last + 1)]


def test_groups_keep_the_order_and_stay_within_their_limits() -> None:
    rng = random.Random(2)
    frames = [entries(1, [k], size=rng.choice([10, 3000, 64_000, 66_000])) for k in range(60)]
    plan = plan_groups(frames, position=1 << 18, segment_bytes=1 << 18)
    assert [frame for parts, _, _ in plan for _, frame, _ in parts] == frames
    assert plan[0][2]
    position = 0
    for parts, group_bytes, new_segment in plan:
        position, end = SEGMENT_HEADER_BYTES if new_segment else position, GROUP_HEADER_BYTES
        for offset, frame, header in parts:
            assert offset >= end
            assert header == parse_header(frame)
            assert offset % (4096 if header.size >= 65_536 else 64) == 0
            end = offset + len(frame)
        assert 0 <= group_bytes - end < 4096
        position += group_bytes
        assert position <= (1 << 18) - 4096


def test_no_group_is_larger_than_the_largest() -> None:
    frames = [entries(1, [0], size=1 << 20)] * 20
    sizes = [size for _, size, _ in plan_groups(frames, position=SEGMENT_HEADER_BYTES, segment_bytes=1 << 28)]
    assert len(sizes) == 2
    assert (1 << 24) - (1 << 20) - 8192 < sizes[0] <= 1 << 24


def test_the_last_block_of_a_segment_is_left_to_its_last_idle_group() -> None:
    for blocks_left, goes_on in ((3, True), (2, True), (1, False), (0, False)):
        [plan] = plan_groups([entries(1, [0])], position=(1 << 18) - 4096 * blocks_left, segment_bytes=1 << 18)
        assert plan[1:] == (4096, not goes_on)
