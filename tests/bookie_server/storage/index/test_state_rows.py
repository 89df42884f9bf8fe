# SPDX-License-Identifier: Apache-2.0
"""State folded in bulk is what the table folds record by record, in any order (RULES S4)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bk_core.entries.frame import FrameKind
from bookie_server.storage.bytes.index_file import STATE_ROW, StateCollector, pack_state
from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.bytes.intervals import IntervalSet
from bookie_server.storage.index.ledger_table import LEDGER_ROW, LedgerTable
from bookie_server.storage.index.state_rows import deleted_by, folded, ledger_rows

Record = tuple[int, int, bytes]


def random_record(chance: random.Random) -> Record:
    """Few values, so that ledgers, generations, keys and LACs meet."""
    ledger_id = chance.choice([1, 2, 3, 5, 70, 71, (1 << 63) - 1])
    kind = chance.choice([kind for kind in FrameKind if kind not in (FrameKind.ENTRIES, FrameKind.DELETED)])
    if kind == FrameKind.LEDGER_KEY:
        return ledger_id, kind, bytes([chance.choice([0, 0, 0, 1, 255])]) * 19 + bytes([chance.randrange(2)])
    if kind in (FrameKind.FENCE, FrameKind.LIMBO):
        return ledger_id, kind, b""
    if kind == FrameKind.LAC:
        lac = chance.choice([-1, 0, 5, 1 << 40])
        end = chance.choice([b"", b"\0\0\0\1", b"\0" * 8, b"\1" * 20])
        return ledger_id, kind, ledger_id.to_bytes(8, "big") + lac.to_bytes(8, "big", signed=True) + end
    return ledger_id, kind, chance.choice([0, 1, 2, 7, 1 << 63]).to_bytes(8, "little")


def states_of(records: list[Record]) -> Rows:
    data = b"".join(pack_state(*record) for record in records)
    return np.frombuffer(data, STATE_ROW)


def table_of(records: list[Record]) -> Rows:
    table = LedgerTable()
    for record in records:
        table.fold(*record)
    return table.rows_from(0, 1000)


@pytest.mark.rule("S4")
def test_bulk_folding_is_what_the_table_does_one_by_one_in_any_order() -> None:
    for seed in range(400):
        chance = random.Random(seed)
        records = [random_record(chance) for _ in range(chance.randrange(40))]
        wanted = table_of(records).tobytes()
        chance.shuffle(records)
        assert table_of(records).tobytes() == wanted
        assert folded(ledger_rows(states_of(records))).tobytes() == wanted, seed


@pytest.mark.rule("S4")
def test_folding_what_was_folded_changes_nothing() -> None:
    """A checkpoint holds some of the records, segments others and the same again."""
    for seed in range(300):
        chance = random.Random(seed)
        records = [random_record(chance) for _ in range(30)]
        checkpoint = folded(ledger_rows(states_of(records[:20])))
        again = np.concatenate([ledger_rows(states_of(records[10:])), checkpoint])
        assert folded(again).tobytes() == table_of(records).tobytes(), seed


def test_records_of_a_segment_fold_to_the_same() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        records = [random_record(chance) for _ in range(40)]
        collector = StateCollector()
        for record in records:
            collector.add(*record)
        assert folded(ledger_rows(collector.rows())).tobytes() == table_of(records).tobytes()


def test_deleted_ids_become_intervals_and_no_ledger() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        ids = [chance.randrange(40) for _ in range(chance.randrange(30))]
        states = states_of([(ledger_id, int(FrameKind.DELETED), b"") for ledger_id in ids])
        wanted = IntervalSet()
        for ledger_id in ids:
            wanted.add(ledger_id, ledger_id)
        assert deleted_by(states).tolist() == wanted.pairs().tolist()
        assert folded(ledger_rows(states)).size == 0
    assert folded(np.empty(0, LEDGER_ROW)).size == 0
