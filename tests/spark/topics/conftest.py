# SPDX-License-Identifier: Apache-2.0
"""A cluster with topics for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pulsar.test_broker import AdminPort
from tests.spark.topics.world import SparkWorld, spark_world


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[SparkWorld]:
    with spark_world(f"memory://topics-{request.node.name}") as made:
        yield made


@pytest.fixture
def port() -> Iterator[AdminPort]:
    """The admin port of a broker."""
    made = AdminPort()
    yield made
    made.close()
