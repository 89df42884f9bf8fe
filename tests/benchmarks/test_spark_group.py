# SPDX-License-Identifier: Apache-2.0
"""What the group ``spark`` makes of its measurements, and that a part which hangs or fails is ended and told of."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.spark import group, in_memory, topics, wire
from benchmarks.spark.part import MEASURES
from bk_core.errors import BookKeeperError


def test_every_part_can_be_measured_and_kafka_is_asked_for() -> None:
    assert set(group.PARTS) == set(MEASURES)
    parts = group.SparkGroup().parts
    assert {"tail", "rows_100b"} <= set(parts(["raw"]))
    assert "kafka_100b" not in parts(["raw"])
    assert "rows_100b" not in parts(["kafka"])
    assert parts(["kafka", "raw"]) == list(group.PARTS)


def program(folder: Path, *lines: str) -> str:
    """Something to run instead of Python."""
    path = folder / "program"
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def test_a_part_that_does_not_end_is_ended(tmp_path: Path) -> None:
    python = program(tmp_path, f"echo $$ > {tmp_path}/pid", "echo counting rows", "exec sleep 100")
    began = time.monotonic()
    with pytest.raises(BookKeeperError, match="did not end; after 1 s: counting rows"):
        group.in_process("tail", python, tmp_path, [], "", 1.0)
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_part_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(BookKeeperError, match="part tail failed; no such log"):
        group.in_process("tail", program(tmp_path, "echo no such log", "exit 3"), tmp_path, [], "", 30.0)


@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_part_runs_in_a_process_of_its_own_and_its_figures_come_back(tmp_path: Path) -> None:
    arguments = ["--uri", "zk://127.0.0.1:1/ledgers", "--runs", "1", "--scale", "0.001"]
    found = group.in_process("plan", sys.executable, tmp_path, arguments, "", 280.0)
    assert [figure.name for figure in found] == ["spark_plan", "spark_plan_memory"]
    assert found[0].values[0] > 0


def test_the_source_in_memory_gives_exactly_the_rows_that_are_asked_for() -> None:
    found = list(in_memory.batches(2_500, 1_000, ["value", "offset"]))
    assert sum(batch.num_rows for batch in found) == 2_500
    assert found[0].schema == pa.schema({"value": pa.binary(), "offset": pa.int64()})
    assert set(pc.binary_length(pa.Table.from_batches(found)["value"]).to_pylist()) == {1_000}
    assert max(batch.nbytes for batch in found) < 2 * in_memory.BATCH_BYTES
    assert in_memory.rows_per_batch(100) == in_memory.ROWS_PER_BATCH
    assert list(in_memory.batches(0, 100, ["value"])) == []


def test_jars_that_spark_brings_itself_are_not_given_to_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    brought = next((Path(pyspark.__file__).parent / "jars").glob("scala-library*.jar"))
    for name in (brought.name, "spark-sql-kafka.jar", "kafka-clients.jar"):
        (tmp_path / name).touch()
    monkeypatch.setenv(topics.CONNECTOR_JARS, str(tmp_path))
    assert [Path(jar).name for jar in topics.kafka_classpath().split(os.pathsep)] == [
        "kafka-clients.jar",
        "spark-sql-kafka.jar",
    ]


def test_bytes_are_of_the_servers_connections_in_both_directions() -> None:
    said = (
        "0      0      127.0.0.1:36996 127.0.0.1:3181 bbr rto:204 bytes_sent:1000 bytes_acked:1001 minrtt:0.01\n"
        "0      0      127.0.0.1:3181 127.0.0.1:36996 bbr bytes_sent:20 bytes_received:1000 segs_out:1    \n"
        "0      0      [::ffff:127.0.0.1]:9092 [::ffff:127.0.0.1]:50 cubic bytes_received:7 \n"
        "0      0      127.0.0.1:22 127.0.0.1:51 cubic bytes_sent:9\n"
    )
    assert wire.counts_of(said, {3181, 9092}) == {
        ("127.0.0.1:3181", "127.0.0.1:36996"): 1020,
        ("[::ffff:127.0.0.1]:9092", "[::ffff:127.0.0.1]:50"): 7,
    }


def test_a_file_of_arrow_is_shared_by_the_partitions(tmp_path: Path) -> None:
    table = pa.table({"number": range(25), "half": [n / 2 for n in range(25)]})
    with pa.OSFile(str(tmp_path / "rows"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    parts = [in_memory.mapped(str(tmp_path / "rows"), ["number"], part) for part in range(in_memory.PARTITIONS)]
    found = [[batch.to_pydict() for batch in part] for part in parts]
    assert [[len(batch["number"]) for batch in part] for part in found] == [[10, 5], [10]]
    assert found[1] == [{"number": list(range(10, 20))}]
