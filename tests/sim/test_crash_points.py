# SPDX-License-Identifier: Apache-2.0
"""The machine stops at every file operation of every workload, and of the restart after it (RULES S3, S4, S6, S8)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.kit.amount import some
from tests.sim.crash_points import (
    EVERY_RESTART,
    SAMPLE,
    VARIANTS,
    Found,
    crash_at,
    crash_everywhere,
    explore,
    operations_of,
    workloads,
)
from tests.sim.storage_life import Life
from tests.sim.storage_workloads import WORKLOADS

pytestmark = pytest.mark.long  # minutes together: in scripts/test, not in scripts/check


@pytest.fixture(scope="module")
def explored(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Found]]]:
    """The workloads that are asked for, explored on every processor at once."""
    mine = [
        item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module
    ]
    names = [item.callspec.params["name"] for item in mine if item.originalname == EXPLORING]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield {name: pool.submit(explore, name, stride=SAMPLE * len(VARIANTS)) for name in names}


EXPLORING = "test_the_machine_may_stop_at_any_operation"


@pytest.mark.rule("S3", "S4", "S6")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", workloads())
def test_the_machine_may_stop_at_any_operation(name: str, explored: dict[str, Future[Found]]) -> None:
    found = explored[name].result()
    assert found.violations == []
    assert found.starts >= found.operations // SAMPLE - len(VARIANTS), "a point was left out"
    assert found.operations > 30


@pytest.mark.rule("S6")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "stride"),
    [("small groups", 3), ("fences and tombstones around restarts", 11), ("recycled and not used", 19)],
)
def test_it_may_stop_at_any_operation_of_the_restart_after_that_too(name: str, stride: int) -> None:
    """``scripts/sim --crash-points --restarts`` does it for each operation of all."""
    stride = some(stride, few=3 * stride)
    steps = workloads()[name]
    starts = crash_everywhere(steps, EVERY_RESTART, stride=stride)
    assert starts > 8 * operations_of(steps).total() // stride


@pytest.mark.rule("S6")
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_restart_after_a_clean_end_may_stop_anywhere(name: str) -> None:
    for n in range(1, 200, some(1, few=3)):
        chance, life = random.Random(n), Life()
        life.run(WORKLOADS[name])
        life.crash(chance, "everything")
        life.disk.faults.no_space = False
        life.disk.crash_at(n)
        if not life.crashes(life.open):
            break
        life.crash(chance)
        life.open()
        life.check()
    assert n > 10


def test_without_a_stride_no_point_is_left_out() -> None:
    found = explore("small groups")
    assert found.starts == found.operations * len(VARIANTS)


def test_a_point_behind_a_crash_of_the_workload_itself_is_reached() -> None:
    steps = WORKLOADS["fences and tombstones around restarts"]
    total = operations_of(steps).total()
    assert crash_at(steps, total, VARIANTS[0])
    assert not crash_at(steps, total + 1, VARIANTS[0])
