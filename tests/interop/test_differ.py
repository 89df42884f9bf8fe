# SPDX-License-Identifier: Apache-2.0
"""The short form of ``scripts/prove differ``, and tests that it notices differences."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.interop import differ as differing
from tests.interop.differ import Address, Pair, differ, two_bookies
from tests.interop.differ_operations import EPOCH_OPERATIONS
from tests.interop.differ_rules import RULES
from tests.interop.jars import MAIN
from tests.interop.java_process import QUICK
from tests.trials.harness import Figures

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def both(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Address, Address]]:
    uri = f"zk://{zookeeper_server.connect_string}/differ-{uuid.uuid4().hex[:8]}"
    with two_bookies(MAIN, tmp_path_factory.mktemp("differ"), uri, flags=QUICK) as addresses:
        yield addresses


def run(pair: Pair, operations: int, seed: int) -> Figures:
    figures = Figures()
    while figures.counts["operations"] < operations and not figures.problems:
        figures.add(asyncio.run(differ(pair, min(EPOCH_OPERATIONS, operations), seed, figures.rounds)))
    return figures


def test_the_same_operations_have_the_same_answers(both: tuple[Address, Address]) -> None:
    figures = run(Pair(*both), 10_000, 7)
    assert figures.problems == []
    assert len(figures.table("operation")) > 15
    assert figures.table("listed difference").total() > 0


def test_a_difference_that_is_not_listed_is_shown_with_few_operations(
    both: tuple[Address, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a normal add over an existing id with another payload"
    monkeypatch.setattr(differing, "RULES", tuple(rule for rule in RULES if rule.name != name))
    (problem,) = run(Pair(*both, base=5_000), 20_000, 8).problems
    assert "EOK" in problem
    assert "EBADREQ" in problem
    few = problem.partition("that show it:")[2].strip().splitlines()
    assert 1 <= len(few) <= 4, problem
