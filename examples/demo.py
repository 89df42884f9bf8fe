# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end, on this machine: ``scripts/demo``. With ``--cluster apache`` it runs on Apache's bookies,
with ``--secure`` on a cluster where every port requires a certificate and a role.

Starts ZooKeeper and four bookies; writes a year of flights to a log from Spark and proves that they come back equal;
tails a ledger while it is written; kills a bookie in the middle of a write; takes a ledger over from a living writer;
restarts everything and reads again; leaves no process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from bk_cli.local.cluster import LocalCluster
from bk_core.blocking import BookKeeper, LedgerWriter, connect
from bk_core.client import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import LedgerFencedError
from examples import flights
from examples.spark_session import spark_session

T = TypeVar("T")
TAIL_ROWS = 2_000
KILL_ROWS = 200_000
WAIT_S = 60.0

console = Console(width=None if sys.stdout.isatty() else 130)
summary: list[tuple[str, str, str]] = []


def step(what: str, work: Callable[[], tuple[T, str]]) -> T:
    """Run one step, and add its time and its proof to the summary."""
    console.print(f"[bold]{what}[/bold] …")
    began = time.perf_counter()
    result, proof = work()
    seconds = time.perf_counter() - began
    summary.append((what, f"{seconds:.1f} s", proof))
    console.print(f"  {proof} [dim]({seconds:.1f} s)[/dim]")
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo")
    parser.add_argument("--cluster", choices=["ours", "apache"], default="ours", help="whose bookies (ours)")
    parser.add_argument("--secure", action="store_true", help="every port requires a certificate and a role")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bookkeeper-demo-") as folder:
        data = Path(folder)
        parquet = data / "flights.parquet"
        apache = options.cluster == "apache"
        cluster = LocalCluster(data / "cluster", port=0, zookeeper_port=0, apache=apache, secure=options.secure)
        whose = " of Apache's" if apache else ", all ports of mode secure" if options.secure else ""
        step(f"start ZooKeeper and four bookies{whose}", lambda: start(cluster))
        try:
            step(
                "read the flights", lambda: (None, f"{flights.write_parquet(parquet):,} flights of 2013, in time order")
            )
            spark = step("start Spark", lambda: (spark_session("demo"), "local[2]"))
            try:
                step("write them as log flights", lambda: write_flights(spark, cluster, parquet))
                step("read them back", lambda: check_flights(spark, cluster, parquet))
                step("tail a ledger with structured streaming", lambda: tail(spark, cluster))
                step("kill a bookie in the middle of a write", lambda: kill_a_bookie(cluster))
                step("take over from a living writer", lambda: take_over(cluster))
                step("restart everything", lambda: restart(cluster))
                step("read the flights again", lambda: check_flights(spark, cluster, parquet))
            finally:
                spark.stop()
        finally:
            cluster.stop()
    table = Table(title="what was shown", title_justify="left")
    for column in ("step", "time", "proof"):
        table.add_column(column, justify="right" if column == "time" else "left")
    for row in summary:
        table.add_row(*row)
    console.print(table)
    console.print(f"[bold green]everything held[/bold green], in {time.perf_counter() - began:.0f} s")
    return 0


def start(cluster: LocalCluster) -> tuple[None, str]:
    cluster.start()
    return None, f"{cluster.uri}, {len(cluster.bookies)} bookies"


def connected(cluster: LocalCluster) -> BookKeeper:
    return connect(cluster.uri, config=ClientConfig(**cluster.client_settings))


def source(spark: Any, parquet: Path) -> Any:
    """Return the flights as rows of the log: one JSON document for each, in time order."""
    table = spark.read.parquet(str(parquet))
    return table.selectExpr("seq", "to_json(struct(*)) AS value")


def write_flights(spark: Any, cluster: LocalCluster, parquet: Path) -> tuple[None, str]:
    rows = source(spark, parquet).orderBy("seq").select("value")
    began = time.perf_counter()
    rows.write.format("bookkeeper").options(**cluster.spark_options).mode("append").save("flights")
    rate = flights.COUNT / (time.perf_counter() - began)
    speed = f"{rate / 1e3:.0f} k rows/s with a cold Spark and its sort"
    return None, f"{flights.COUNT:,} rows, each on two bookies' disks before it counted; {speed}"


def check_flights(spark: Any, cluster: LocalCluster, parquet: Path) -> tuple[None, str]:
    """Check count, order and every byte: the row at offset n is flight n."""
    log = spark.read.format("bookkeeper").options(**cluster.spark_options).load("flights").select("offset", "value")
    began = time.perf_counter()
    count, checksum = log.selectExpr("count(1)", "bit_xor(xxhash64(offset, value))").first()
    rate = count / (time.perf_counter() - began)
    wanted, expected = (
        source(spark, parquet).selectExpr("count(1)", "bit_xor(xxhash64(seq, CAST(value AS BINARY)))").first()
    )
    differing = (
        log.join(
            source(spark, parquet).withColumnRenamed("value", "wanted"), log["offset"] == source_seq(), "full_outer"
        )
        .where("value IS NULL OR wanted IS NULL OR value != CAST(wanted AS BINARY)")
        .count()
    )
    assert (count, wanted) == (flights.COUNT, flights.COUNT), (count, wanted)
    assert checksum == expected, "checksums differ"
    assert differing == 0, f"{differing} rows differ"
    return None, f"{count:,} rows equal in count, order and checksum; {rate / 1e3:.0f} k rows/s"


def source_seq() -> Any:
    from pyspark.sql.functions import col

    return col("seq")


def tail(spark: Any, cluster: LocalCluster) -> tuple[None, str]:
    """Check that a stream gets every row of a ledger, also the last row of an idle writer."""
    with connected(cluster) as bookkeeper, bookkeeper.create_ledger() as ledger:
        stream = spark.readStream.format("bookkeeper").options(**cluster.spark_options)
        stream = stream.option("ledgerId", ledger.ledger_id).option("startingOffsets", "earliest").load()
        query = stream.writeStream.format("memory").queryName("tail").start()
        for k in range(TAIL_ROWS):
            ledger.append_nowait(b"row %d" % k)
            if k % 100 == 0:
                ledger.flush()
                time.sleep(0.02)
        ledger.flush()
        wait_until(lambda: spark.table("tail").count() == TAIL_ROWS, "the last row of an idle writer")
        ledger.append(b"row %d" % TAIL_ROWS)  # one more row, after which the writer is idle again
        idle = time.perf_counter()
        wait_until(lambda: spark.table("tail").count() > TAIL_ROWS, "the last row of an idle writer")
        delay = time.perf_counter() - idle
        query.stop()
        values = [bytes(row.value) for row in spark.table("tail").orderBy("entry_id").collect()]
        assert values == [b"row %d" % k for k in range(TAIL_ROWS + 1)]
        return None, f"{len(values):,} rows in order; the idle writer's last row was there {delay:.1f} s after its ack"


def kill_a_bookie(cluster: LocalCluster) -> tuple[None, str]:
    """Kill one bookie of the ensemble, and check that the write continues with the spare and nothing is lost."""
    with connected(cluster) as bookkeeper:
        wanted = [b"entry %d " % k + b"." * 80 for k in range(KILL_ROWS)]
        with bookkeeper.create_ledger() as ledger:
            before = ledger.metadata.last_fragment.ensemble
            victim = next(bookie for bookie in cluster.bookies if bookie.bookie_id in before)
            for at in range(0, KILL_ROWS, 2_000):
                if at == KILL_ROWS // 4:
                    victim.kill()
                ledger.append_batch(EntryBatch.from_list(wanted[at : at + 2_000]))
                if at > KILL_ROWS // 4:
                    time.sleep(0.03)  # gives the ensemble change time to happen during the write
            ledger.flush()
            wait_until(lambda: victim.bookie_id not in ledger.metadata.last_fragment.ensemble, "the spare to take over")
            fragments = len(ledger.metadata.fragments)
        reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
        found = [value for batch in reader.read(0, reader.last_add_confirmed) for value in batch.to_list()]
        assert found == wanted
    victim.start()
    cluster.wait_ready([victim])
    return (
        None,
        f"bookie {victim.number} killed; {KILL_ROWS:,} entries confirmed and read back from {fragments} fragments",
    )


def take_over(cluster: LocalCluster) -> tuple[None, str]:
    """Open a ledger with recovery while its writer lives, and check that the writer is fenced."""
    with connected(cluster) as first, connected(cluster) as second:
        writer = first.create_ledger()
        told: list[LedgerFencedError] = []
        thread = threading.Thread(target=write_until_fenced, args=(writer, told))
        thread.start()
        wait_until(lambda: writer.last_add_confirmed > 100, "the writer to be under way")
        sealed = second.open_ledger(writer.ledger_id, recover=True)
        thread.join(WAIT_S)
        assert told, "the first writer was not fenced"
        assert sealed.last_add_confirmed >= writer.last_add_confirmed, "a confirmed entry is missing"
        return None, f"closed at entry {sealed.last_add_confirmed:,}; the first writer got {type(told[0]).__name__}"


def write_until_fenced(writer: LedgerWriter, told: list[LedgerFencedError]) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            writer.append(b"still here")
        except LedgerFencedError as error:
            told.append(error)
            return


def restart(cluster: LocalCluster) -> tuple[None, str]:
    cluster.stop()
    cluster.start()
    return None, f"{len(cluster.bookies)} bookies and ZooKeeper are back with their data"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_S:.0f} s for {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
