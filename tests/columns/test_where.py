# SPDX-License-Identifier: Apache-2.0
"""Conditions of a read against exact arithmetic: each type, operator and kind of literal, and the bounds of entries."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bk_core.columns import arrow_schema
from bk_core.columns.arrow_entries import ArrowEntries
from bk_core.columns.where import Where
from bk_core.entries import arrow_directory
from bk_core.errors import InvalidArgumentError

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1)


def rows_of(kind: pa.DataType, values: list[Any], *condition: Any) -> list[Any]:
    """The values of a column that meet the condition; the entry's bounds must let every one of them be found."""
    batch = pa.record_batch([pa.array(values, kind)], names=["c"])
    where = Where.of([("c", *condition)], {"c": kind})
    found: list[Any] = where.filtered(batch).column(0).to_pylist()
    if arrow_schema.is_simple(kind) and found:
        schema = arrow_schema.to_bytes(batch.schema)
        (entries,) = ArrowEntries(schema, "none").entries(batch, first_row=0)
        entry = memoryview(entries.to_list()[0])
        directory = arrow_directory.parse(entry, len(entry))
        assert where.may_have(directory, arrow_schema.from_bytes(schema), ["c"]), (kind, values, condition)
    return found


def exact(value: Any) -> Any:
    """A number as a fraction, or the infinity that it is."""
    if isinstance(value, float | np.floating):
        return Fraction(float(value)) if math.isfinite(value) else float(value)
    return Fraction(int(value)) if isinstance(value, np.integer) else Fraction(value)


INTEGERS = {kind: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in
            ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))}  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-300, 300), st.integers(-(1 << 70), 1 << 70), st.floats(allow_nan=False),
    st.sampled_from([1.5, -0.5, 0.1, 1e300, -1e300, math.inf, -math.inf, 2.0**63, -(2.0**63), 2.0**53 + 2]),
    st.decimals(allow_nan=False, allow_infinity=False, places=3), st.fractions(max_denominator=1000),
    st.floats(width=32, allow_nan=False).map(np.float32), st.integers(-100, 100).map(np.int16),
)  # fmt: skip


@given(st.data(), st.sampled_from(sorted(INTEGERS, key=str)), st.sampled_from(sorted(OPERATORS)), NUMBERS)
def test_integers_are_compared_with_any_number_exactly(data: Any, kind: pa.DataType, op: str, literal: Any) -> None:
    near = [value for step in (-1, 0, 1) if abs(exact(literal)) < 1 << 62 for value in [math.floor(literal) + step]]
    low, high = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
    values = [low, high, *(value for value in near if low <= value <= high), *data.draw(st.lists(INTEGERS[kind]))]
    wanted = [value for value in values if OPERATORS[op](Fraction(value), exact(literal))]
    assert rows_of(kind, [*values, None], op, literal) == wanted


@given(st.data(), st.sampled_from([32, 64]), st.sampled_from(sorted(OPERATORS)), NUMBERS)
@example(None, 32, "<", 1e300)
@example(None, 32, "==", 0.1)
@example(None, 64, "==", (1 << 53) + 1)
def test_floats_are_compared_with_any_number_exactly(data: Any, width: int, op: str, literal: Any) -> None:
    kind = pa.float32() if width == 32 else pa.float64()
    dtype: Any = np.float32 if width == 32 else np.float64
    with np.errstate(over="ignore"):
        near = dtype(float(literal)) if abs(exact(literal)) < 1 << 900 else dtype(math.inf)
        around = [near, np.nextafter(near, dtype(math.inf)), np.nextafter(near, dtype(-math.inf))]
    drawn = [] if data is None else data.draw(st.lists(st.floats(width=width, allow_nan=False)))  # type: ignore[arg-type]  # 32 or 64
    values = [float(value) for value in (*around, 0.0, -0.0, math.inf, -math.inf, *drawn)]
    wanted = [value for value in values if OPERATORS[op](exact(value), exact(literal))]
    assert rows_of(kind, [*values, None], op, literal) == wanted


def test_a_nan_in_a_column_differs_from_every_literal() -> None:
    values = [math.nan, 1.0]
    assert rows_of(pa.float64(), values, "==", 1) == [1.0]
    assert rows_of(pa.float64(), values, ">", 0) == [1.0]
    assert math.isnan(rows_of(pa.float64(), values, "!=", 1)[0])


@given(
    st.lists(st.decimals(-(10**5), 10**5, places=2), max_size=5), st.sampled_from(sorted(OPERATORS)),
    st.one_of(st.decimals(-(10**9), 10**9, places=4), st.integers(-(10**9), 10**9)),
)  # fmt: skip
def test_decimals_are_compared_with_decimals_of_any_scale(values: list[Decimal], op: str, literal: Any) -> None:
    values = [*values, Decimal("99999.99"), Decimal("-99999.99"), Decimal("0.00")]
    values = [value for value in values if abs(value) < 10**5]
    wanted = [value for value in values if OPERATORS[op](Fraction(value), Fraction(literal))]
    assert rows_of(pa.decimal128(7, 2), values, op, literal) == wanted


INSTANTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))


@given(
    st.lists(INSTANTS.map(dt.datetime.date), max_size=5), st.sampled_from(sorted(OPERATORS)), INSTANTS, st.booleans()
)
@example([dt.date(2020, 5, 1)], "==", dt.datetime(2020, 5, 1, 12), False)
@example([dt.date(2020, 5, 1)], "<", dt.datetime(2020, 5, 1, 12), False)
def test_dates_are_midnights_beside_a_datetime(
    values: list[dt.date], op: str, literal: dt.datetime, as_date: bool
) -> None:
    values = [*values, literal.date(), literal.date() + dt.timedelta(1)]
    given = literal.date() if as_date else literal
    beside = dt.datetime.combine(literal.date(), dt.time()) if as_date else literal
    wanted = [v for v in values if OPERATORS[op](dt.datetime.combine(v, dt.time()), beside)]
    assert rows_of(pa.date32(), [*values, None], op, given) == wanted


@given(st.lists(INSTANTS, max_size=4), st.sampled_from(sorted(OPERATORS)), INSTANTS, st.integers(0, 999), st.booleans())
def test_nanoseconds_of_a_timestamp_count(
    values: list[dt.datetime], op: str, literal: dt.datetime, nanoseconds: int, has_zone: bool
) -> None:
    zone = UTC if has_zone else None
    values = [value.replace(tzinfo=zone) for value in (*values, literal, literal + dt.timedelta(microseconds=1))]
    given = pd.Timestamp(literal, tz=zone) + pd.Timedelta(nanoseconds, unit="ns")

    def ns(value: dt.datetime) -> int:
        span = value.replace(tzinfo=None) - EPOCH
        return ((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000

    wanted = [value for value in values if OPERATORS[op](ns(value), ns(literal) + nanoseconds)]
    kind = pa.timestamp("us", tz="UTC" if has_zone else None)
    assert [v.replace(tzinfo=zone) for v in rows_of(kind, [*values, None], op, given)] == wanted


def test_a_literal_of_any_zone_is_the_same_instant() -> None:
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=UTC)
    kind = pa.timestamp("us", tz="UTC")
    for literal in (noon, noon.astimezone(dt.timezone(dt.timedelta(hours=9))), pa.scalar(noon), pd.Timestamp(noon)):
        assert len(rows_of(kind, [noon], "==", literal)) == 1
    assert rows_of(pa.timestamp("us"), [noon.replace(tzinfo=None)], "==", np.datetime64("2024-07-01T12")) != []
    assert rows_of(pa.timestamp("us"), [dt.datetime(2024, 7, 1)], "==", np.datetime64("2024-07")) != []


@given(st.lists(st.timedeltas(), max_size=4), st.sampled_from(sorted(OPERATORS)), st.timedeltas(), st.integers(0, 999))
def test_durations_are_compared_to_the_nanosecond(
    values: list[dt.timedelta], op: str, literal: dt.timedelta, nanoseconds: int
) -> None:
    most = dt.timedelta(days=90_000)
    values = [value for value in (*values, literal) if abs(value) < most]
    if abs(literal) >= most:
        return
    given = pd.Timedelta(literal) + pd.Timedelta(nanoseconds, unit="ns")
    micro = dt.timedelta(microseconds=1)
    wanted = [v for v in values if OPERATORS[op](v // micro * 1000, literal // micro * 1000 + nanoseconds)]
    assert rows_of(pa.duration("us"), [*values, None], op, given) == wanted


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_texts_bytes_truths_and_times_are_compared_as_they_stand(op: str) -> None:
    for kind, values, literal in (
        (pa.string(), ["", "a", "ab", "b", "ß", "\U0001f600"], "ab"),
        (pa.binary(), [b"", b"a", b"\xff"], bytearray(b"a")),
        (pa.bool_(), [False, True], True),
        (pa.time64("ns"), [dt.time(1), dt.time(1, 0, 0, 1), dt.time(23, 59)], dt.time(1, 0, 0, 1)),
        (pa.time64("us"), [dt.time(1, 2, 3), dt.time(1, 2, 4), dt.time(1, 3, 3), dt.time(2, 2, 3)], dt.time(1, 2, 3)),
    ):
        wanted = [value for value in values if OPERATORS[op](value, literal)]
        assert rows_of(kind, [*values, None], op, literal) == wanted


def test_in_takes_the_values_that_the_type_has() -> None:
    assert rows_of(pa.int64(), [1, 2, 3, None], "in", [1.5, 2, Decimal(3), 1 << 80]) == [2, 3]
    assert rows_of(pa.float32(), [0.0, -0.0, 0.5, 1.0], "in", {0, 0.5, 0.1}) == [0.0, -0.0, 0.5]
    assert rows_of(pa.string(), ["a", "b", None], "in", ("a", "c")) == ["a"]
    assert rows_of(pa.int64(), [1], "in", []) == []
    assert rows_of(pa.int64(), [1], "in", [0.5]) == []


@pytest.mark.parametrize(
    ("kind", "op", "literal"),
    [
        (pa.string(), "in", "ab"),
        (pa.binary(), "in", b"ab"),
        (pa.int64(), "in", {1: 2}),
        (pa.int64(), "in", 5),
        (pa.int64(), "in", [1, None]),
        (pa.int64(), "==", True),
        (pa.bool_(), "==", 1),
        (pa.int64(), "==", "1"),
        (pa.int64(), "==", math.nan),
        (pa.float64(), "!=", math.nan),
        (pa.float64(), "<", Decimal("NaN")),
        (pa.decimal128(5, 2), "==", 0.1),
        (pa.string(), "==", b"a"),
        (pa.string(), "==", "\ud800"),
        (pa.binary(), "==", "a"),
        (pa.date32(), "==", "2020-01-01"),
        (pa.date32(), "<", dt.datetime(2020, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), "<", dt.datetime(2020, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", tz="UTC"), "<", dt.datetime(2020, 1, 1)),
        (pa.timestamp("us", tz="UTC"), "<", dt.date(2020, 1, 1)),
        (pa.timestamp("us"), "<", pd.NaT),
        (pa.timestamp("us"), "<", np.datetime64("NaT")),
        (pa.duration("us"), "<", 5),
        (pa.duration("us"), "<", np.timedelta64(1, "M")),
        (pa.time64("ns"), "<", dt.time(1, tzinfo=UTC)),
        (pa.int64(), "==", pa.scalar(None, pa.int64())),
        (pa.list_(pa.int64()), "==", [1]),
        (pa.struct([("a", pa.int64())]), "==", {"a": 1}),
    ],
)
def test_a_literal_without_an_order_to_the_column_is_refused(kind: pa.DataType, op: str, literal: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="c"):
        Where.of([("c", op, literal)], {"c": kind})


def test_a_refusal_says_what_to_compare_with() -> None:
    with pytest.raises(InvalidArgumentError, match=r"column c is date32.*a datetime.date"):
        Where.of([("c", "==", "2020-01-01")], {"c": pa.date32()})
    with pytest.raises(InvalidArgumentError, match=r"in wants several values.*c in 'ab'"):
        Where.of([("c", "in", "ab")], {"c": pa.string()})


def test_durations_and_times_of_arrow_and_numpy_are_literals_too() -> None:
    spans = [dt.timedelta(seconds=s) for s in (1, 2, 3)]
    for literal in (dt.timedelta(seconds=2), pa.scalar(dt.timedelta(seconds=2)), np.timedelta64(2, "s")):
        assert rows_of(pa.duration("us"), [*spans, None], ">=", literal) == spans[1:]
    for unit in ("s", "ms", "us", "ns"):
        assert rows_of(pa.duration("ns"), spans, "==", pa.scalar(spans[0], pa.duration(unit))) == [
            pd.Timedelta(seconds=1)
        ]
    clock = [dt.time(hour) for hour in (1, 2, 3)]
    for kind in (pa.time32("s"), pa.time64("us")):
        assert rows_of(pa.time64("us"), clock, "<", pa.scalar(dt.time(2), kind)) == clock[:1]
    days = [dt.date(2024, 7, day) for day in (1, 2, 3)]
    for literal in (dt.date(2024, 7, 2), pa.scalar(dt.date(2024, 7, 2)), pd.Timestamp("2024-07-02")):
        assert rows_of(pa.date32(), days, "==", literal) == [days[1]]
