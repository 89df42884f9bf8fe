# SPDX-License-Identifier: Apache-2.0
"""Spark where every port wants a certificate and a role: the driver and the executors, which are processes of their
own, know their identity by the paths in the options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_cli.local.cluster import LocalCluster
from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.errors import LedgerFencedError
from tests.spark.modes.kit import texts

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(300)]
ROWS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("secure"), port=0, zookeeper_port=0, secure=True) as running:
        yield running


@pytest.mark.parametrize("mode", ["standalone"], indirect=True, scope="session")
@pytest.mark.rule("L7", "K2")
def test_rows_are_written_read_streamed_and_fenced_by_who_has_a_role(
    spark: Any, cluster: LocalCluster, tmp_path: Path, name: str
) -> None:
    options = cluster.spark_options
    rows = spark.range(0, ROWS, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("bookkeeper").options(**options).mode("append").save(name)
    wanted = [str(number) for number in range(ROWS)]
    assert texts(spark.read.format("bookkeeper").options(**options).load(name)) == wanted

    stream = spark.readStream.format("bookkeeper").options(**options).option("startingOffsets", "earliest").load(name)
    sink = stream.selectExpr("value").writeStream.format("bookkeeper").options(**options)
    query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start(f"{name}-copy")
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert texts(spark.read.format("bookkeeper").options(**options).load(f"{name}-copy")) == wanted

    with blocking.connect(cluster.uri, config=ClientConfig(**cluster.client_settings)) as bookkeeper:
        writer = bookkeeper.create_ledger()
        writer.append(b"last")
        fencing = spark.read.format("bookkeeper").options(**options).option("ledgerId", writer.ledger_id)
        assert [bytes(row.value) for row in fencing.option("readMode", "fence").load().collect()] == [b"last"]
        with pytest.raises(LedgerFencedError):
            writer.append(b"too late")

    nobody = {
        key: text for key, text in options.items() if not key.startswith("tls.certificate") and key != "tls.key.path"
    }
    with pytest.raises(Exception, match="security=secure needs a certificate"):
        spark.read.format("bookkeeper").options(**nobody).load(name).collect()
