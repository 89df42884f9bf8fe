# SPDX-License-Identifier: Apache-2.0
"""A selection of ``python -m tests.interop.pulsar_topics``: topics of a Pulsar broker on our bookies, read from the
bookies and compared with the reads of Pulsar's own clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.pulsar_offloaded import offloaded
from tests.interop.pulsar_schemas import schema_kinds
from tests.interop.pulsar_topics import explained, followed, java_kinds, python_kinds, started, states
from tests.interop.steps import Steps

KINDS = ("plain", "lz4", "keyed", "avro")


@pytest.mark.interop
@pytest.mark.long
@pytest.mark.timeout(600)
def test_topics_of_a_broker_are_read_as_its_clients_read_them(tmp_path: Path) -> None:
    steps = Steps()
    with started(steps, tmp_path, apache=False) as world:
        python_kinds(steps, world, KINDS)
        java_kinds(steps, world)
        states(steps, world)
        explained(steps, world)
        schema_kinds(steps, world)
        offloaded(steps, world)
        followed(steps, world)
    assert steps.passed, steps.table()
