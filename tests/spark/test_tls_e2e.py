# SPDX-License-Identifier: Apache-2.0
"""Spark reads and writes where nothing is spoken in plain; a table keeps the options of TLS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.tls_cluster import TlsCluster, temporary_tls_cluster

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    with temporary_tls_cluster(tmp_path_factory.mktemp("secure")) as running:
        yield running


def test_rows_go_through_spark_over_tls(secure: TlsCluster, spark: Any) -> None:
    frame = spark.range(0, 2000, 1, 2).selectExpr("CAST(concat('row ', id) AS BINARY) AS value")
    frame.write.format("bookkeeper").options(**secure.spark_options).mode("append").save("events")
    wanted = sorted(f"row {n}".encode() for n in range(2000))
    read = spark.read.format("bookkeeper").options(**secure.spark_options).load("events")
    assert sorted(bytes(row.value) for row in read.collect()) == wanted
    options = ", ".join(f"`{name}` '{value}'" for name, value in secure.spark_options.items())
    spark.sql(f"CREATE TABLE tls_events USING bookkeeper OPTIONS ({options}, log 'events')")
    try:
        assert spark.table("tls_events").count() == 2000
    finally:
        spark.sql("DROP TABLE tls_events")
