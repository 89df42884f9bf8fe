# SPDX-License-Identifier: Apache-2.0
"""Streaming queries of Spark over logs and ledgers: replays, takeovers outside of Spark, and idle writers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from tests.spark.tables import closed, publish

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

Row = tuple[str, int, bytes]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The beginning of the names of this test's logs."""
    return str(request.node.name)[:80]


def numbered(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]


class Query:
    """A streaming query into a list of batches."""

    def __init__(self, spark: Any, uri: str, checkpoint: Path, **options: Any) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.fail_at: int | None = None
        given = {"startingOffsets": "earliest", **options}
        source = spark.readStream.format("bookkeeper").options(metadataServiceUri=uri, **given).load()
        writer = source.writeStream.option("checkpointLocation", str(checkpoint))
        self._writer = writer.foreachBatch(self._take)
        self.query: Any = None

    def _take(self, frame: Any, number: int) -> None:
        self.batches[number] = [(r.log, r.offset, bytes(r.value)) for r in frame.collect()]
        if number == self.fail_at:
            raise RuntimeError("made to fail")

    def start(self, **trigger: Any) -> Query:
        self.query = (self._writer.trigger(**trigger) if trigger else self._writer).start()
        return self

    def run(self) -> Query:
        """Everything that there is, to the end."""
        self.start(availableNow=True).query.awaitTermination(120)
        return self

    def stop(self) -> None:
        """After what was taken is committed: otherwise it would come again."""
        self.query.processAllAvailable()
        self.query.stop()

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def values(self) -> list[bytes]:
        return [value for _, _, value in self.rows]

    def wait_until_started(self) -> None:
        """The first batch, empty or not, is committed."""
        self.wait_until(lambda: self.query.lastProgress is not None)

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        self.wait_until(lambda: len(self.rows) >= count, timeout_s)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.query.exception() is None, self.query.exception()
            assert time.monotonic() < deadline, f"{len(self.rows)} rows"
            time.sleep(0.01)


def rows(log: str, first: int, stop: int) -> list[Row]:
    """Entries ``first`` to ``stop`` − 1 of a log whose entries are numbered by their offsets."""
    return [(log, number, b"%d" % number) for number in range(first, stop)]


def test_a_failed_batch_over_several_logs_is_replayed_with_the_same_rows(
    spark: Any, uri: str, client: BookKeeper, name: str, tmp_path: Path
) -> None:
    a, b = f"{name}-a", f"{name}-b"
    for log in (a, b):
        publish(client, log, numbered(0, 40))
    options = {"logs": f"{a},{b}", "maxEntriesPerTrigger": "30"}
    first = Query(spark, uri, tmp_path, **options)
    first.fail_at = 1
    with pytest.raises(Exception, match="made to fail"):
        first.run()
    for log in (a, b):
        publish(client, log, numbered(40, 60))
    handle = client.log(a)
    handle.compact(handle.extents(0, 60), closed(client, numbered(0, 60)))  # the same rows out of another ledger
    handle.trim(first.batches[1][0][1])  # what was read is gone
    second = Query(spark, uri, tmp_path, **options).run()
    assert second.batches[1] == first.batches[1]
    both = {**first.batches, **second.batches}
    found = [row for number in sorted(both) for row in both[number]]
    assert sorted(found) == sorted([*rows(a, 0, 60), *rows(b, 0, 60)])


class Outside:
    """A leader in a process outside Spark."""

    def __init__(self, uri: str, log: str, tag: str, count: int) -> None:
        self.tag = tag
        command = [sys.executable, "-m", "tests.spark.outside_leader", uri, log, tag, str(count)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._line() == "leads"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait_for(self, number: int) -> None:
        while self._line() != str(number):
            assert self.process.poll() is None

    def acked(self, read: int) -> tuple[list[bytes], bool]:
        """What was acked, the first ``read`` + 1 of which were seen before, and whether it lost the log."""
        rest = self.process.communicate(timeout=60)[0].split()
        numbers = [*range(read + 1), *(int(line) for line in rest if line != "lost")]
        return [f"{self.tag}:{number}".encode() for number in numbers], "lost" in rest


@pytest.mark.rule("N2")
def test_every_acked_entry_of_leaders_outside_spark_arrives_once_and_in_order(
    spark: Any, uri: str, client: BookKeeper, name: str, tmp_path: Path
) -> None:
    first = Outside(uri, name, "first", 100_000)
    query = Query(spark, uri, tmp_path, log=name, maxEntriesPerTrigger="500").start()
    first.wait_for(150)
    second = Outside(uri, name, "second", 100_000)  # fences the first one
    second.wait_for(100)
    second.process.kill()
    third = Outside(uri, name, "third", 200)
    acked, lost = first.acked(150)
    assert lost
    for leader, read in ((second, 100), (third, -1)):
        more, _ = leader.acked(read)
        acked += more
    assert acked[-1] == b"third:199"
    query.wait_until(lambda: any(row[2] == acked[-1] for row in query.rows))
    query.stop()
    values = query.values
    assert [offset for _, offset, _ in query.rows] == list(range(len(values)))
    counts = Counter(values)
    assert [value for value in acked if counts[value] != 1] == []
    assert max(counts.values()) == 1
    by_leader = [
        [int(v.split(b":")[1]) for v in values if v.startswith(tag)] for tag in (b"first", b"second", b"third")
    ]
    assert all(numbers == list(range(len(numbers))) for numbers in by_leader)
    assert [v.split(b":")[0] for v in values] == [
        tag for tag, numbers in zip((b"first", b"second", b"third"), by_leader, strict=True) for _ in numbers
    ]
    batch = spark.read.format("bookkeeper").options(metadataServiceUri=uri).load(name).orderBy("offset")
    assert [bytes(row.value) for row in batch.collect()] == values


@pytest.mark.rule("P9")
def test_a_stream_tails_a_ledger_to_the_last_entry_of_an_idle_writer(
    spark: Any, uri: str, client: BookKeeper, tmp_path: Path
) -> None:
    ledger = client.create_ledger()
    ledger.append(b"0")
    query = Query(spark, uri, tmp_path, ledgerId=ledger.ledger_id).start()
    try:
        query.wait_for(1)
        for i in range(1, 200):
            ledger.append(b"%d" % i)
        query.wait_for(200)
        assert query.values == [b"%d" % i for i in range(200)]
        ledger.append(b"one more")
        began = time.monotonic()
        query.wait_for(201)
        assert time.monotonic() - began < 5
    finally:
        query.query.stop()
    ledger.append(b"the stream has not fenced it")
    ledger.close()


def test_no_row_is_lost_when_batch_zero_from_latest_is_replayed(
    spark: Any, uri: str, client: BookKeeper, name: str, tmp_path: Path
) -> None:
    publish(client, name, numbered(0, 10))
    first = Query(spark, uri, tmp_path, log=name, startingOffsets="latest").start()
    first.wait_until_started()
    first.query.stop()
    shutil.rmtree(tmp_path / "commits")  # as if it had died with batch 0 planned and not committed
    publish(client, name, numbered(10, 15))  # so "latest" is no longer where batch 0 ended
    second = Query(spark, uri, tmp_path, log=name, startingOffsets="latest").start()
    second.wait_for(5)
    second.query.stop()
    assert second.values == numbered(10, 15)
