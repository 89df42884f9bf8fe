# SPDX-License-Identifier: Apache-2.0
"""Spark and striped ledgers whose ensembles changed in the middle of a frame: read, and written while bookies die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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
