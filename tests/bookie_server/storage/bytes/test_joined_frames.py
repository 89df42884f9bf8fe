# SPDX-License-Identifier: Apache-2.0
"""Joined frames hold the same entries: payload, LAC, ledger length and digest, bit for bit (RULES P6, S7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import (
    check_frame,
    decode_frame,
    encode_frame,
    parse_header,
)
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bookie_server.storage.bytes import joined_frames
from bookie_server.storage.bytes.index_rows import index_row, sorted_rows
from bookie_server.storage.bytes.joined_frames import (
    FRAME_HEAD,
    JOINED_BYTES,
    Copies,
    FrameTable,
    dense_rows,
    frame_sizes,
    join_frames,
)
from tests.kit.amount import examples
from tests.kit.apache_frames import encode_apache, entry_bytes
from tests.kit.segment_world import striped

PASSWORD = b"secret"
Entry = tuple[int, int, bytes, bytes, int, int]
"""Ledger, id, payload, digest, LAC, ledger length including it."""


def table_of(frames: list[bytes]) -> FrameTable:
    """The frames as compaction reads them."""
    data = b"".join(frame.ljust(-(-len(frame) // 64) * 64, b"\0") for frame in frames)
    sizes = [-(-len(frame) // 64) * 64 for frame in frames]
    starts = np.cumsum([0, *sizes])[:-1].astype(np.int64)
    heads = np.frombuffer(b"".join(frame[:64] for frame in frames), dtype=FRAME_HEAD)
    rows = np.concatenate([sorted_rows(_row(frame)) for frame in frames])
    return FrameTable(np.frombuffer(data, dtype=np.uint8), starts, heads, rows)


def _row(frame: bytes) -> bytes:
    return index_row(frame, parse_header(frame), 0)


def entries_of(frame: bytes) -> list[Entry]:
    """Every entry of a frame with all that a reader learns of it; its digests must be right."""
    header = parse_header(frame)
    digest_type = DigestType(header.digest_type or DigestType.CRC32C)
    digester = Digester(digest_type, PASSWORD, header.ledger_id)
    batch = decode_frame(frame, digester=digester, verify_digests=True)
    digests = [bytes(row) for row in batch.digests]
    numbers = (batch.entry_ids(), batch.entry_lacs(), batch.cumulative_lengths())
    ids, lacs, lengths = (column.tolist() for column in numbers)
    items = zip(ids, batch.to_list(), digests, lacs, lengths, strict=True)
    return [(header.ledger_id, *item) for item in items]


def assert_same(frames: list[bytes]) -> Copies:
    """What comes out holds the entries that went in, once at least, and is described rightly."""
    copies = join_frames(table_of(frames))
    wanted = [entry for frame in frames for entry in entries_of(frame)]
    got: list[Entry] = []
    for frame, row in zip(copies.frames, copies.rows, strict=True):
        header = check_frame(frame)
        got += entries_of(bytes(frame))
        expected = sorted_rows(_row(bytes(frame)))[0]
        for name in set(row.dtype.names or ()) - {"max_last"}:
            assert row[name] == expected[name], (name, header)
        assert row["size"] == len(frame)
    assert set(got) == set(wanted)
    assert len(got) <= len(wanted)
    return copies


@st.composite
def writers(draw: st.DrawFn) -> list[bytes]:
    """Frames as writers of a few ledgers sent them: mostly in a row; LACs that move inside a frame; lengths that do not
    follow; ids listed; entries in Apache's layout; sent again."""
    frames: list[bytes] = []
    for ledger_id in range(1, draw(st.integers(1, 3)) + 1):
        digest_type = draw(st.sampled_from(DigestType))
        digester = Digester(digest_type, PASSWORD, ledger_id)
        is_apache = draw(st.sampled_from([False, False, True])) and digest_type is DigestType.CRC32C
        first, length, lac = draw(st.integers(0, 50)), draw(st.integers(0, 1000)), -1
        for _ in range(draw(st.integers(1, 12))):
            count = draw(st.integers(1, 4))
            sizes = draw(st.lists(st.integers(0, 90), min_size=count, max_size=count))
            batch = EntryBatch.from_list([bytes([(first + k) % 256]) * size for k, size in enumerate(sizes)])
            batch = replace(batch, ledger_id=ledger_id, first_entry_id=first, lac=lac, length_before=length)
            lengths = length + np.cumsum(batch.lengths, dtype=np.int64)
            if draw(st.booleans()):
                lacs = np.sort(np.array(draw(st.lists(st.integers(-1, 60), min_size=count, max_size=count))))
                batch = replace(batch, lacs=lacs.astype(np.int64), lac=int(lacs[-1]))
            if draw(st.integers(0, 4)) == 0:
                lengths = lengths + np.arange(1, count + 1) * draw(st.integers(1, 7))
                batch = replace(batch, ledger_lengths=lengths, length_before=-1)
            if draw(st.integers(0, 7)) == 0:
                batch = replace(batch, ids=first + 2 * np.arange(count, dtype=np.int64)[::-1], ledger_lengths=lengths)
            frame = bytes(encode_frame(batch, digester=digester))
            if is_apache:
                whole = decode_frame(frame, digester=digester)
                frame = bytes(encode_apache(ledger_id, entry_bytes(whole, digester)))
            frames += [frame] * draw(st.sampled_from([1, 1, 1, 2]))
            first, length = first + count + draw(st.sampled_from([0, 0, 0, 0, 1])), int(lengths[-1])
            lac = first - 1
    return draw(st.permutations(frames))


@pytest.mark.long
@pytest.mark.rule("P6")
@examples(1.5)
@given(writers())
def test_every_entry_is_the_same_after_joining(written: list[bytes]) -> None:
    assert_same(written)


def frames_of(ledger_id: int, count: int, size: int, *, lac: int | None = None, first: int = 0) -> list[bytes]:
    """Frames of one entry, in a row."""
    digester = Digester(DigestType.CRC32C, PASSWORD, ledger_id)
    made = []
    for k in range(count):
        batch = EntryBatch.from_list([bytes([k % 256]) * size])
        carried = first + k - 1 if lac is None else lac
        frame = encode_frame(
            batch, digester=digester, ledger_id=ledger_id, first_entry_id=first + k, lac=carried, length_before=k * size
        )
        made.append(bytes(frame))
    return made


@pytest.mark.rule("S7")
def test_one_entry_frames_in_a_row_become_one_frame_with_a_column_of_lacs() -> None:
    copies = assert_same(frames_of(7, 300, 100))
    assert copies.joined == 300
    assert len(copies.frames) == 1
    header = parse_header(copies.frames[0])
    assert (header.first_entry_id, header.count, header.lac, header.length_before) == (0, 300, 298, 0)
    assert len(copies.frames[0]) == 64 + 300 * (4 + 4 + 8 + 100)


def test_entries_that_carry_one_lac_need_no_column() -> None:
    copies = assert_same(frames_of(7, 10, 100, lac=3))
    assert len(copies.frames[0]) == 64 + 10 * (4 + 4 + 100)


def test_a_joined_frame_is_full_at_its_bound() -> None:
    copies = assert_same(frames_of(7, 700, 1000))
    assert len(copies.frames) == 3
    assert max(map(len, copies.frames)) <= JOINED_BYTES <= 1 << 20


def test_gaps_and_ledgers_part_frames() -> None:
    copies = assert_same([*frames_of(1, 3, 40), *frames_of(1, 3, 40, first=4), *frames_of(2, 2, 40, first=7)])
    assert [parse_header(frame).count for frame in copies.frames] == [3, 3, 2]


def test_what_stands_there_twice_is_copied_once() -> None:
    frames = frames_of(1, 4, 40)
    copies = assert_same([*frames, *frames])
    assert [parse_header(frame).count for frame in copies.frames] == [4]


def test_striped_and_large_frames_stay_as_they_are() -> None:
    whole = [striped(5, 0, 30), striped(5, 30, 30), *frames_of(6, 2, 70_000)]
    copies = join_frames(table_of(whole))
    assert sorted(bytes(frame) for frame in copies.frames) == sorted(whole)
    assert copies.joined == 0


def test_one_frame_and_no_frame_are_no_special_case() -> None:
    assert len(assert_same(frames_of(1, 1, 10)).frames) == 1
    empty = table_of(frames_of(1, 1, 10)).take(np.empty(0, dtype=np.int64))
    assert len(join_frames(empty).frames) == 0


def test_ledger_lengths_near_their_greatest_do_not_make_a_frame_that_nobody_reads() -> None:
    digester = Digester(DigestType.CRC32C, PASSWORD, 1)
    frames = []
    for k, length in enumerate([(1 << 63) - 20, (1 << 63) - 10]):
        batch = EntryBatch.from_list([b"x" * 9])
        batch = replace(batch, ledger_lengths=np.array([length]), length_before=-1)
        frames.append(bytes(encode_frame(batch, digester=digester, ledger_id=1, first_entry_id=k, lac=-1)))
    copies = assert_same(frames)
    assert len(copies.frames) == 1


@pytest.mark.rule("P6")
def test_entries_whose_digest_is_wrong_keep_the_checksum_of_their_writer() -> None:
    """A reader must not take our checksum for its word that they were right."""
    frames, wrong = frames_of(1, 6, 40), Digester(DigestType.CRC32C, PASSWORD, 2)
    batch = EntryBatch.from_list([b"x" * 40])
    digests = wrong.compute_run(6, -1, 240, batch.lengths, batch.payload)
    bad = replace(batch, ledger_id=1, first_entry_id=6, length_before=240, digests=digests)
    frames.append(bytes(encode_frame(replace(bad, digest_type=DigestType.CRC32C), digester=None)))
    frames += frames_of(2, 5, 40)
    copies = join_frames(table_of(frames))
    assert copies.joined == 5
    assert sorted(bytes(f) for f in copies.frames if parse_header(f).ledger_id == 1) == sorted(frames[:7])
    assert sorted(copies.rows["first"][copies.rows["ledger"] == 1].tolist()) == list(range(7))


def test_entries_without_digests_are_not_joined() -> None:
    digester = Digester(DigestType.DUMMY, PASSWORD, 1)
    batch = EntryBatch.from_list([b"x" * 40])
    frames = [
        bytes(encode_frame(batch, digester=digester, ledger_id=1, first_entry_id=k, lac=-1, length_before=40 * k))
        for k in range(4)
    ]
    assert assert_same(frames).joined == 0


def test_lengths_that_do_not_add_up_are_refused() -> None:
    table = table_of(frames_of(1, 2, 40))
    data = table.data.copy()
    data[table.starts[1] + 64] = 39
    with pytest.raises(IntegrityError, match="lengths"):
        join_frames(FrameTable(data, table.starts, table.heads, table.rows))


def test_rows_of_dense_frames_are_what_an_index_would_say() -> None:
    frames = frames_of(3, 4, 100)
    table = table_of(frames)
    rows = dense_rows(table.heads)
    assert rows.tolist() == table.rows.tolist()
    assert frame_sizes(table.heads).tolist() == [len(frame) for frame in frames]
    assert joined_frames.FRAME_HEAD.itemsize == 64
