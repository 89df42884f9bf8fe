# SPDX-License-Identifier: Apache-2.0
"""The index against a dict: overlapping, nested, striped, sparse and unordered frames (RULES S2), folding (S4)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.frame import FrameExtent, FrameKind
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import Place
from bookie_server.machine.events import Piece
from bookie_server.storage.bytes.index_rows import DENSE, INDEX_ROW, SUMMARY_ROW, sorted_rows
from bookie_server.storage.bytes.membership import Membership, Striping, runs_of_ids
from bookie_server.storage.index.index import LedgerIndex, Lookup
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from bookie_server.storage.index.segment_directory import SegmentDirectory
from tests.kit.amount import examples
from tests.kit.index_state import state_of
from tests.kit.segment_world import Storage, entries, striped

LEDGER = 5


@dataclass(frozen=True)
class Fake:
    """A frame as the index sees it."""

    ids: tuple[int, ...]
    striping: Striping | None

    @property
    def extent(self) -> FrameExtent:
        dense = self.ids[-1] - self.ids[0] + 1 == len(self.ids)
        return FrameExtent(self.ids[0], self.ids[-1], dense, len(self.ids), -1)


@st.composite
def fakes(draw: st.DrawFn) -> Fake:
    first = draw(st.integers(0, 60))
    kind = draw(st.sampled_from(["dense", "striped", "ids"]))
    span = draw(st.integers(1, 25))
    if kind == "ids":
        ids = draw(st.sets(st.integers(first, first + 25), min_size=1, max_size=12))
        return Fake(tuple(sorted(ids)), None)
    if kind == "striped":
        size = draw(st.integers(2, 5))
        striping = Striping(size, draw(st.integers(1, size - 1)), draw(st.integers(0, size - 1)))
        held = [i for i in range(first, first + span) if (striping.index - i) % size < striping.write_quorum]
        if held:
            return Fake(tuple(held), striping)
    return Fake(tuple(range(first, first + span)), None)


def ask(
    index: LedgerIndex, frames: dict[Place, Fake], first: int, last: int, frames_max: int, bytes_max: int
) -> Lookup:
    resolved: dict[Place, Membership] = {}
    for _ in range(100):
        answer = index.lookup(LEDGER, first, last, frames_max=frames_max, bytes_max=bytes_max, resolved=resolved)
        if not answer.unresolved:
            return answer
        for place in answer.unresolved:
            frame = frames[place]
            if frame.striping is not None:
                resolved[place] = frame.striping
                index.learn(LEDGER, place, frame.striping)
            else:
                resolved[place] = runs_of_ids(np.array(frame.ids))
    raise AssertionError("the look-up never ends")


def said_of(answer: Lookup, served: dict[Place, Fake], first: int, top: int) -> dict[int, object]:
    """What the answer says of each id from first to top; each is said once."""
    said: dict[int, object] = {}
    for piece in answer.pieces:
        assert first <= piece.first <= piece.last <= answer.through
        held = [i for i in served[piece.place].ids if piece.first <= i <= piece.last]
        assert (held[0], held[-1]) == (piece.first, piece.last)
        for entry_id in held:
            assert said.setdefault(entry_id, piece) is piece
    ranges = [(low, high, "absent") for low, high in answer.absent]
    for unknown in answer.unknown:
        assert unknown.reason is Reason.DAMAGED
        ranges.append((unknown.first, unknown.last, "unknown"))
    for low, high, word in ranges:
        for entry_id in range(low, min(high, top) + 1):
            assert entry_id not in said
            said[entry_id] = word
    return said


def check(index: LedgerIndex, frames: dict[Place, Fake], damaged: set[Place], how: random.Random) -> None:
    """Some range, asked to its end, against the frames themselves."""
    first = how.randrange(0, 95)
    last = first + how.choice([0, 3, 30, 100, 1 << 40])
    frames_max, bytes_max = how.choice([1, 2, 5, 64]), how.choice([1, 150, 1 << 40])
    served = {p: f for p, f in frames.items() if p not in damaged}
    held = {entry_id for frame in served.values() for entry_id in frame.ids}
    lost = {i for p in damaged for i in range(frames[p].ids[0], frames[p].ids[-1] + 1)}
    while first <= last:
        answer = ask(index, frames, first, last, frames_max, bytes_max)
        assert first <= answer.through <= last
        top = min(answer.through, 120)
        said = said_of(answer, served, first, top)
        for entry_id in range(first, top + 1):
            if entry_id in held:
                assert isinstance(said[entry_id], Piece), entry_id
            else:
                assert said[entry_id] == ("unknown" if entry_id in lost else "absent"), entry_id
        first = answer.through + 1
    check_end(index, served)


def check_end(index: LedgerIndex, served: dict[Place, Fake]) -> None:
    assert index.greatest_lac(LEDGER) == index.carried_lac(LEDGER)[0]
    highest, end = max((frame.ids[-1] for frame in served.values()), default=-1), index.last_entry(LEDGER)
    assert end.entry_id == highest
    assert (end.place is None) == (highest < 0)
    assert end.place is None or served[end.place].ids[-1] == highest


@pytest.mark.rule("S2")
@examples(2.5)
@given(st.lists(fakes(), min_size=1, max_size=25), st.integers(0, 1 << 30), st.booleans())
def test_lookup_agrees_with_a_dict(frames: list[Fake], seed: int, loaded: bool) -> None:
    how = random.Random(seed)
    index, placed = LedgerIndex(), {}
    rows = np.zeros(len(frames), dtype=INDEX_ROW)
    from_file = [loaded and how.random() < 0.7 for _ in frames]
    for k, frame in enumerate(frames):
        place = Place(1 if from_file[k] else 2, 4096 + 64 * k, 64)
        placed[place] = frame
        if from_file[k]:
            extent = frame.extent
            rows[k] = (
                LEDGER,
                extent.first,
                extent.last,
                0,
                -1,
                place.offset,
                64,
                extent.count,
                0,
                3,
                extent.dense,
                0,
            )
        else:
            index.add_frame(LEDGER, frame.extent, place, striping=frame.striping)
    index.add_rows(1, sorted_rows(rows[from_file]))
    check(index, placed, set(), how)
    damaged = {place for place in placed if how.random() < 0.15}
    for place in damaged:
        index.mark_damaged(LEDGER, place)
    check(index, placed, damaged, how)


@pytest.mark.rule("S2")
def test_a_small_frame_over_a_large_one_does_not_hide_it() -> None:
    index = LedgerIndex()
    large, small = Place(1, 4096, 100), Place(1, 8192, 100)
    index.add_frame(LEDGER, FrameExtent(0, 9999, True, 10_000, -1), large)
    index.add_frame(LEDGER, FrameExtent(5000, 5999, True, 1000, -1), small)
    answer = index.lookup(LEDGER, 7000, 7000)
    assert [piece.place for piece in answer.pieces] == [large]
    assert answer.absent == ()


@pytest.mark.rule("S4")
def test_limbo_and_drop_turn_absent_into_unknown_and_keep_the_fence() -> None:
    limbo, drop = (FrameKind.LIMBO, b""), (FrameKind.COPY_DROPPED, bytes(8))
    for records, reason in (
        ([limbo], Reason.LIMBO), ([drop], Reason.COPY_DROPPED), ([limbo, drop], Reason.LIMBO),
        ([drop, limbo], Reason.LIMBO),
    ):  # fmt: skip
        index = LedgerIndex()
        index.add_record(FrameKind.FENCE, LEDGER, b"")
        for kind, payload in records:
            index.add_record(kind, LEDGER, payload)
        index.add_frame(LEDGER, FrameExtent(0, 3, True, 4, -1), Place(1, 4096, 100))
        answer = index.lookup(LEDGER, 0, 9)
        assert [(piece.first, piece.last) for piece in answer.pieces] == [(0, 3)]
        assert answer.absent == ()
        assert [(u.first, u.last, u.reason) for u in answer.unknown] == [(4, 9, reason)]
        assert state_of(index, LEDGER).fenced


def seal(index: LedgerIndex, generation: int, first: int, lac: int = 0) -> None:
    """A segment with ten entries of the ledger is sealed."""
    summary = np.zeros(1, SUMMARY_ROW)
    summary["lac"], summary["lac_size"] = lac, 100
    summary["ledger"], summary["first"], summary["last"] = LEDGER, first, first + 9
    summary["bytes"] = summary["last_size"] = 100
    index.seal(generation, summary)


@pytest.mark.rule("S4")
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_drop_kills_what_stands_in_segments_up_to_its_generation_and_nothing_newer(order: tuple[int, ...]) -> None:
    """Whether they are sealed before or after the drop is heard of."""
    index = LedgerIndex()
    steps = [
        lambda: seal(index, 6, 0),
        lambda: seal(index, 7, 10),
        lambda: index.add_record(FrameKind.COPY_DROPPED, LEDGER, (6).to_bytes(8, "little")),
        lambda: index.add_record(FrameKind.COPY_DROPPED, LEDGER, (2).to_bytes(8, "little")),
    ]
    for k in order:
        steps[k]()
    assert index.live_bytes() == {6: 0, 7: 100}
    assert index.ledgers_in(7).tolist() == [LEDGER]
    found = index.lookup(LEDGER, 0, 9)
    assert (found.absent, [gap.reason for gap in found.unknown]) == ((), [Reason.COPY_DROPPED])
    assert [place.generation for place in index.lookup(LEDGER, 10, 19).unresolved] == [7], "found, if it is there"


@pytest.mark.rule("S4")
def test_a_dropped_copy_that_comes_back_is_found() -> None:
    """A copy that compaction made of what was live when it looked, in the segment that is written now."""
    index = LedgerIndex()
    seal(index, 6, 0)
    index.add_record(FrameKind.COPY_DROPPED, LEDGER, (6).to_bytes(8, "little"))
    rows = np.zeros(1, INDEX_ROW)
    rows["ledger"], rows["last"], rows["max_last"], rows["offset"] = LEDGER, 9, 9, 4096
    rows["size"], rows["count"], rows["bits"] = 100, 10, DENSE
    index.place_copies({8: rows})
    assert [(piece.first, piece.last) for piece in index.lookup(LEDGER, 0, 9).pieces] == [(0, 9)]
    seal(index, 8, 0)
    assert index.live_bytes() == {6: 0, 8: 100}
    index.add_record(FrameKind.COPY_DROPPED, LEDGER, (8).to_bytes(8, "little"))
    assert index.live_bytes() == {6: 0, 8: 0}


@pytest.mark.rule("S4")
def test_deleted_is_sticky_wherever_the_record_stands() -> None:
    for deleted_first in (True, False):
        index = LedgerIndex()
        if deleted_first:
            index.add_record(FrameKind.DELETED, LEDGER, b"")
        index.add_frame(LEDGER, FrameExtent(0, 3, True, 4, -1), Place(1, 4096, 100))
        index.add_record(FrameKind.LIMBO, LEDGER, b"")
        index.add_record(FrameKind.COPY_DROPPED, LEDGER, (1).to_bytes(8, "little"))
        if not deleted_first:
            index.add_record(FrameKind.DELETED, LEDGER, b"")
        assert state_of(index, LEDGER).deleted
        assert index.lookup(LEDGER, 0, 3).unknown[0].reason is Reason.DELETED
        assert index.ledger_ids() == []
        assert not index.export_ledgers(0, 10).size, "no bit of it is left"
        assert state_of(index, LEDGER).trouble is Reason.DELETED


@pytest.mark.rule("S8")
def test_limbo_of_every_ledger_holds_for_the_known_and_the_unknown() -> None:
    index = LedgerIndex()
    index.add_record(FrameKind.FENCE, LEDGER, b"")
    index.add_record(FrameKind.COPY_DROPPED, LEDGER + 1, bytes(8))
    index.add_record(FrameKind.LIMBO, EVERY_LEDGER, b"")
    for ledger_id in (LEDGER, LEDGER + 1, LEDGER + 2):
        assert state_of(index, ledger_id).trouble is Reason.LIMBO
        assert index.lookup(ledger_id, 0, 0).absent == ()
    assert not state_of(index, LEDGER + 2).known
    assert index.ledger_ids() == [LEDGER, LEDGER + 1]


def test_the_frame_with_the_greatest_lac_is_known() -> None:
    index = LedgerIndex()
    places = [Place(1, 4096 * k, 100) for k in range(1, 4)]
    for place, lac in zip(places, (4, 8, 6), strict=True):
        index.add_frame(LEDGER, FrameExtent(lac + 1, lac + 1, True, 1, lac), place)
    assert (state_of(index, LEDGER).carried_lac, state_of(index, LEDGER).carried_place) == (8, places[1])
    index.mark_damaged(LEDGER, places[1])
    assert (state_of(index, LEDGER).carried_lac, state_of(index, LEDGER).carried_place) == (6, places[2])


@pytest.mark.rule("P5")
def test_the_greatest_lac_follows_the_segments() -> None:
    index = LedgerIndex()
    lacs = [index.greatest_lac(LEDGER)]
    for change in (
        lambda: seal(index, 6, 0, lac=5),
        lambda: seal(index, 7, 10, lac=15),
        lambda: index.add_frame(LEDGER, FrameExtent(20, 20, True, 1, 19), Place(8, 4096, 100)),
        lambda: index.drop_segment(8),
        lambda: index.drop_segment(7),
        lambda: index.add_record(FrameKind.COPY_DROPPED, LEDGER, (6).to_bytes(8, "little")),
    ):
        change()
        lacs.append(index.greatest_lac(LEDGER))
        assert lacs[-1] == index.carried_lac(LEDGER)[0]
    assert lacs == [-1, 5, 15, 19, 15, 5, -1]


def test_what_is_remembered_of_ledgers_in_sealed_segments_is_bounded() -> None:
    directory, rows = SegmentDirectory(), np.zeros(3000, dtype=SUMMARY_ROW)
    rows["ledger"] = rows["last"] = rows["lac"] = np.arange(3000)
    directory.add_segment(1, rows)
    for ledger_id in range(3000):
        assert directory.greatest_lac(ledger_id) == ledger_id
        assert directory.reaching(ledger_id, 0, ledger_id, 1) == ([(0, ledger_id, 1)], ledger_id)
    assert len(directory._lacs) <= 1024
    assert len(directory._reaches) <= 64


def test_sparse_frames_are_answered_the_same_before_and_after_a_restart(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    storage.append(striped(1, 0, 20, index=1), striped(1, 20, 20, index=1), entries(2, [5, 3, 11]))
    before = [storage.read(1, 0, 45), storage.read(2, 0, 15)]
    assert before[0].absent == {*(i for i in range(40) if (1 - i) % 3 >= 2), *range(40, 46)}
    assert set(before[1].found) == {3, 5, 11}
    storage.close()
    again = Storage(tmp_path / "d")
    assert [again.read(1, 0, 45), again.read(2, 0, 15)] == before
    again.close()


def test_memory_is_56_bytes_a_frame() -> None:
    index = LedgerIndex()
    for k in range(2000):
        index.add_frame(LEDGER, FrameExtent(k, k, True, 1, k - 1), Place(1, 4096 + 64 * k, 64))
        if k == 999:
            before = index.memory_bytes()
    assert index.memory_bytes() - before == 56_000
