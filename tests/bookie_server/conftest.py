# SPDX-License-Identifier: Apache-2.0
"""A cluster's metadata, for tests of a bookie."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from tests.kit.memory_store import MemoryStore


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(uri: str) -> Iterator[MemoryStore]:
    yield from _opened(uri)


@pytest.fixture
def zookeeper_store(zookeeper_uri: str) -> Iterator[MetadataStore]:
    """The metadata of a cluster of the test's own on a real ZooKeeper."""
    yield from _opened(f"{zookeeper_uri}/{uuid.uuid4().hex}")


def _opened(uri: str) -> Iterator[Any]:
    store = open_store(uri)
    store.initialize_cluster()
    yield store
    store.close()
