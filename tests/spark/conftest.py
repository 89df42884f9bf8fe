# SPDX-License-Identifier: Apache-2.0
"""One small Spark session for all tests of the data source, and a cluster in this process for those without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bk_core import blocking
from bk_core.blocking import BookKeeper
from tests.kit.clusters import temporary_cluster
from tests.kit.memory_cluster import MemoryBookKeeper, blocking_cluster
from tests.spark.sessions import ClassicSpark


@pytest.fixture(scope="session")
def classic_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassicSpark]:
    """The Spark driver of this process, started when a test first wants it."""
    driver = ClassicSpark(tmp_path_factory.mktemp("spark"))
    yield driver
    driver.stop()


@pytest.fixture
def spark(classic_spark: ClassicSpark) -> Any:
    """A session ``local[2]`` on loopback that finds this checkout as an installed package would be found."""
    return classic_spark.session()


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One cluster of four bookies for all tests that need real ones and leave them running."""
    with temporary_cluster(tmp_path_factory) as cluster:
        yield cluster.uri


@pytest.fixture
def client(uri: str) -> Iterator[BookKeeper]:
    with blocking.connect(uri) as bookkeeper:
        yield bookkeeper


@pytest.fixture
def in_memory() -> Iterator[tuple[BookKeeper, MemoryBookKeeper]]:
    with blocking_cluster() as both:
        yield both


@pytest.fixture
def bookkeeper(in_memory: tuple[BookKeeper, MemoryBookKeeper]) -> BookKeeper:
    """A blocking client of four bookies in this process."""
    return in_memory[0]


@pytest.fixture
def log(request: pytest.FixtureRequest) -> str:
    """Return a name for a log that no other test has."""
    return str(request.node.name)[:100].replace("[", "-").replace("]", "")
