# SPDX-License-Identifier: Apache-2.0
"""Planning against a cluster: what there is now, as ranges; bookies of this process behind the blocking client."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from bk_core.blocking import BookKeeper
from bk_core.errors import (
    InvalidArgumentError,
    LedgerFencedError,
    NoSuchLedgerError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.logs.model.head import LogHead
from bk_spark import codecs
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.options.selection import LogSource
from bk_spark.plan import log_ranges, resolve
from bk_spark.plan.packing import PartitionLayout, Span
from bk_spark.plan.resolved import Resolved
from bk_spark.read import tasks
from tests.kit.extents import open_extent
from tests.spark.tables import VALUE, written


def options(ledger_id: int, use: Use = Use.READ, **more: str) -> BkOptions:
    given = {"metadataserviceuri": "memory://x", "ledgerid": str(ledger_id), **more}
    return parse_options(given, use)


def ranges(resolved: Resolved) -> list[tuple[int, int, int]]:
    return [(r.first, r.last, r.bytes) for r in resolved.ranges]


@pytest.mark.rule("K2")
def test_reading_to_the_last_add_confirmed_leaves_the_writer_alone(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 100, close=False)
    ledger.append(b"x" * 10)  # carries the LAC of those before it
    (found,) = resolve.resolve_batch(bookkeeper, options(ledger.ledger_id)).ranges
    assert (found.first, found.last >= 99) == (0, True)
    assert found.bytes == 10 * found.entries  # an open ledger's record does not know, its entries do
    ledger.append(b"still mine")
    ledger.close()


@pytest.mark.rule("K2")
def test_fencing_closes_the_ledger_and_ends_the_writer(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 100, close=False)
    resolved = resolve.resolve_batch(bookkeeper, options(ledger.ledger_id, readmode="fence"))
    assert ranges(resolved) == [(0, 99, 1000)]
    assert resolved.ledgers[ledger.ledger_id].is_closed
    with pytest.raises(LedgerFencedError):
        ledger.append(b"too late")


def test_bounds_beyond_the_end_are_an_error_not_fewer_rows(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 10)
    for bounds in ({"endingentryid": "11"}, {"startingentryid": "11"}):
        with pytest.raises(InvalidArgumentError, match=r"holds 0 to 10 \(exclusive\)"):
            resolve.resolve_batch(bookkeeper, options(ledger.ledger_id, **bounds))
    assert resolve.resolve_batch(bookkeeper, options(ledger.ledger_id, startingentryid="10")).ranges == ()
    with pytest.raises(InvalidArgumentError, match="ends before it starts"):
        resolve.resolve_batch(bookkeeper, options(ledger.ledger_id, startingentryid="5", endingentryid="4"))


def test_a_part_of_a_closed_ledger_is_as_large_as_its_entries(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 100)
    cut = options(ledger.ledger_id, startingentryid="10", endingentryid="20")
    assert ranges(resolve.resolve_batch(bookkeeper, cut)) == [(10, 19, 100)]


def test_wrong_password_digest_and_ledger_are_named(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 1, password=b"secret")
    with pytest.raises(WrongPasswordError):
        resolve.resolve_batch(bookkeeper, options(ledger.ledger_id))
    good = options(ledger.ledger_id, ledgerpassword="secret")
    assert ranges(resolve.resolve_batch(bookkeeper, good)) == [(0, 0, 10)]
    with pytest.raises(WrongDigestTypeError):
        resolve.resolve_batch(bookkeeper, options(ledger.ledger_id, ledgerpassword="secret", digesttype="MAC"))
    with pytest.raises(NoSuchLedgerError, match="nearest"):
        resolve.resolve_batch(bookkeeper, options(999))


@pytest.mark.rule("K3")
def test_a_task_carries_ranges_ensembles_and_endpoints(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 100)
    wanted = options(ledger.ledger_id, minpartitions="4")
    resolved = resolve.resolve_batch(bookkeeper, wanted)
    codec = codecs.row_codec(wanted, VALUE)
    plans = tasks.task_plans(bookkeeper, wanted, resolved, codec)
    assert [(p.ranges[0].first, p.ranges[0].last) for p in plans] == [(0, 24), (25, 49), (50, 74), (75, 99)]
    ensemble = set(ledger.metadata.last_fragment.ensemble)
    for plan in map(pickle.loads, map(pickle.dumps, plans)):
        assert set(plan.bookies) == ensemble
        assert plan.ranges[0].layout == PartitionLayout.of(ledger.metadata, b"")
        assert plan.ranges[0].closed
        assert plan.instance_id == bookkeeper.instance_id


def test_the_length_of_a_ledger_is_that_of_the_entries_asked_for_though_it_grows(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 50, close=False)
    reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
    assert reader.wait_lac(48, 10) == 49
    assert [reader.length_to(last) for last in (-1, 0, 24)] == [0, 10, 250]
    ledger.close()
    sealed = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
    assert [sealed.length_to(last) for last in (24, 49)] == [250, 500]


@pytest.mark.rule("N2")
def test_readers_never_pass_an_unsealed_extent(bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, 10)
    sealed = replace(open_extent(7), is_open=False, entry_count=5, size_bytes=50, fragments=ledger.metadata.fragments)
    rolling = replace(open_extent(ledger.ledger_id), base_offset=5)
    following = open_extent(999)  # its base offset is not known yet
    log = parse_options({"metadataserviceuri": "memory://x", "path": "events"}, Use.READ)
    spans = (Span(0, 5, 50), Span(5, 15, 100))
    found = log_ranges.ranges_of(
        bookkeeper, log, LogSource("events"), LogHead(uuid="u"), [sealed, rolling, following], 2, 12, spans
    )
    assert [(r.ledger_id, r.first, r.last, r.offset, r.bytes) for r in found.ranges] == [
        (7, 2, 4, 2, 30),
        (ledger.ledger_id, 0, 6, 5, 70),
    ]


@pytest.mark.rule("P15")
def test_entries_above_the_lac_are_in_a_plan_that_asks_for_them(bookkeeper: BookKeeper) -> None:
    ledger = bookkeeper.create_ledger(deferred_sync=True)  # whose LAC stands still
    ledger.append(b"x" * 10)
    assert ranges(resolve.resolve_batch(bookkeeper, options(ledger.ledger_id))) == []
    asked = options(ledger.ledger_id, readmode="quorum", quorumsettlems="1000")
    assert ranges(resolve.resolve_batch(bookkeeper, asked)) == [(0, 0, 10)]
    ledger.close()
