# SPDX-License-Identifier: Apache-2.0
"""A cluster's metadata in memory, for tests of a bookie."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(uri: str) -> Iterator[MetadataStore]:
    opened = open_store(uri)
    opened.initialize_cluster()
    yield opened
    opened.close()
