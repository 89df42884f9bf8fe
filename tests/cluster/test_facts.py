# SPDX-License-Identifier: Apache-2.0
"""Facts of a cluster in parts: lists end where they should and go on where they ended; reasons fit the states."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bk_core.cluster import ledgers, logs
from bk_core.cluster.bookies import count_marks
from bk_core.cluster.replication import why_not_yet
from bk_core.logs.model.codec import encode_head
from bk_core.logs.model.head import Extent, LogHead
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.model import Fragment, LedgerMetadata, LedgerState


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    opened = open_store(f"memory://{uuid.uuid4().hex}")
    opened.initialize_cluster()
    yield opened
    opened.close()


def record(*ensembles: str, state: LedgerState = LedgerState.OPEN) -> LedgerMetadata:
    """Fragments of ten entries on bookies of one letter."""
    fragments = tuple(Fragment(10 * n, tuple(each)) for n, each in enumerate(ensembles))
    size = len(ensembles[0])
    return LedgerMetadata(
        ensemble_size=size, write_quorum_size=min(size, 3), ack_quorum_size=2, fragments=fragments, state=state
    )


def test_a_list_of_ledgers_goes_on_where_it_ended_and_gives_each_once(store: MetadataStore) -> None:
    made = [store.create_ledger(record("abc" if n % 3 else "abd"))[0] for n in range(25)]
    found, after = list[int](), -1
    while True:
        part = ledgers.part_of_list(store, after, 10)
        found += [ledger_id for ledger_id, _ in part.ledgers]
        assert len(part.ledgers) <= 10
        if part.after is None:
            break
        after = part.after
    assert found == made
    rare = ledgers.part_of_list(store, -1, 10, lambda value: "d" in value.last_fragment.ensemble)
    assert [ledger_id for ledger_id, _ in rare.ledgers] == made[::3]
    assert rare.after is None


def test_a_search_for_what_is_not_there_stops_in_time_and_says_where_it_is(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [store.create_ledger(record("abc"))[0] for _ in range(30)]

    def slow(_: LedgerMetadata) -> bool:
        time.sleep(0.02)
        return False

    began = time.monotonic()
    part = ledgers.part_of_list(store, -1, 10, slow, timeout_s=0.1)
    assert time.monotonic() - began < 0.3
    assert not part.ledgers
    assert part.after in made[:10]
    monkeypatch.setattr(ledgers, "LOOKED_AT_MAX", 7)
    assert ledgers.part_of_list(store, -1, 10, lambda _: False).after == made[6]


def test_how_many_bookies_of_an_entry_answer_counts_write_sets() -> None:
    up = {"a": "writable", "b": "read-only", "c": "away", "d": "silent", "e": "writable"}
    assert ledgers.copies(record("abc", "abe"), up) == [
        {"firstEntryId": 0, "least": 2, "most": 2},
        {"firstEntryId": 10, "least": 3, "most": 3},
    ]
    assert ledgers.copies(record("abcde"), up) == [{"firstEntryId": 0, "least": 1, "most": 3}]
    assert ledgers.copies(record("xyz"), up)[0]["least"] == 0


@pytest.mark.parametrize(
    ("states", "status", "locked", "words"),
    [
        ({}, {}, "h2", "h2 repairs it now"),
        ({}, {"enabled": False}, None, "paused"),
        ({}, {"auditor": None}, None, "start bk autorecovery"),
        ({"c": "away"}, {}, None, "no other bookie can take the copy"),
        ({"c": "away", "d": "read-only"}, {}, None, "no other bookie can take the copy"),
        ({"c": "away", "d": "writable"}, {}, None, "when c is back"),
        ({"c": "draining", "d": "writable"}, {}, None, "c drains"),
        ({"c": "draining"}, {}, None, "no other bookie can take the copy"),
        ({}, {}, None, "is registered"),
    ],
)
def test_why_copies_are_not_there_yet(
    states: dict[str, str], status: dict[str, Any], locked: str | None, words: str
) -> None:
    well = {"a": "writable", "b": "writable", "c": "writable"}
    said = why_not_yet(record("abc"), ["c"], {**well, **states}, {"enabled": True, "auditor": "h1", **status}, locked)
    assert words in said


def test_the_chain_of_a_log_is_read_backwards_in_parts(store: MetadataStore) -> None:
    sealed = tuple(Extent(ledger_id=n, entry_count=10, size_bytes=5, base_offset=10 * n) for n in range(3, 20))
    head = LogHead(
        uuid=str(uuid.uuid4()),
        start_offset=35,
        next_offset=200,
        tail=(*sealed, Extent(ledger_id=99, base_offset=200, is_open=True)),
    )
    store.create_log("events", encode_head(head))
    _, last, before = logs.chain(store, "events", None, 4)
    assert [extent.ledger_id for extent in last] == [16, 17, 18, 19, 99]
    assert before == 160
    _, middle, before = logs.chain(store, "events", before, 12)
    assert [extent.ledger_id for extent in middle] == list(range(4, 16))
    _, first, before = logs.chain(store, "events", before, 12)
    assert ([extent.ledger_id for extent in first], before) == ([3], None)


def test_marks_are_counted_and_the_first_ones_named(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.cluster.bookies.MARKS_KEPT", 2)
    for ledger_id in (5, 6, 7):
        store.mark_underreplicated(ledger_id, ["a"])
    marks = count_marks(store)
    assert (marks.count, marks.is_all, len(marks.ledgers)) == (3, True, 2)
