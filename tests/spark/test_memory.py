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

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.alone, pytest.mark.rule("K5")]

ROOT = Path(__file__).parents[2]
OWN_MIB_MAX = 128

TASK = """
import itertools, sys
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
writer = LogWriter.plan(parse_options(uri, Use.WRITE), schema)
writer.commit([writer.write(batches())])
reader = LedgerReader(parse_options(uri, Use.READ), schema)
rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
assert rows == 2_000_000, rows
print("own", memory("VmHWM") - before)
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
rows = spark.range(0, 600_000, 1, 4).selectExpr("rpad(hex(xxhash64(id)), 400, 'x') AS value")
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
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    return {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 2}


def test_a_task_that_moves_200_mb_takes_little_for_itself(uri: str) -> None:
    assert run(TASK, uri)["own"] <= OWN_MIB_MAX


@pytest.mark.timeout(120)
def test_tasks_work_under_a_limit_of_512_mib(uri: str, tmp_path: Path) -> None:
    assert run(JOB, uri, str(tmp_path), **LIMITED)["bytes"] == 600_000 * 400
