# SPDX-License-Identifier: Apache-2.0
"""Spark on a cluster of Apache's bookies: it reads what Java wrote, fences a living Java writer, and writes logs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.interop.cells import DIGESTS
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern
from tests.interop.peer_client import PASSWORD, JavaClient, added
from tests.interop.peers import ApacheCluster
from tests.spark.sessions import ClassicSpark

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(300)]

PATTERN = Pattern(seed=11, size_min=8, size_max=1500)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = ClassicSpark(tmp_path_factory.mktemp("spark"))
    yield driver.session()
    driver.stop()


def values(spark: Any, cluster: ApacheCluster, what: str, **options: str) -> list[bytes]:
    given = {"metadataServiceUri": cluster.uri, "ledgerPassword": PASSWORD.decode(), **options}
    frame = spark.read.format("bookkeeper").options(**given).load(what)
    return [bytes(row.value) for row in frame.select("value").collect()]


@pytest.mark.parametrize("digest", DIGESTS)
def test_spark_reads_what_java_wrote(spark: Any, apache: ApacheCluster, java: JavaClient, digest: str) -> None:
    ledger = java.create(digest=digest)
    ledger.add(2000, PATTERN)
    ledger.close()
    assert values(spark, apache, f"ledger:{ledger.ledger_id}") == list(PATTERN.payloads(0, 1999))


@pytest.mark.rule("K2")
def test_spark_fences_a_living_java_writer(spark: Any, apache: ApacheCluster, java: JavaClient) -> None:
    ledger = java.create()
    ledger.add(500, PATTERN)
    adding: Future[dict[str, Any]] = ledger.submit_add(10_000_000, PATTERN, first=500)
    rows = values(spark, apache, f"ledger:{ledger.ledger_id}", readMode="fence")
    assert len(rows) >= 500
    assert rows == list(PATTERN.payloads(0, len(rows) - 1))
    with pytest.raises(PeerError, match="Fenced") as fenced:
        added(adding.result(60))
    assert len(rows) >= 500 + fenced.value.acked
    assert java.open(ledger.ledger_id, recover=False).opened.lac == len(rows) - 1


def test_spark_writes_a_log_and_java_reads_its_ledgers(spark: Any, apache: ApacheCluster, java: JavaClient) -> None:
    frame = spark.range(1000).selectExpr("encode(concat('row ', id), 'utf-8') as value").coalesce(1)
    options = {"metadataServiceUri": apache.uri, "log": "from-spark", "ledgerPassword": PASSWORD.decode()}
    frame.write.format("bookkeeper").options(**options).mode("append").save()
    rows = spark.read.format("bookkeeper").options(**options).load().collect()
    wanted = [b"row %d" % k for k in range(1000)]
    assert [bytes(row.value) for row in rows] == wanted
    (ledger_id,) = {row.ledger_id for row in rows}
    read = java.open(ledger_id, recover=False).read(0, rows[-1].entry_id, payloads=True)
    assert len(read.payloads) == rows[-1].entry_id + 1
    assert sum(row in b"".join(read.payloads) for row in wanted[::100]) == 10
