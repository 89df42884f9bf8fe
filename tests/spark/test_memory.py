# SPDX-License-Identifier: Apache-2.0
"""What a task takes for itself (RULES K5): measured in a process of its own, and in Spark under a limit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.clusters import temporary_cluster

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.rule("K5")]

ROOT = Path(__file__).parents[2]
OWN_MIB_MAX = 128

FAULTS_MAX = 5_000
"""Of a task that moves 200 MB, which are 49,000 pages. Before the task's own buffers it was 10,000 to write them, and
more the larger the frames; what a thread's allocator does once, and the odd slow ack, are the rest."""
BATCHES_MAX = 80
"""Of 2,000,000 rows that were written 10,000 at a time: a frame holds three times as many."""

TASK = """
import itertools, resource, sys
import pyarrow as pa, pyspark.worker
from pyspark.sql.types import BinaryType, StructField, StructType
from bk_spark.options.options import Use
from bk_spark.options.options import parse_options
from bk_spark.read.ledger_reader import LedgerReader
from bk_spark.write.log_writer import LogWriter

def memory(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) >> 10

def batches():
    column = pa.array([bytes([i % 256]) * 100 for i in range(10_000)])
    for _ in range(200):
        yield pa.record_batch([pa.concat_arrays([column.slice(5_000), column.slice(0, 5_000)])], names=["value"])

schema = StructType([StructField("value", BinaryType())])
uri = {"metadataserviceuri": sys.argv[1], "path": "memory"}
sum(batch.num_rows for batch in itertools.islice(batches(), 3))
before = memory("VmRSS")


def write(name):
    writer = LogWriter.plan(parse_options({**uri, "path": name}, Use.WRITE), schema)
    begun = faults()
    message = writer.write(batches())
    taken = faults() - begun
    writer.commit([message])
    return taken

def read():
    reader = LedgerReader(parse_options(uri, Use.READ), schema)
    parts, begun = reader.partitions(), faults()
    rows = [batch.num_rows for part in parts for batch in reader.read(part)]
    assert sum(rows) == 2_000_000, rows
    return faults() - begun, len(rows)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

write("memory"), read()
print("own", memory("VmHWM") - before)
print("write_faults", write("again"))
found = read()
print("read_faults", found[0])
print("batches", found[1])
"""

JOB = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
where = Path(sys.argv[2])
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.local.dir", str(where)).config("spark.sql.warehouse.dir", str(where))
    .config("spark.executor.pyspark.memory", "512m")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
uri = {"metadataServiceUri": sys.argv[1]}
rows = spark.range(0, 200_000, 1, 2).selectExpr("rpad(hex(xxhash64(id)), 400, 'x') AS value")
rows.write.format("bookkeeper").options(**uri).mode("append").save("limited")
total = spark.read.format("bookkeeper").options(**uri).load("limited").selectExpr("sum(length(value))").collect()[0][0]
print("bytes", total)
spark.stop()
"""


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with temporary_cluster(tmp_path_factory, bookies=3) as cluster:
        yield cluster.uri


LIMITED = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""What docs/spark.md says to set with a limit: allocators reserve address space that they never use."""


def run(code: str, *arguments: str, **more: str) -> dict[str, int]:
    """What the program printed, as numbers by name."""
    environment = {
        **os.environ,
        **more,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 2}


@pytest.fixture(scope="module")
def moved(uri: str) -> dict[str, int]:
    return run(TASK, uri)


def test_a_task_that_moves_200_mb_takes_little_for_itself(moved: dict[str, int]) -> None:
    assert moved["own"] <= OWN_MIB_MAX


@pytest.mark.parametrize("way", ["write", "read"])
def test_a_warm_task_uses_its_buffers_again(way: str, moved: dict[str, int]) -> None:
    assert moved[f"{way}_faults"] <= FAULTS_MAX, moved


def test_rows_are_handed_to_spark_a_frame_at_a_time(moved: dict[str, int]) -> None:
    assert moved["batches"] <= BATCHES_MAX


def test_tasks_work_under_a_limit_of_512_mib(uri: str, tmp_path: Path) -> None:
    assert run(JOB, uri, str(tmp_path), **LIMITED)["bytes"] == 200_000 * 400
