# SPDX-License-Identifier: Apache-2.0
"""Every test here runs on a classic driver; what may differ, also through Spark Connect or on a standalone cluster.

Connect is another driver: another API, errors and tables that travel. A standalone cluster has other workers: tasks,
and what they are sent. ``also_on`` names them for a test, and CI runs those with ``always=True``; ``pytest
tests/spark/modes -k connect`` runs one mode. One session and its servers serve all tests of a mode, and one cluster of
bookies all of them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bk_core import blocking
from bk_core.blocking import BookKeeper
from tests.spark.modes import servers
from tests.spark.modes.kit import Source
from tests.spark.sessions import ClassicSpark

STANDALONE = {
    "spark__executor__memory": "512m",
    "spark__executor__cores": "2",
    "spark__scheduler__minRegisteredResourcesRatio": "1.0",
    "spark__scheduler__maxRegisteredResourcesWaitingTime": "60s",
    "spark__task__maxFailures": "4",
    "spark__python__task__killTimeout": "60s",  # a loser of two attempts is not killed while it writes: it is late
    "spark__speculation__interval": "100ms",
    "spark__speculation__minTaskRuntime": "500ms",
    "spark__speculation__quantile": "0.5",
    "spark__speculation": "true",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = [str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")]
    if "mode" in metafunc.fixturenames and "mode" not in chosen:
        more = [
            pytest.param(mode, marks=() if mark.kwargs.get("always") else pytest.mark.thorough)
            for mark in metafunc.definition.iter_markers("also_on")
            for mode in mark.args
        ]
        metafunc.parametrize("mode", ["classic", *more], indirect=True, scope="session")


@pytest.fixture(scope="session")
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def spark(
    mode: str, classic_spark: ClassicSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Any]]:
    """The session of the mode, on one cluster of bookies."""
    where = tmp_path_factory.mktemp(mode)
    if mode == "classic":
        yield classic_spark.session()
    elif mode == "connect":
        from pyspark.sql.connect.session import SparkSession

        with servers.connect_server(where, {}) as url:
            session = SparkSession.builder.remote(url).create()
            yield session
            session.stop()
    else:
        with servers.standalone_cluster(where) as url:
            yield classic_spark.session(url, **STANDALONE)
            classic_spark.stop()


@pytest.fixture(scope="session")
def client(uri: str) -> Iterator[BookKeeper]:
    with blocking.connect(uri) as bookkeeper:
        yield bookkeeper


@pytest.fixture
def name(request: pytest.FixtureRequest, mode: str) -> str:
    """A name of this test's own, for a log, a view or a table."""
    words = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")
    return f"{words[:60]}_{zlib.crc32(words.encode()):08x}_{mode}"  # beginnings may be alike


@pytest.fixture
def source(spark: Any, uri: str, name: str) -> Source:
    """The format, with the options that every use of it needs."""
    return Source(spark, uri, name)
