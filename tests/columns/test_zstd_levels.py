# SPDX-License-Identifier: Apache-2.0
"""zstd's level of each column of codec arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bk_core.columns import arrow_schema, zstd_levels
from bk_core.columns.arrow_entries import ArrowEntries
from bk_core.columns.zstd_levels import ROWS_MIN, SAMPLE_ROWS, columns_at_level_3
from bk_core.entries.arrow_directory import Directory, parse

RANDOM = np.random.default_rng(1)
RUNS = np.repeat(np.arange(SAMPLE_ROWS // 64), 64)  # 64 rows of each value
NOISE = RANDOM.integers(0, 1_000, RUNS.size)
EIGHT_BYTES = [pa.int64(), pa.uint64(), pa.timestamp("us"), pa.time64("us"), pa.duration("ms")]
OTHERS = [pa.int32(), pa.int16(), pa.float32(), pa.date32(), pa.decimal128(20, 0), pa.string(), pa.null()]


def column(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(values.size)
    numbers = pa.array(values)
    return numbers.cast(pa.int32()).cast(kind) if kind == pa.date32() else numbers.cast(kind)


def chosen(*arrays: pa.Array) -> tuple[int, ...]:
    return columns_at_level_3(pa.RecordBatch.from_arrays(list(arrays), [f"c{k}" for k in range(len(arrays))]))


@pytest.mark.parametrize("kind", EIGHT_BYTES, ids=str)
def test_long_numbers_that_repeat_gain_and_random_ones_do_not(kind: pa.DataType) -> None:
    assert chosen(column(NOISE, kind), column(RUNS, kind), column(NOISE, kind)) == (1,)


def test_doubles_that_repeat_gain_and_random_ones_do_not() -> None:
    assert chosen(pa.array(RUNS * 0.37), pa.array(RANDOM.random(RUNS.size))) == (0,)


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_columns_of_other_types_stay_at_arrows_level(kind: pa.DataType) -> None:
    assert chosen(column(RUNS, kind)) == ()


def test_the_sample_is_of_the_rows_that_were_given() -> None:
    mixed = pa.array(np.concatenate([NOISE, RUNS, NOISE]))
    starts = (0, NOISE.size, NOISE.size + RUNS.size)
    assert [chosen(mixed.slice(start, SAMPLE_ROWS)) for start in starts] == [(), (0,), ()]
    assert chosen(mixed.slice(NOISE.size)) == (0,), "rows after the sample do not count"


def test_nulls_and_empty_columns_are_no_obstacle() -> None:
    assert chosen(pa.array([None, *RUNS.tolist()], pa.int64()), pa.nulls(RUNS.size + 1, pa.int64()))[:1] == (0,)
    assert chosen(pa.array([], pa.int64()), pa.array([], pa.string())) == ()


def region_bytes(entry: memoryview) -> list[int]:
    told: Directory = parse(entry, len(entry))
    return [place.stop - place.start for place in (told.column(k) for k in range(len(told.columns)))]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_long_append_chooses_once_and_its_rows_are_read_as_they_were(compression: str) -> None:
    size = ROWS_MIN // 8
    days, noise = np.resize(RUNS, size), np.resize(NOISE, size)
    rows = pa.record_batch({"name": pa.array(days).cast(pa.string()), "day": days, "noise": noise})
    codec = ArrowEntries(arrow_schema.to_bytes(rows.schema), compression)
    entries = list[memoryview]()
    for _ in range(10):
        for batch in codec.entries(rows):
            entries += batch.entry_views()
    assert len(entries) == 10
    for entry in entries:
        told = parse(entry, len(entry))
        assert pa.ipc.read_record_batch(pa.py_buffer(entry[told.size :]), rows.schema).equals(rows)
    first, last = region_bytes(entries[6]), region_bytes(entries[7])
    assert [region_bytes(entry) for entry in entries] == [first] * 7 + [last] * 3
    if compression == "zstd":
        assert (last[0], last[2]) == (first[0], first[2])
        assert 5 * last[1] < first[1]
    else:
        assert last == first


def test_a_long_append_of_columns_that_all_gain_is_read_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd_levels, "ROWS_MIN", 1)
    rows = pa.record_batch({"day": RUNS, "again": RUNS})
    (batch,) = ArrowEntries(arrow_schema.to_bytes(rows.schema), "zstd").entries(rows)
    (entry,) = batch.entry_views()
    assert pa.ipc.read_record_batch(pa.py_buffer(entry[parse(entry, len(entry)).size :]), rows.schema).equals(rows)
