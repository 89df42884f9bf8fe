# SPDX-License-Identifier: Apache-2.0
"""The connector's lines in Spark's own table of worker logs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.spark.modes.kit import Source

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

SETTING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def collected(source: Source) -> Iterator[None]:
    source.spark.conf.set(SETTING, "true")
    yield
    source.spark.conf.unset(SETTING)


@pytest.mark.also_on("connect", "standalone")
@pytest.mark.usefixtures("collected")
def test_each_task_leaves_one_line_about_what_it_did(source: Source) -> None:
    source.append(source.rows(10, partitions=2), smallTaskBytes="0")
    ledgers = sorted({row.ledger_id for row in source.load(minPartitions="2").collect()})
    lines = source.sql(
        "SELECT level, logger, msg FROM python_worker_logs() "
        f"WHERE logger = 'bk_spark.task' AND (msg LIKE '%{ledgers[0]}%' OR msg LIKE '%{ledgers[1]}%')"
    )
    wrote = sorted(line.msg for line in lines if line.msg.startswith("wrote "))
    read = sorted(line.msg for line in lines if line.msg.startswith("read "))
    assert {line.level for line in lines} == {"INFO"}
    assert (len(wrote), len(read)) == (2, 2)
    for partition, line in enumerate(sorted(wrote, key=lambda line: line.split("partition ")[1])):
        assert re.match(r"wrote 5 rows, \d+ bytes into ledgers \d+ in \d+ ms, ", line)
        assert f"partition {partition}, attempt 0: done" in line
    assert all(f"of log {source.log} in " in line for line in read)


@pytest.mark.usefixtures("collected")
def test_what_the_driver_does_is_there_too(source: Source) -> None:
    source.fill(2)
    ledger = source.load().first().ledger_id
    told = source.sql("SELECT msg FROM python_worker_logs() WHERE msg LIKE '%a message to the driver in %'")
    assert [
        line.msg for line in told if re.match(r"wrote 1 rows, \d+ bytes into a message to the driver in ", line.msg)
    ]
    lines = source.sql("SELECT msg FROM python_worker_logs() WHERE logger LIKE 'bk_spark.%'")
    assert [line.msg for line in lines if line.msg == f"created log {source.log}"]
    assert [line.msg for line in lines if line.msg == f"wrote 2 entries of small tasks into ledger {ledger}"]
    assert [line.msg for line in lines if line.msg.startswith("published 2 ") and source.log in line.msg]
