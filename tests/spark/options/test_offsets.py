# SPDX-License-Identifier: Apache-2.0
"""Checkpoint offsets: the same position is always the same text, and only ours is accepted."""

from __future__ import annotations

import json

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.position import LogPosition, StreamOffset
from bk_spark.options.offsets import EARLIEST, LATEST, from_json, resolve_bound, sources_in, to_json
from bk_spark.options.selection import LedgerSource, LogSource

LOG = StreamOffset("c-1", logs={"events": LogPosition("u-1", 0, 1000234)})
LEDGER = StreamOffset("c-1", ledgers={17: 24})


@pytest.mark.rule("N7")
def test_keys_come_in_one_order_because_spark_compares_text() -> None:
    one = StreamOffset("c", ledgers={10: 1, 9: 2}, logs={"b": LogPosition("u", 0, 1), "a": LogPosition("v", 0, 2)})
    two = StreamOffset("c", ledgers={9: 2, 10: 1}, logs={"a": LogPosition("v", 0, 2), "b": LogPosition("u", 0, 1)})
    assert json.dumps(to_json(one)) == json.dumps(to_json(two)) == json.dumps(to_json(one), sort_keys=True)


def test_offsets_survive_json() -> None:
    for offset in (LOG, LEDGER, StreamOffset("c", ledgers={2**62: 2**62 + 1})):
        assert from_json(json.loads(json.dumps(to_json(offset)))) == offset


@pytest.mark.parametrize(
    "data", [{}, {"v": 1}, {"v": 1, "cluster": "c", "ledgers": 3}, {"partition": 0}, {"v": 2, "cluster": "c"}]
)
def test_a_foreign_or_newer_offset_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="another checkpointLocation"):
        from_json(data)


def test_sources_stand_in_the_order_in_which_they_are_read() -> None:
    logs = {name: LogPosition("u", 0, 1) for name in ("b", "a")}
    assert sources_in(StreamOffset("c", logs=logs)) == (LogSource("a"), LogSource("b"))
    assert sources_in(StreamOffset("c", ledgers={10: 1, 9: 2})) == (LedgerSource(9), LedgerSource(10))


def test_sentinels_become_numbers() -> None:
    assert [resolve_bound(b, 5, 9) for b in (EARLIEST, LATEST, 7)] == [5, 9, 7]
