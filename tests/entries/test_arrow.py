# SPDX-License-Identifier: Apache-2.0
"""Arrow columns to entries and back: zero-copy, slices, lifetimes, refusals."""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.errors import EntryTooLargeError, InvalidArgumentError
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX

TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]


@pytest.mark.long
@pytest.mark.parametrize("kind", TYPES, ids=str)
@settings(derandomize=True, deadline=None)
@given(values=st.lists(st.text(max_size=12), max_size=20), start=st.integers(0, 20), size=st.integers(0, 20))
def test_sliced_columns_become_entries(kind: pa.DataType, values: list[str], start: int, size: int) -> None:
    column = pa.array(values, type=pa.string()).cast(kind).slice(min(start, len(values)), size)
    batch = EntryBatch.from_arrow(column)
    assert batch.to_list() == [value.encode() for value in values[start : start + size]]
    back = batch.to_arrow()
    back.validate(full=True)
    assert back.type == pa.binary()
    assert back.equals(column.cast(pa.binary()))


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


def test_neither_way_copies_the_payload() -> None:
    column = pa.array([b"skipped", b"one", b"two"]).slice(1)
    batch = EntryBatch.from_arrow(column)
    assert address(batch.payload) == column.buffers()[2].address + len("skipped")
    assert batch.slice(1, 2).to_arrow().buffers()[2].address == address(batch.payload) + len("one")
    assert batch.payload.readonly


@pytest.mark.long
def test_buffers_live_as_long_as_what_is_made_of_them() -> None:
    values = [b"%06d" % k * 50 for k in range(2000)]
    batch = EntryBatch.from_arrow(pa.array(values))
    back = batch.slice(500, 1500).to_arrow()
    del batch
    gc.collect()
    pa.array([b"#" * 300] * 2000)  # would reuse freed memory
    assert back.to_pylist() == values[500:1500]


def test_chunks_are_joined() -> None:
    chunked = pa.chunked_array([pa.array([b"a", b"b"]), pa.array([], pa.binary()), pa.array([b"c"])])
    assert EntryBatch.from_arrow(chunked).to_list() == [b"a", b"b", b"c"]
    assert EntryBatch.from_arrow(pa.chunked_array([], pa.binary())).count == 0
    with pytest.raises(InvalidArgumentError):
        EntryBatch.from_arrow(pa.chunked_array([], pa.int64()))


def test_column_of_empty_values_has_no_payload() -> None:
    assert EntryBatch.from_arrow(pa.array([b"", b""])).to_list() == [b"", b""]
    assert EntryBatch.from_list([]).to_arrow().to_pylist() == []


def test_the_first_null_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="2 nulls in 4 values, the first at 1"):
        EntryBatch.from_arrow(pa.array([b"out", b"a", None, b"b", None]).slice(1))
    assert EntryBatch.from_arrow(pa.array([None, b"a"]).slice(1)).to_list() == [b"a"]


@pytest.mark.parametrize("column", [pa.array([1]), pa.array([b"ab"], pa.binary(2)), pa.nulls(2), [b"a"], b"a"])
def test_other_types_are_refused(column: object) -> None:
    with pytest.raises(InvalidArgumentError):
        EntryBatch.from_arrow(column)


@pytest.mark.rule("L5")
def test_a_value_over_the_limit_is_named() -> None:
    with pytest.raises(EntryTooLargeError, match="entry 1 of the batch"):
        EntryBatch.from_arrow(pa.array([b"", bytes(ENTRY_BYTES_MAX + 1)]))


def test_a_batch_speaks_the_capsule_interface_both_ways() -> None:
    batch = EntryBatch.from_list([b"a", b"", b"ccc"])
    assert pa.array(batch).to_pylist() == [b"a", b"", b"ccc"]
    assert EntryBatch.from_arrow(batch).to_list() == [b"a", b"", b"ccc"]
