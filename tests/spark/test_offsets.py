# SPDX-License-Identifier: Apache-2.0
"""Checkpoint offsets: the same position is always the same text, and only ours is accepted."""

from __future__ import annotations

import json

import pytest

from bk_core.errors import ClusterMismatchError, InvalidArgumentError
from bk_spark.offsets import EARLIEST, LATEST, LogCursor, StreamOffset, from_json, next_of, resolve_bound
from bk_spark.selection import LedgerSelection, LogSelection

LOG = StreamOffset("c-1", logs={"events": LogCursor("u-1", 0, 1000234)})
LEDGER = StreamOffset("c-1", ledgers={17: 24})


@pytest.mark.rule("N7")
def test_canonical_text_is_that_of_the_formats_page() -> None:
    assert LOG.canonical() == '{"cluster":"c-1","logs":{"events":{"epoch":0,"next":1000234,"uuid":"u-1"}},"v":1}'
    assert LEDGER.canonical() == '{"cluster":"c-1","ledgers":{"17":24},"v":1}'


@pytest.mark.rule("N7")
def test_keys_come_in_one_order_because_spark_compares_text() -> None:
    one = StreamOffset("c", ledgers={10: 1, 9: 2}, logs={"b": LogCursor("u", 0, 1), "a": LogCursor("v", 0, 2)})
    two = StreamOffset("c", ledgers={9: 2, 10: 1}, logs={"a": LogCursor("v", 0, 2), "b": LogCursor("u", 0, 1)})
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())
    assert json.dumps(one.to_json()) == json.dumps(one.to_json(), sort_keys=True)


def test_offsets_survive_json() -> None:
    for offset in (LOG, LEDGER, StreamOffset("c", ledgers={2**62: 2**62 + 1})):
        assert from_json(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize("data", [{}, {"v": 1}, {"v": 1, "cluster": "c", "ledgers": 3}, {"partition": 0}, {"v": "x"}])
def test_a_foreign_offset_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="another checkpointLocation"):
        from_json(data)


def test_a_newer_offset_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="version 2"):
        from_json({"v": 2, "cluster": "c"})


def test_an_offset_of_something_else_is_refused() -> None:
    assert next_of(LOG, LogSelection("events"), "c-1") == 1000234
    assert next_of(LEDGER, LedgerSelection(17), "c-1") == 24
    with pytest.raises(ClusterMismatchError):
        next_of(LOG, LogSelection("events"), "c-2")
    for selection in (LogSelection("other"), LedgerSelection(17)):
        with pytest.raises(InvalidArgumentError, match="log events"):
            next_of(LOG, selection, "c-1")


def test_sentinels_become_numbers() -> None:
    assert [resolve_bound(b, 5, 9) for b in (EARLIEST, LATEST, 7)] == [5, 9, 7]
