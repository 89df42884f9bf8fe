# SPDX-License-Identifier: Apache-2.0
"""The storage's index as the machine asks for it, compared with a dumb list of frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.entries.frame import FrameKind, encode_striped, entry_ids_of, frame_extent, parse_header, slice_frame
from bk_core.model import DigestType
from bookie_server.engine.holdings import GAP_BYTES_MAX, IndexHoldings, answer_read, spans
from bookie_server.machine.disk_places import Place
from bookie_server.machine.events import FramesRead, Piece, ReadFrames
from bookie_server.machine.state import Ledger, LedgerFacts, LogQueue, LookupPlan, Pending
from bookie_server.storage.bytes.membership import runs_of_ids
from bookie_server.storage.bytes.segment import segment_name
from bookie_server.storage.index.index import LedgerIndex, Lookup
from bookie_server.storage.log.segment_reader import SegmentReader
from tests.bookie_server.storage.log.test_entry_cuts import Counting
from tests.kit.amount import examples
from tests.kit.lanes import digester, frame
from tests.kit.memory_holdings import MemoryHoldings, stored
from tests.kit.segment_world import Storage
from tests.kit.segment_world import entries as world_frame

LEDGER = 7


def striped(first: int, span: int, index: int, *, size: int = 3, quorum: int = 2, session: int = 0) -> bytes:
    """What bookie ``index`` of an ensemble of ``size`` gets of these entries."""
    batch = EntryBatch.from_list([b"entry %d" % (first + k) for k in range(span)])
    made = encode_striped(
        batch,
        ledger_id=LEDGER,
        first_entry_id=first,
        lac=-1,
        length_before=0,
        digest_type=DigestType.CRC32C,
        digests=digester(LEDGER).compute_run(first, -1, 0, batch.lengths, batch.payload),
        ensemble_size=size,
        write_quorum=quorum,
        index=index,
        session=session,
    )
    return bytes(made)


def pending_of(data: bytes) -> Pending:
    header = parse_header(data)
    return Pending(header, frame_extent(data, header), data, Ledger(LEDGER, LedgerFacts(), -1, LogQueue(0)), None)


FRAMES = st.lists(
    st.one_of(
        st.tuples(st.just("dense"), st.integers(0, 30), st.integers(1, 12)),
        st.tuples(st.sampled_from(["striped 0", "striped 1", "striped 2"]), st.integers(0, 30), st.integers(3, 12)),
    ),
    max_size=9,
)


def build(frames: list[tuple[str, int, int]]) -> tuple[IndexHoldings, MemoryHoldings, dict[Place, bytes]]:
    real, dumb, places = IndexHoldings(LedgerIndex()), MemoryHoldings(), dict[Place, bytes]()
    for number, (kind, first, span) in enumerate(frames):
        if kind == "dense":
            data = frame(LEDGER, first, [b"entry %d" % (first + k) for k in range(span)])
        else:
            data = striped(first, span, int(kind[-1]))
        place = Place(1, 4096 * (number + 1), len(data))
        places[place] = data
        real.add(pending_of(data), place)
        dumb.add(pending_of(data), stored(data))
    return real, dumb, places


def found_by(plan: LookupPlan, places: dict[Place, bytes]) -> set[int]:
    found: set[int] = set()
    for piece in plan.pieces:
        assert isinstance(piece.place, Place)
        data = places[piece.place]
        ids = entry_ids_of(parse_header(data), data)
        inside = {int(one) for one in ids if piece.first <= one <= piece.last}
        assert piece.first in inside, "a piece is never empty"
        found |= inside
    return found


@pytest.mark.rule("S2")
@examples(2)
@given(FRAMES, st.integers(0, 35), st.integers(0, 20), st.sampled_from([1, 300, 1 << 20]))
def test_plan_finds_what_a_dumb_search_finds(
    frames: list[tuple[str, int, int]], first: int, more: int, bytes_max: int
) -> None:
    real, dumb, places = build(frames)
    last = first + more
    plan = real.plan(LEDGER, first, last, bytes_max, {})
    assert first <= plan.answered_through <= last
    wanted = dumb.plan(LEDGER, first, plan.answered_through, 1 << 30, {})
    expected = {entry for entry in range(first, plan.answered_through + 1) if any_holds(dumb, entry)}
    assert {i for i in found_by(plan, places) if first <= i <= plan.answered_through} == expected
    absent = {i for gap in plan.absent for i in range(gap.first, gap.last + 1)}
    assert absent == {i for gap in wanted.absent for i in range(gap.first, gap.last + 1)}
    assert real.overlaps(LEDGER, first, last) >= bool(expected)
    assert real.last_entry_id(LEDGER) == dumb.last_entry_id(LEDGER)


class CountingIndex(LedgerIndex):
    """An index that notes how many frames each look-up found."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def lookup(self, *args: Any, **options: Any) -> Lookup:
        answer = super().lookup(*args, **options)
        self.found.append(len(answer.pieces))
        return answer


@pytest.mark.parametrize(("size", "frames_of_a_part"), [(2 << 20, 1), (100 << 10, 11), (100, 1024)])
def test_a_part_is_planned_by_the_frames_in_it_not_by_those_in_the_range(size: int, frames_of_a_part: int) -> None:
    index, frames, data = CountingIndex(), 3_000, frame(LEDGER, 0, [b"x"])
    extent = frame_extent(data)
    for number in range(frames):
        index.add_frame(LEDGER, extent._replace(first=number, last=number), Place(1, (number + 1) * size, size))
    holdings, first, parts = IndexHoldings(index), 0, 0
    while first < frames:
        plan = holdings.plan(LEDGER, first, frames - 1, 1 << 20, {})
        assert len(plan.pieces) == min(frames_of_a_part, frames - first)
        first, parts = plan.answered_through + 1, parts + 1
    assert parts == -(-frames // frames_of_a_part)
    assert (len(index.found), sum(index.found)) == (parts, frames)


def test_a_piece_with_all_entries_of_its_frame_says_so() -> None:
    real = build([("dense", 0, 4), ("dense", 4, 4), ("dense", 8, 4)])[0]
    pieces = {(piece.first, piece.last): piece.is_whole for piece in real.plan(LEDGER, 2, 9, 1 << 20, {}).pieces}
    assert pieces == {(2, 3): False, (4, 7): True, (8, 9): False}


def read_of(storage: Storage, pieces: list[Piece]) -> list[bytes | None]:
    answer = answer_read(storage.reader, ReadFrames((1, 1), pieces))
    assert isinstance(answer, FramesRead)
    return [None if frame is None else bytes(frame)[64:] for frame in answer.frames]


@pytest.mark.rule("S5")
def test_whole_frames_that_follow_each_other_are_read_together_and_each_is_checked(tmp_path: Path) -> None:
    files = Counting()
    storage = Storage(tmp_path / "d", files=files, segment_bytes=1 << 20)
    frames = [world_frame(2, [k], size=70_000) for k in range(4)]
    places = [*storage.append(*frames[:3]), *storage.append(frames[3])]
    pieces = [Piece(place, k, k, is_whole=True) for k, place in enumerate(places)]
    span = places[3].offset + places[3].size - places[0].offset
    files.bytes = 0
    assert read_of(storage, pieces) == [frame[64:] for frame in frames]
    assert (files.bytes, storage.reader.reads) == (span, 1)
    parts = [Piece(piece.place, piece.first, piece.last) for piece in pieces]
    assert read_of(storage, parts) == [frame[64:] for frame in frames]
    assert storage.reader.reads == 5, "what may be a part is read alone"
    path = tmp_path / "d" / "segments" / segment_name(places[1].generation)
    content = bytearray(path.read_bytes())
    content[places[1].offset + 1000] ^= 1
    path.write_bytes(content)
    assert read_of(storage, pieces) == [frames[0][64:], None, frames[2][64:], frames[3][64:]]
    assert storage.reader.damaged == 1
    storage.reader.give_up(places[0].generation)
    assert read_of(storage, pieces) == [None] * 4
    storage.close()


@pytest.mark.parametrize(
    ("places", "together"),
    [
        ([Place(1, 0, 100), Place(1, 100, 100), Place(1, 200, 100)], [3]),
        ([Place(1, 0, 100), Place(1, 100 + GAP_BYTES_MAX, 100)], [2]),
        ([Place(1, 0, 100), Place(1, 101 + GAP_BYTES_MAX, 100)], [1, 1]),
        ([Place(1, 100, 100), Place(1, 0, 100)], [1, 1]),
        ([Place(1, 0, 100), Place(2, 100, 100)], [1, 1]),
        ([Place(1, 0, 100), Place(1, 100, 100, run_of=7), Place(1, 200, 100)], [1, 1, 1]),
        ([Place(1, k << 20, 1 << 20) for k in range(5)], [4, 1]),
    ],
)
def test_frames_that_are_read_together_are_near_each_other_and_few(places: list[Place], together: list[int]) -> None:
    pieces = [Piece(place, k, k, is_whole=True) for k, place in enumerate(places)]
    assert [len(some) for some in spans(pieces)] == together


def test_a_reader_that_fails_for_frames_together_reads_each_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(SegmentReader):
        def read_together(self, places: Sequence[Place]) -> NoReturn:
            raise ValueError("a bug")

    storage = Storage(tmp_path / "d")
    frames = [world_frame(2, [k]) for k in range(2)]
    places = storage.append(*frames)
    storage.reader.__class__ = Wrong
    assert read_of(storage, [Piece(place, k, k, is_whole=True) for k, place in enumerate(places)]) == [
        frame[64:] for frame in frames
    ]
    assert "a bug" in caplog.text
    storage.close()


def any_holds(dumb: MemoryHoldings, entry: int) -> bool:
    ledger = dumb.ledgers.get(LEDGER)
    return bool(ledger) and any(one.holds(entry) for one in ledger.frames)


def test_unresolved_frame_is_asked_for_before_anything_is_said() -> None:
    index = LedgerIndex()
    data = striped(0, 9, 1)
    place = Place(1, 4096, len(data))
    index.add_frame(LEDGER, frame_extent(data), place)  # as from a sealed segment's index
    holdings = IndexHoldings(index)
    assert holdings.plan(LEDGER, 0, 8, 1000, {}) == LookupPlan((), (), (), (place,), -1)
    ids = entry_ids_of(parse_header(data), data)
    plan = holdings.plan(LEDGER, 0, 8, 1000, {place: runs_of_ids(ids)})
    assert found_by(plan, {place: data}) == set(ids.tolist())


def test_an_entry_in_memory_is_found_wherever_its_frame_is_and_no_other(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d", files=Counting())
    holdings, frames = IndexHoldings(storage.index, storage.reader), {}
    for k in (0, 3):
        frames[k] = world_frame(2, range(k, k + 3), lac=k)
        storage.append(frames[k])
    alone = world_frame(2, [6])
    place = storage.append(alone)[0]
    assert holdings.entry(2, 6) is None, "its segment is not open"
    storage.reader.read_entries(place, 6, 6)
    for entry_id in range(6):
        wanted = slice_frame(frames[entry_id // 3 * 3], entry_id, entry_id)
        assert bytes(holdings.entry(2, entry_id) or b"") == bytes(wanted)
    assert bytes(holdings.entry(2, 6) or b"")[64:] == alone[64:]
    assert holdings.entry(2, 7) is None
    assert holdings.entry(3, 0) is None
    assert IndexHoldings(storage.index).entry(2, 0) is None, "without a reader nothing is in memory"
    storage.index.mark_damaged(2, place)
    assert holdings.entry(2, 6) is None
    storage.index.add_record(FrameKind.DELETED, 2, b"")
    assert holdings.entry(2, 0) is None
    storage.close()
