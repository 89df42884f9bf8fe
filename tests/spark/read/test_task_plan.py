# SPDX-License-Identifier: Apache-2.0
"""What a task is told survives the way to it, and is small."""

from __future__ import annotations

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.model import BookieServiceInfo, DigestType, Fragment
from bk_spark.plan.packing import Layouts, LedgerRange, PartitionLayout
from bk_spark.read.task_plan import TaskPlan

LAYOUTS = tuple(
    PartitionLayout(
        3, 3, 2, (Fragment(0, (f"b{i}", "b8", "b9")), Fragment(10 + i, ("b7", "b8", "b9"))), DigestType.MAC, b"pw"
    )
    for i in range(3)
)
INTEGER = st.integers(0, 2**63 - 1)
RANGES = st.builds(
    LedgerRange,
    ledger_id=INTEGER,
    first=INTEGER,
    last=INTEGER,
    bytes=INTEGER,
    log=st.sampled_from([None, "a", "b"]),
    offset=st.none() | INTEGER,
    schema_number=st.integers(0, 2**32 - 1),
    created_ms=st.none() | INTEGER,
    closed=st.booleans(),
    layout=st.sampled_from([None, *LAYOUTS]),
)


def plan(*ranges: LedgerRange) -> TaskPlan:
    return TaskPlan(
        version="1",
        instance_id="c",
        ranges=ranges,
        bookies={"b8": BookieServiceInfo("b8")},
        prefer=3,
        schemas={("a", 2): b"schema"},
    )


@settings(derandomize=True)
@given(st.lists(RANGES, max_size=20))
def test_a_plan_arrives_as_it_was(ranges: list[LedgerRange]) -> None:
    sent = plan(*ranges)
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_ten_thousand_ranges_are_small_and_share_their_layouts() -> None:
    layouts = Layouts()
    ranges = [
        LedgerRange(
            ledger_id=10**12 + 7 * i,
            first=0,
            last=99,
            bytes=10_000 + i % 50,
            log="events",
            offset=100 * i,
            created_ms=1_700_000_000_000 + 1000 * i,
            layout=layouts(PartitionLayout(3, 3, 2, (Fragment(0, ("b1", "b2", f"b{i % 20 + 3}")),))),
        )
        for i in range(10_000)
    ]
    data = pickle.dumps(plan(*ranges))
    assert len(data) < 250_000
    arrived = pickle.loads(data)
    assert arrived.ranges == tuple(ranges)
    assert len({id(r.layout) for r in arrived.ranges}) == 20


def test_a_password_is_not_shown() -> None:
    assert "pw" not in repr(plan(LedgerRange(ledger_id=1, first=0, last=1, bytes=0, layout=LAYOUTS[0])))
