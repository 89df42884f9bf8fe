# SPDX-License-Identifier: Apache-2.0
"""The table of ledgers and the directory of segments against plain dicts (RULES S4, S7)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from bk_core.entries.frame import FrameKind
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.index_rows import SUMMARY_ROW, Rows
from bookie_server.storage.index import ledger_table
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from bookie_server.storage.index.ledger_table import LEDGER_ROW, LedgerState, LedgerTable
from bookie_server.storage.index.segment_directory import SegmentDirectory
from tests.kit.index_state import state_of

KINDS = [kind for kind in FrameKind if kind not in (FrameKind.ENTRIES, FrameKind.DELETED)]


def payload(kind: FrameKind, random: Random) -> bytes:
    if kind is FrameKind.LEDGER_KEY:
        return bytes([random.choice([1, 1, 1, 2])]) * 20
    if kind is FrameKind.LAC:
        return bytes(8) + random.randrange(100).to_bytes(8, "big") + bytes(random.choice([0, 4, 8, 20]))
    return random.choice([0, 3, 1 << 63]).to_bytes(8, "little") if kind is FrameKind.COPY_DROPPED else b""


@pytest.mark.rule("S4")
@pytest.mark.parametrize("ids", [50, 5000])
def test_a_table_agrees_with_a_dict_whatever_the_order_of_its_ledgers(ids: int) -> None:
    random = Random(ids)
    table, plain = LedgerTable(), dict[int, LedgerState]()
    for step in range(20_000):
        ledger_id = random.choice([random.randrange(ids), step % ids])
        if random.random() < 0.1:
            table.forget(ledger_id)
            plain.pop(ledger_id, None)
            continue
        kind = random.choice(KINDS)
        body = payload(kind, random)
        plain[ledger_id] = plain.get(ledger_id, LedgerState(ledger_id)).merged(
            ledger_table.state_of(ledger_id, kind, body)
        )
        table.fold(ledger_id, kind, body)
    assert len(table) == len(plain)
    assert table.ids().tolist() == sorted(plain)
    for ledger_id in range(ids):
        found = table.get(ledger_id)
        assert (ledger_id in table) == (ledger_id in plain) == (found is not None)
        if found is not None:
            assert found.key == plain[ledger_id].key
            assert found._replace(key_bytes=b"") == plain[ledger_id]._replace(key_bytes=b"")
    again = LedgerTable()
    again.load(exported(table, 777))
    assert [again.get(ledger_id) for ledger_id in plain] == [table.get(ledger_id) for ledger_id in plain]


def exported(table: LedgerTable, limit: int) -> Rows:
    """All rows, in parts."""
    parts, first = [np.zeros(0, dtype=LEDGER_ROW)], 0
    while (part := table.rows_from(first, limit)).size:
        assert part.size <= limit
        parts.append(part)
        first = int(part["ledger"][-1]) + 1
    return np.concatenate(parts)


@pytest.mark.rule("S4")
@pytest.mark.parametrize("seed", range(30))
def test_records_folded_in_two_places_and_merged_are_as_if_folded_in_one(seed: int) -> None:
    """A checkpoint holds some of them, the indexes of later segments others, and some stand in both."""
    random = Random(seed)
    kinds = [random.choice(KINDS) for _ in range(random.randrange(12))]
    records = [(kind, payload(kind, random)) for kind in kinds]
    one, other, whole = LedgerTable(), LedgerTable(), LedgerTable()
    for record in records:
        whole.fold(7, *record)
        where = random.choice([(one,), (other,), (one, other)])
        for table in where:
            table.fold(7, *record)
    one.load(exported(other, 10))
    assert one.get(7) == whole.get(7)


@pytest.mark.rule("S4", "S8")
@pytest.mark.parametrize("of_every_ledger", [False, True])
def test_a_checkpoint_carries_limbo_drops_and_deletions(of_every_ledger: bool) -> None:
    index = LedgerIndex()
    index.add_record(FrameKind.LIMBO, 2, b"")
    index.add_record(FrameKind.COPY_DROPPED, 3, (5).to_bytes(8, "little"))
    index.add_record(FrameKind.DELETED, 9, b"")
    if of_every_ledger:
        index.add_record(FrameKind.LIMBO, EVERY_LEDGER, b"")
    ledgers, deleted = index.export_ledgers(0, 100), index.deleted_intervals()
    other = Reason.LIMBO if of_every_ledger else Reason.REASON_NONE
    for deleted_first in (True, False):
        again = LedgerIndex()
        if deleted_first:
            again.load_deleted(deleted)
        again.load_ledgers(ledgers)
        for generation in (4, 5, 6):
            again.seal(generation, summary(2, 3, 9))
        if not deleted_first:
            again.load_deleted(deleted)
        assert [state_of(again, k).trouble for k in (1, 2, 3, 9)] == [
            other, Reason.LIMBO, other or Reason.COPY_DROPPED, Reason.DELETED,
        ]  # fmt: skip
        assert again.ledger_ids() == [2, 3]
        assert again.live_bytes() == {4: 100, 5: 100, 6: 200}


def summary(*ledgers: int) -> Rows:
    rows = np.zeros(len(ledgers), dtype=SUMMARY_ROW)
    rows["ledger"], rows["bytes"], rows["last_size"] = ledgers, 100, 100
    return rows


@dataclass
class Kept:
    """One row of a directory, plainly."""

    generation: int
    ledger: int
    first: int
    last: int
    lac: int
    size: int


@pytest.mark.rule("S2", "S7")
@pytest.mark.parametrize("ledgers", [3, 300, 5000])
def test_a_directory_agrees_with_a_list(ledgers: int) -> None:
    random = Random(ledgers)
    directory, plain = SegmentDirectory(), list[Kept]()
    for generation in range(1, 40):
        held = sorted({random.randrange(ledgers) for _ in range(random.choice([1, 20, 2000]))})
        rows = np.zeros(len(held), dtype=SUMMARY_ROW)
        plain = [kept for kept in plain if kept.generation != generation]
        for row, ledger in zip(rows, held, strict=True):
            first = random.randrange(1000)
            kept = Kept(generation, ledger, first, first + random.randrange(200), first - 1, first + 1)
            plain.append(kept)
            row["ledger"], row["first"], row["last"], row["lac"] = ledger, first, kept.last, kept.lac
            row["bytes"], row["last_offset"] = kept.size, 64 * ledger
        directory.add_segment(generation, rows)
        known = [random.randrange(ledgers) for _ in range(5)]  # what is remembered of them must change with the rest
        for ledger in known:
            compare(directory, plain, ledger, random)
        if random.random() < 0.5:
            gone = random.randint(1, generation)
            directory.drop_segment(gone)
            plain = [kept for kept in plain if kept.generation != gone]
        for _ in range(random.choice([0, 0, 5])):
            ledger, through = random.choice(known), random.choice([None, random.randint(0, generation)])
            compare(directory, plain, ledger, random)
            directory.forget(ledger, through)
            plain = [k for k in plain if k.ledger != ledger or (through is not None and k.generation > through)]
        for ledger in known + [random.randrange(ledgers) for _ in range(15)]:
            compare(directory, plain, ledger, random)
    assert len(directory) == len(plain)
    for generation in directory.generations():
        mine = [kept for kept in plain if kept.generation == generation]
        assert directory.ledgers_in(generation).tolist() == sorted({kept.ledger for kept in mine})
        assert directory.live_bytes()[generation] == sum(kept.size for kept in mine)


def compare(directory: SegmentDirectory, plain: list[Kept], ledger: int, random: Random) -> None:
    mine = [kept for kept in plain if kept.ledger == ledger]
    first = random.randrange(1000)
    last = first + random.choice([0, 50, 1 << 40])
    ahead = random.choice([0, 1, 4])
    reaches, through = directory.reaching(ledger, first, last, ahead)
    wanted = sorted((k.first, k.last, k.generation) for k in mine if k.last >= first and k.first <= through)
    assert [tuple(reach) for reach in reaches] == wanted
    assert first <= through <= last
    assert sum(reach.first > first for reach in reaches) <= ahead
    if through < last:
        assert any(kept.first == through + 1 for kept in mine), "cut without need"
    tops = directory.tops(ledger)
    assert [last for last, _ in tops] == sorted((kept.last for kept in mine), reverse=True)[: len(tops)]
    assert len(tops) == min(len(mine), 16)
    assert all(place.offset == 64 * ledger for _, place in tops)
