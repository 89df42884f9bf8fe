# SPDX-License-Identifier: Apache-2.0
"""Spark and striped ledgers whose ensembles changed in the middle of a frame: read, and written while bookies die."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bk_cli.local.cluster import LocalCluster
from bk_core import blocking
from bk_core.blocking import BookKeeper
from bk_core.logs.model.head import NewExtent, PublishId
from tests.kit.clusters import temporary_cluster
from tests.kit.striped import QUICK, SHAPES, Strikes, check_changes, write_with_changes

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Five bookies for the widest ensemble, and one to take the place of each that is killed."""
    with temporary_cluster(tmp_path_factory, bookies=7) as running:
        yield running


@pytest.fixture
def strikes(seven: LocalCluster) -> Iterator[Strikes]:
    made = Strikes(seven)
    yield made
    made.mend()


@pytest.fixture
def client(seven: LocalCluster) -> Iterator[BookKeeper]:
    with blocking.connect(seven.uri, config=QUICK) as bookkeeper:
        yield bookkeeper


def load(spark: Any, uri: str, path: str, **options: Any) -> Any:
    return spark.read.format("bookkeeper").options(metadataServiceUri=uri, **options).load(path)


@pytest.mark.parametrize("shape", SHAPES)
def test_torn_frames_are_read_row_for_row_as_a_ledger_and_in_a_log(
    spark: Any, seven: LocalCluster, strikes: Strikes, client: BookKeeper, shape: str
) -> None:
    ledger = client.create_ledger(**SHAPES[shape].sizes)
    written = asyncio.run(write_with_changes(ledger, SHAPES[shape], strikes))
    ledger.close()
    check_changes(ledger.metadata, SHAPES[shape])
    rows = load(spark, seven.uri, f"ledger:{ledger.ledger_id}").select("entry_id", "value").collect()
    assert [(row.entry_id, bytes(row.value)) for row in rows] == list(enumerate(written))
    log = f"striped-{shape.replace('/', '-')}"
    client.log(log).create()
    extent = NewExtent(
        ledger_id=ledger.ledger_id,
        entry_count=len(written),
        size_bytes=sum(map(len, written)),
        created_ms=ledger.metadata.ctime_ms or 0,
        fragments=ledger.metadata.fragments,
        **SHAPES[shape].sizes,
    )
    client.log(log).publish([extent], PublishId.job(log))
    rows = load(spark, seven.uri, log, minPartitions="2").select("offset", "value").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == list(enumerate(written))


def slowly(batches: Any) -> Any:
    """Runs in a task of Spark: hand on a batch now and then, so that the write lasts."""
    for batch in batches:
        time.sleep(0.05)
        yield batch


def test_a_job_goes_on_in_a_changed_ensemble_and_its_rows_are_all_there(
    spark: Any, seven: LocalCluster, strikes: Strikes, client: BookKeeper
) -> None:
    old, over = set(client.list_ledgers()), threading.Event()

    def strike() -> int:
        """Kill one bookie of the job's ledger; its stopped neighbour keeps the job from ending without it."""
        while not (made := set(client.list_ledgers()) - old):
            assert not over.wait(0.01), "the job made no ledger"
        (ledger_id,) = made
        ensemble = client.read_metadata(ledger_id).value.last_fragment.ensemble
        strikes.stop(ensemble[3])
        strikes.kill(ensemble[2])
        while len(client.read_metadata(ledger_id).value.fragments) == 1:
            assert not over.wait(0.01), "the job ended without an ensemble change"
        strikes.resume()
        return int(ledger_id)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    with ThreadPoolExecutor(1) as pool:
        striking = pool.submit(strike)
        try:
            numbered = spark.range(0, 20_000, 1, 1).selectExpr("concat('row ', id, repeat('*', id % 200)) AS value")
            slow = numbered.mapInArrow(slowly, "value STRING")
            options = {"ensembleSize": "5", "writeQuorumSize": "3", "ackQuorumSize": "2"}
            writing = slow.write.format("bookkeeper").options(metadataServiceUri=seven.uri, **options)
            writing.mode("append").save("struck")
        finally:
            over.set()
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        ledger_id = striking.result(10)
    wanted = [f"row {i}{'*' * (i % 200)}".encode() for i in range(20_000)]
    assert [bytes(row.value) for row in load(spark, seven.uri, "struck").select("value").collect()] == wanted
    assert client.read_metadata(ledger_id).value.is_closed
    (extent,) = client.log("struck").head().value.tail
    assert extent.ledger_id == ledger_id
