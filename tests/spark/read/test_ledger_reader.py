# SPDX-License-Identifier: Apache-2.0
"""What a reading task checks and how it cuts its batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bk_core import __version__
from bk_core.client.reading.read_ahead import WantedRange
from bk_core.entries.batch import EntryBatch
from bk_core.errors import IntegrityError, NoSuchLedgerError, PackageMismatchError
from bk_core.model import Fragment
from bk_spark import codecs
from bk_spark.options.options import Use, parse_options
from bk_spark.plan.packing import LedgerRange, PartitionLayout
from bk_spark.read.ledger_reader import Progress, joined, read_rows
from bk_spark.read.task_plan import TaskPlan
from bk_spark.workers import clients

OPTIONS = parse_options({"metadataserviceuri": "zk://127.0.0.1:1/ledgers", "path": "events"}, Use.READ)
IDS = codecs.row_codec(OPTIONS, StructType().add("entry_id", "long").add("offset", "long"))


def plan(*ranges: LedgerRange, version: str = __version__) -> TaskPlan:
    return TaskPlan(version=version, instance_id="c", ranges=ranges, bookies={})


def test_nothing_to_read_is_no_row() -> None:
    assert list(read_rows(None, IDS, OPTIONS)) == []


def test_rows_without_values_come_from_the_plan_alone() -> None:
    ranges = [
        LedgerRange(ledger_id=1, first=5, last=250_004, bytes=0, offset=100),
        LedgerRange(ledger_id=2, first=0, last=2, bytes=0, offset=250_100),
    ]
    rows = pa.Table.from_batches(read_rows(plan(*ranges), IDS, OPTIONS))
    assert rows["offset"].to_pylist() == list(range(100, 250_103))
    assert rows["entry_id"].to_pylist() == [*range(5, 250_005), 0, 1, 2]


@pytest.mark.rule("E1")
def test_a_worker_with_another_version_says_so() -> None:
    with pytest.raises(PackageMismatchError, match=r"driver 0\.0\.9, worker"):
        list(read_rows(plan(version="0.0.9"), IDS, OPTIONS))


@pytest.mark.parametrize(
    "batch",
    [
        EntryBatch.from_list([b"x"] * 3, first_entry_id=6),
        EntryBatch.from_list([b"x"] * 3, first_entry_id=4),
        EntryBatch.from_list([b"x"] * 9, first_entry_id=5),
        EntryBatch(
            lengths=np.ones(2, dtype=np.uint32),
            payload=memoryview(b"xx"),
            first_entry_id=5,
            ids=np.array([5, 7], dtype=np.int64),
        ),
    ],
)
def test_a_gap_never_looks_like_a_result(batch: EntryBatch) -> None:
    progress = Progress([LedgerRange(ledger_id=1, first=0, last=10, bytes=0)])
    progress.take(0, EntryBatch.from_list([b"x"] * 5))
    with pytest.raises(IntegrityError, match="expected entry 5 of 0 to 10"):
        progress.take(0, batch)


def test_a_range_that_ends_early_or_is_left_out_is_no_result() -> None:
    ranges = [LedgerRange(ledger_id=i, first=i, last=i + 2, bytes=0) for i in range(3)]

    def after(*batches: tuple[int, int, int]) -> Progress:
        progress = Progress(ranges)
        for number, first, count in batches:
            progress.take(number, EntryBatch.from_list([b"x"] * count, first_entry_id=first))
        return progress

    after((0, 0, 3), (1, 1, 1), (1, 2, 2), (2, 2, 3)).check_end()
    for batches in ([(0, 0, 3), (1, 1, 3)], [(0, 0, 3), (1, 1, 3), (2, 2, 2)], []):
        with pytest.raises(IntegrityError, match="got the end"):
            after(*batches).check_end()
    with pytest.raises(IntegrityError, match=r"ledger 1 .*got the end"):
        after((0, 0, 3), (2, 2, 3))
    with pytest.raises(IntegrityError, match="ledger 1 "):
        after((0, 0, 3), (1, 1, 3), (0, 0, 3))
    with pytest.raises(IntegrityError, match="expected entry 2 of 1 to 3"):
        after((0, 0, 3), (1, 1, 1), (0, 2, 1))  # the right entry of the wrong ledger


class Liar:
    """A reader that leaves out the last entry of all that it is asked for, and says nothing."""

    is_usable = True

    def update_bookies(self, infos: object) -> None:
        """It needs none."""

    def close(self) -> None:
        """It holds nothing."""

    def read_all(self, wanted: Iterable[WantedRange], *, prefer: int = 0) -> Iterator[tuple[int, EntryBatch]]:
        ranges = list(wanted)
        for number, each in enumerate(ranges):
            count = each.last + 1 - each.first - (number == len(ranges) - 1)
            yield number, EntryBatch.from_list([b"x"] * count, first_entry_id=each.first)


def test_a_task_whose_entries_are_not_complete_fails() -> None:
    layout = PartitionLayout(1, 1, 1, (Fragment(0, ("b1",)),))
    ranges = [LedgerRange(ledger_id=i, first=i, last=i + 2, bytes=3, offset=3 * i, layout=layout) for i in range(3)]
    task = plan(*ranges)
    key = (OPTIONS.metadata_service_uri, OPTIONS.client_settings, OPTIONS.ledger_password, task.instance_id)
    liar: Any = Liar()
    clients._readers.get(key, lambda: liar)
    values = codecs.row_codec(OPTIONS, StructType().add("value", "binary"))
    try:
        with pytest.raises(IntegrityError, match=r"ledger 2 .*got the end"):
            list(read_rows(task, values, OPTIONS))
    finally:
        clients._readers.discard(liar)


@pytest.mark.parametrize("before", [0, 2, 3])
def test_a_deleted_ledger_is_skipped_with_a_warning_that_counts_if_data_may_be_lost(
    before: int, caplog: pytest.LogCaptureFixture
) -> None:
    """``before`` entries of the second ledger arrive, and then its record is gone."""

    class Deleted(Liar):
        def read_all(self, wanted: Iterable[WantedRange], *, prefer: int = 0) -> Iterator[tuple[int, EntryBatch]]:
            for number, each in enumerate(wanted):
                count = 3 if each.ledger_id != 2 else before
                if count:
                    yield number, EntryBatch.from_list([b"%d" % each.ledger_id] * count)
                if each.ledger_id == 2:
                    raise NoSuchLedgerError("ledger 2 does not exist")

    layout = PartitionLayout(1, 1, 1, (Fragment(0, ("b1",)),))
    ranges = [
        LedgerRange(ledger_id=i, first=0, last=2 + (i == 2), bytes=3, log="events", layout=layout) for i in (1, 2, 3)
    ]
    task, values = plan(*ranges), codecs.row_codec(OPTIONS, StructType().add("value", "binary"))
    key = (OPTIONS.metadata_service_uri, OPTIONS.client_settings, OPTIONS.ledger_password, task.instance_id)
    deleted: Any = Deleted()
    clients._readers.get(key, lambda: deleted)
    try:
        found = pa.Table.from_batches(read_rows(task, values, replace(OPTIONS, fail_on_data_loss=False)))
        assert found["value"].to_pylist() == [b"1"] * 3 + [b"2"] * before + [b"3"] * 3
        assert f"ledger 2 of log events was deleted: {4 - before} entries are skipped" in caplog.text
        with pytest.raises(NoSuchLedgerError):
            list(read_rows(task, values, OPTIONS))
    finally:
        clients._readers.discard(deleted)


def test_small_batches_are_joined_and_large_ones_passed_on() -> None:
    def rows(count: int, size: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array([b"x" * size] * count)], names=["value"])

    large = rows(20_000, 10)
    wide = rows(2, 1 << 20)
    given = [rows(10, 1), rows(4_000, 1), rows(6_000, 1), large, wide, rows(1, 1), rows(2, 1)]
    made = list(joined(given))
    assert [batch.num_rows for batch in made] == [10_010, 20_000, 2, 3]
    assert made[1] is large
    assert made[2] is wide
