# SPDX-License-Identifier: Apache-2.0
"""The ``.idx``: runs, sparse and summary records, and the checks of every block (docs/formats.md §3.5)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from bk_core.errors import IntegrityError
from bookie_server.storage.bytes.index_file import (
    BuiltIndex,
    IndexHeader,
    IndexSections,
    StateCollector,
    build_index,
    decode_index_block,
    decode_index_header,
    decode_sparse,
    decode_states,
    decode_summary,
)
from bookie_server.storage.bytes.index_rows import DENSE, INDEX_ROW, RUN, Rows, joined_rows, sorted_rows, summary_of
from tests.kit.whole_files import decode_index_file, decode_index_rows, index_range

GOLDEN = Path(__file__).parents[3] / "golden"
HEADER = IndexHeader(9, bytes(range(16)), 1 << 27, 4)


def drawn(seed: int, count: int) -> Rows:
    """Rows of a few ledgers whose frames follow each other on the disk, most of them going on where the ledger ends."""
    random = Random(seed)
    rows = np.zeros(count, dtype=INDEX_ROW)
    offset, ends = 4096, dict[int, int]()
    for row in rows:
        ledger = random.choice([*[1] * 20, 2, 2, 2, 3, *range(10, 30)])
        first = ends.get(ledger, 0) if random.random() < 0.8 else random.randrange(300)
        size, entries = random.choice([100, 100, 300, 5000, 64 << 10]), random.randint(1, 4)
        offset = -(-(offset + random.choice([0, 0, 64, 4096, 4200])) // 64) * 64
        row["ledger"], row["first"], row["last"], row["count"] = ledger, first, first + entries - 1, entries
        row["lac"], row["offset"], row["size"] = random.randrange(-1, 300), offset, size
        row["flags"] = random.choice([0] * 8 + [1, 2, 4] if ledger > 1 else [0])
        if ledger == 2:
            row["flags"] = random.choice([1, 1, 2])
        row["digest_type"], row["bits"] = random.choice([3, 3, 3, 3, 3, 2]), random.choice([DENSE] * 9 + [0])
        offset += size
        if random.random() < 0.8:  # else the next one begins there again, and may be shorter
            ends[ledger] = first + entries
    return rows[np.array(random.sample(range(count), count), dtype=np.int64)] if count else rows


def part(data: bytes, where: tuple[int, int]) -> bytes:
    return data[where[0] : where[0] + where[1]]


@pytest.mark.rule("S7")
@pytest.mark.parametrize("seed", range(40))
def test_runs_hold_what_their_frames_hold_and_nothing_else_of_the_ledger(seed: int) -> None:
    frames = sorted_rows(drawn(seed, Random(seed).choice([1, 2, 30, 300])))
    joined, frame_bytes = joined_rows(frames)
    used = np.zeros(frames.size, dtype=int)
    for row, size in zip(joined, frame_bytes.tolist(), strict=True):
        start, end = int(row["offset"]), int(row["offset"]) + int(row["size"])
        inside = (frames["ledger"] == row["ledger"]) & (frames["offset"] >= start) & (frames["offset"] < end)
        mine = frames[inside]
        used[inside] += 1
        assert int(mine["size"].sum()) == size
        assert (int(mine["first"].min()), int(mine["last"].max())) == (int(row["first"]), int(row["last"]))
        assert int(row["max_last"]) == int(mine["max_last"].max())
        if not row["bits"] & RUN:
            assert mine.size == 1
            continue
        assert mine.size > 1
        assert end - start <= 64 << 10
        assert int(mine["count"].sum()) == int(row["count"]) == int(row["last"]) - int(row["first"]) + 1
        assert int(row["lac"]) == int(mine["lac"].max())
        assert {int(flags) for flags in mine["flags"]} <= {0, 4}
        for field in ("flags", "digest_type"):
            assert len(np.unique(mine[field])) == 1
        by_offset = mine[np.argsort(mine["offset"])]
        assert (np.diff(by_offset["first"]) > 0).all()
        assert (by_offset["offset"][1:] - by_offset["offset"][:-1] - by_offset["size"][:-1] <= 4096).all()
    assert (used == 1).all(), "each frame is in one record"
    assert joined.tobytes() == joined[np.lexsort((joined["first"], joined["ledger"]))].tobytes()


def test_small_neighbours_do_become_runs() -> None:
    rows = np.zeros(100, dtype=INDEX_ROW)
    rows["ledger"], rows["bits"], rows["count"], rows["size"] = 1, DENSE, 1, 128
    rows["first"] = rows["last"] = np.arange(100)
    rows["offset"] = 4096 + 4096 * np.arange(100)  # a group for each, as a writer with one entry in flight makes them
    assert joined_rows(sorted_rows(rows)).rows.size == 7  # sixteen to a window


@pytest.mark.parametrize("seed", range(20))
def test_every_part_of_an_index_is_read_alone_as_in_the_whole(seed: int) -> None:
    built, sections = made(seed)
    data = built.data
    header, rows, states = decode_index_file(data)
    assert header == HEADER
    assert sections.file_bytes == len(data)
    assert decode_index_rows(sections, part(data, index_range(sections))).tobytes() == rows.tobytes()
    assert decode_states(sections, part(data, sections.state_range)).tobytes() == states.tobytes()
    sparse = decode_sparse(sections, part(data, sections.sparse_range))
    for number in range(sections.index_blocks):
        block = decode_index_block(sections, number, part(data, sections.index_block_range(number)))
        assert block.tobytes() == rows[63 * number : 63 * number + 63].tobytes()
        ends = [int(block["ledger"][0]), int(block["first"][0]), int(block["ledger"][-1]), int(block["max_last"][-1])]
        assert sparse[number].tolist() == tuple(ends)
    assert sparse.size == sections.index_blocks
    summary = decode_summary(sections, part(data, sections.summary_range))
    assert summary.tobytes() == built.summary.tobytes()


def made(seed: int) -> tuple[BuiltIndex, IndexSections]:
    states = StateCollector()
    for k in range(Random(seed).choice([0, 3, 100])):
        states.add(k, 3, b"")
    built = build_index(HEADER, drawn(seed, Random(seed).choice([0, 1, 70, 400, 9000])), states.rows())
    return built, decode_index_header(built.data)


@pytest.mark.parametrize("seed", range(20))
def test_a_summary_says_of_each_ledger_what_its_frames_say(seed: int) -> None:
    frames = sorted_rows(drawn(seed, 300))
    joined, frame_bytes = joined_rows(frames)
    summary = summary_of(joined, frame_bytes)
    assert summary["ledger"].tolist() == sorted({*frames["ledger"].tolist()})
    for row in summary:
        mine = frames[frames["ledger"] == row["ledger"]]
        assert int(row["bytes"]) == int(mine["size"].sum())
        assert int(row["first"]) == int(mine["first"].min())
        for field, bit in (("last", 1), ("lac", 2)):
            assert int(row[field]) == int(mine[field].max())
            top = joined[(joined["offset"] == row[f"{field}_offset"]) & (joined["ledger"] == row["ledger"])][0]
            assert (top[field], top["size"]) == (row[field], row[f"{field}_size"])
            assert bool(row["bits"] & bit) == bool(top["bits"] & RUN)


@pytest.mark.rule("S7")
def test_every_byte_of_an_index_is_checked() -> None:
    states = StateCollector()
    states.add(1, 3, b"")
    data = build_index(HEADER, drawn(1, 100), states.rows()).data
    assert len(data) // 4096 >= 5
    for at in range(0, len(data), 61):
        bad = bytearray(data)
        bad[at] ^= 0x04
        with pytest.raises(IntegrityError):
            decode_index_file(bytes(bad))
    for end in (0, 4095, 4096, len(data) - 4096, len(data) - 1):
        with pytest.raises(IntegrityError):
            decode_index_file(data[:end])
    with pytest.raises(IntegrityError):
        decode_index_file(data + bytes(4096))


@pytest.mark.rule("S7")
def test_a_block_at_another_place_of_another_segment_or_life_is_refused() -> None:
    rows = drawn(1, 400)
    built = build_index(HEADER, rows, StateCollector().rows())
    sections = decode_index_header(built.data)
    blocks = [part(built.data, sections.index_block_range(number)) for number in range(sections.index_blocks)]
    assert len(blocks) >= 2
    for number in range(2):
        decode_index_block(sections, number, blocks[number])
        with pytest.raises(IntegrityError):
            decode_index_block(sections, number, blocks[1 - number])
    for other in (IndexHeader(8, HEADER.incarnation, 1 << 27, 4), IndexHeader(9, bytes(16), 1 << 27, 4)):
        foreign = build_index(other, rows, StateCollector().rows()).data
        with pytest.raises(IntegrityError):
            decode_index_block(sections, 0, part(foreign, sections.index_block_range(0)))
    with pytest.raises(IntegrityError):
        sections.index_block_range(len(blocks))
