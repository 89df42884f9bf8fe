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
