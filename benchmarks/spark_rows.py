# SPDX-License-Identifier: Apache-2.0
"""Rows a second from Spark to a log and back: ``spark_write_100b`` and ``spark_read_100b``.

``local[2]``, warm, 100 B rows of varied content, 3 bookies, Qw 3, Qa 2, every ack after fdatasync, per-entry digests.
Each run is one Spark job end to end: planning, tasks, publishing. Beside each stands what the machine can do without
us: the same rows into a writer that drops them, and from a source in memory.

    .venv/bin/python -m benchmarks.spark_rows [--rows N] [--runs N] [--uri URI]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROW_BYTES = 100
PARTITIONS = 4


@contextmanager
def spark_session(workdir: Path, *, driver_memory: str = "2g") -> Iterator[Any]:
    """A quiet ``local[2]`` session that finds this checkout."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("bookkeeper-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", driver_memory)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(workdir / "warehouse"))
        .config("spark.local.dir", str(workdir / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def generated(spark: Any, rows: int) -> Any:
    """Rows of exactly 100 bytes that differ from each other."""
    text = f"rpad(concat(cast(id AS STRING), '-', hex(xxhash64(id)), '-', hex(xxhash64(id + 1))), {ROW_BYTES}, 'abc')"
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(f"{text} AS value")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(spark: Any, uri: str, rows: int, runs: int) -> list[dict[str, Any]]:
    """Both figures, each after one warm-up run, as the rows of DESIGN §11."""
    frame = generated(spark, rows)
    log = f"bench-{time.time_ns()}"

    def source() -> Any:
        return spark.read.format("bookkeeper").option("metadataServiceUri", uri)

    def write(name: str = log) -> None:
        frame.write.format("bookkeeper").option("metadataServiceUri", uri).mode("append").save(name)

    def read() -> None:
        source().option("endingOffsets", json.dumps({log: rows})).load(log).write.format("noop").mode("append").save()

    def noop() -> None:
        frame.write.format("noop").mode("append").save()

    write()
    written = source().load(log).count()
    if written != rows:
        raise SystemExit(f"wrote {rows} rows and read {written}")
    writes = [timed(write) for _ in range(runs)]
    generate = [timed(noop) for _ in range(runs)]
    read()
    reads = [timed(read) for _ in range(runs)]
    return [
        figure("spark_write_100b", rows, writes, peer="generate and drop in the JVM", peer_times=generate),
        figure("spark_read_100b", rows, reads),
    ]


def figure(name: str, rows: int, times: list[float], peer: str = "", peer_times: list[float] | None = None) -> Any:
    value = rows / statistics.median(times)
    peer_value = rows / statistics.median(peer_times) if peer_times else None
    return {
        "name": name,
        "lane": "grpc",
        "value": round(value),
        "unit": "rows/s",
        "min": round(rows / max(times)),
        "runs": [round(rows / t) for t in times],
        "peer": peer,
        "peer_value": peer_value and round(peer_value),
        "ratio": peer_value and round(value / peer_value, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--uri", help="a running cluster instead of a new one")
    given = parser.parse_args()
    with ExitStack() as stack:
        workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-bench-")))
        uri = given.uri
        if uri is None:
            from bk_cli.cluster import LocalCluster

            uri = stack.enter_context(LocalCluster(workdir / "cluster", bookies=3, port=0, zookeeper_port=0)).uri
        spark = stack.enter_context(spark_session(workdir))
        for row in measure(spark, uri, given.rows, given.runs):
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
