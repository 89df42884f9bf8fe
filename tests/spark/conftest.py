# SPDX-License-Identifier: Apache-2.0
"""One small Spark session for all tests of the data source, and a cluster in this process for those without Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_core import blocking
from bk_core.blocking import BookKeeper
from tests.kit.memory_cluster import MemoryBookKeeper

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session ``local[2]`` on loopback that finds this checkout as an installed package would be found."""
    from pyspark.sql import SparkSession

    here = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("bookkeeper-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(here / "warehouse"))
        .config("spark.local.dir", str(here / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def bookkeeper() -> Iterator[BookKeeper]:
    """A blocking client of four bookies in this process."""
    clusters: list[MemoryBookKeeper] = []

    async def make() -> Any:
        clusters.append(MemoryBookKeeper(4))
        return clusters[0].client()

    with blocking.connect_with(make) as client:
        yield client
    clusters[0].store.close()
