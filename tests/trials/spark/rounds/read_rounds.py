# SPDX-License-Identifier: Apache-2.0
"""Rounds that read the same rows twice, during writes, recovery, compaction and the loss of a bookie. The same
partition, and the same offsets planned again, must give the same bytes.

The product's reader and stream reader plan and read in this process, as Spark's planner and tasks call them. Every
fifth round Spark itself reads a frame twice.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from bk_core.logs.model.compaction import CompactionLimits
from bk_spark.options.options import Use, parse_options
from bk_spark.read.ledger_reader import LedgerReader
from bk_spark.stream.stream_reader import StreamReader
from tests.trials.spark.leaders import Leader
from tests.trials.spark.rig import BlockReport, Rig, Space, tagged
from tests.trials.spark.rounds.bookie_rounds import harm

COLUMNS = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
DISTURBANCES = ("writes", "recovery", "compaction", "bookie loss")
SPARK_EVERY = 5
PADDING = bytes(20_000)
"""Makes a partition so large that it comes in several batches, between which a fault begins."""
LED = 60
"""The number of entries that the leader of a round writes before the first read."""


class ReadRounds:
    """Rounds in which reads are repeated."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "reads", "the same partition read twice", long, 10
        self.wanted = (*DISTURBANCES, "partitions read twice", "ranges planned again", "ledgers compacted", "by Spark")

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        with rig.workspace(self.name) as space:
            log = space.log("read")
            for number in range(first, first + count):
                Reading(space, report, number, log).run()
                report.rounds += 1
        return report


class Reading:
    """One round on the block's log, which grows."""

    def __init__(self, space: Space, report: BlockReport, number: int, log: str) -> None:
        self._space, self._report, self._number, self._log = space, report, number, log
        self._rng = random.Random(f"{space.rig.seed}/reads/{number}")
        self._undo: list[Callable[[], None]] = []

    def run(self) -> None:
        space, what = self._space, DISTURBANCES[self._number % len(DISTURBANCES)]
        for piece in range(4):
            space.feed(self._log, [row + PADDING for row in tagged(f"{self._number}.{piece}", 30)])
        leader = Leader(space, self._log, f"{self._number}", count=100_000) if what in ("writes", "recovery") else None
        if leader is not None:
            leader.wait_acked(LED)
        try:
            self._read_twice(what, leader)
        finally:
            for undo in self._undo:
                undo()
            if leader is not None:
                leader.end()
                space.rig.client.log(self._log).lead().close()  # this recovers and seals what the leader left
        self._report.counts[what] += 1
        self._report.counts["faults"] += 1

    def _read_twice(self, what: str, leader: Leader | None) -> None:
        given = self._space.options(log=self._log, maxEntriesPerPartition=self._rng.choice((50, 97, 1000)))
        lowered = {name.lower(): text for name, text in given.items()}
        reader = LedgerReader(parse_options(lowered, Use.READ), COLUMNS)
        planned: list[InputPartition] = pickle.loads(pickle.dumps(reader.partitions()))
        stream = StreamReader(parse_options({**lowered, "startingoffsets": "earliest"}, Use.STREAM), COLUMNS)
        try:
            start, end = stream.initialOffset(), stream.latestOffset(stream.initialOffset(), None)
            first = [digest(reader.read(partition)) for partition in planned]
            stream_first = digest_of(stream, stream.partitions(start, end))
            by_spark = self._spark_reads(None)
            middle = digest(self._disturbed(reader, planned[0], lambda: self._disturb(what, leader)))
            again = [digest(reader.read(partition)) for partition in planned]
            stream_again = digest_of(stream, stream.partitions(start, end))
            self._spark_reads(by_spark)
        finally:
            stream.stop()
        self._compare("a partition read while the harm was done", [first[0]], [middle])
        self._compare("a partition read again", first, again)
        self._compare("a range of offsets planned again", [stream_first], [stream_again])
        self._report.counts["partitions read twice"] += len(planned)
        self._report.counts["ranges planned again"] += 1

    def _disturbed(self, reader: LedgerReader, partition: InputPartition, harm_now: Callable[[], None]) -> Any:
        """Return the batches of a partition. After the first of them, call ``harm_now``."""
        for number, batch in enumerate(reader.read(partition)):
            yield batch
            if number == 0:
                harm_now()

    def _disturb(self, what: str, leader: Leader | None) -> None:
        if what == "writes":
            assert leader is not None
            leader.wait_acked(leader.acked + 50)
        elif what == "recovery":
            assert leader is not None
            leader.kill()
            self._space.rig.client.log(self._log).lead().close()
        elif what == "compaction":
            compacted = self._space.rig.client.log(self._log).compact_small(CompactionLimits())
            self._report.counts["ledgers compacted"] += compacted.extents
        else:
            self._lose_bookie()

    def _lose_bookie(self) -> None:
        cluster = self._space.rig.cluster
        bookie = self._rng.choice(cluster.bookies)
        harm(bookie, self._rng.choice(("SIGKILL", "refuse", "SIGSTOP")))

        def back() -> None:
            cluster.heal()
            for each in cluster.bookies:
                each.wait_ready()

        self._undo.append(back)

    def _spark_reads(self, before: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the digest of a frame that Spark planned. Compare it with the one in ``before``, if given."""
        if self._number % SPARK_EVERY:
            return None
        driver, name = self._space.rig.drivers.get(), f"{self._number}"
        if before is None:
            driver.ask("load", name=name, path=self._log, options=self._space.options(maxEntriesPerPartition=50))
        found = driver.ask("digest", name=name)
        if "error" in found:
            raise RuntimeError(found["error"][:1500])
        if before is not None:
            driver.ask("forget", name=name)
            self._report.counts["by Spark"] += 1
            if found != before:
                self._report.broken(self._number, [f"CHANGED: Spark read {before}, then {found}"])
        return found

    def _compare(self, what: str, before: Sequence[str], after: Sequence[str]) -> None:
        differing = sum(a != b for a, b in zip(before, after, strict=True))
        if differing:
            self._report.broken(self._number, [f"CHANGED: {what}: {differing} of {len(before)} differ"])


def digest(batches: Any) -> str:
    """Return the digest of all rows, offsets and values, however they are cut into batches."""
    found, rows = hashlib.sha256(), 0
    for batch in batches:
        for offset, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            found.update(b"%d=%b;" % (offset, value))
            rows += 1
    return f"{rows} rows {found.hexdigest()}"


def digest_of(stream: StreamReader, partitions: Sequence[InputPartition]) -> str:
    """Return the digest of all partitions, one after the other. A batch that is planned again may be cut
    differently."""

    def batches() -> Any:
        for partition in partitions:
            yield from stream.read(partition)

    return digest(batches())
