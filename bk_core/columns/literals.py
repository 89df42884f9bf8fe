# SPDX-License-Identifier: Apache-2.0
"""Compares a column with a Python value exactly, by rewriting the comparison with a value that the column's type has.

Theory. The values of a column's type form an ordered set without duplicates. The values of integers, decimals, dates
and times are the integers of a range, each divided by the ``scale`` of the type. The values of a floating-point type
are those of its width. A literal is an exact fraction, or an infinity. If the type has that value, the operator does
not change. Otherwise ``==`` holds for no row and ``!=`` for all rows, ``<`` and ``<=`` mean "at most the greatest value
of the type below the literal", and ``>`` and ``>=`` mean "at least the least value of the type above the literal". So
no literal is rounded.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Exact: TypeAlias = Fraction | float
"""The exact value of a literal, as a fraction or as a float that is an infinity."""

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_EPOCH = datetime.datetime(1970, 1, 1)
_INFINITY = float("inf")


class NotComparable(ValueError):
    """The error for a literal that cannot be compared with values of the column's type. Its text names the literals
    that can be."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with a value of the column's type. ``scalar`` is the value for Arrow, and ``key`` the
    value to compare with the bounds in an entry's directory. If ``scalar`` is None, the comparison holds for every
    value (with ``always``) or for none."""

    operator: str
    scalar: pa.Scalar | None = None
    key: Any = None
    always: bool = False


ALWAYS, NEVER = Comparison("", always=True), Comparison("")


def comparison(operator: str, literal: Any, kind: pa.DataType) -> Comparison:
    """Return the comparison of a column of type ``kind`` with ``literal``. ``operator`` is one of ``== != < <= > >=``.
    Raises NotComparable if values of the type cannot be compared with the literal."""
    if pa.types.is_boolean(kind):
        return _same(operator, _boolean(literal), kind)
    if _is_text(kind) or _is_bytes(kind):
        value = _text(literal) if _is_text(kind) else _bytes(literal)
        return Comparison(operator, pa.scalar(value, kind), value.encode() if isinstance(value, str) else value)
    if pa.types.is_floating(kind):
        return _floating(operator, _number(literal), kind)
    lattice = _lattice(kind)
    if lattice is None:
        raise NotComparable("nothing: columns of this type cannot be compared")
    return _stepped(operator, lattice.exact(literal), kind, lattice)


def _same(operator: str, value: Any, kind: pa.DataType) -> Comparison:
    return Comparison(operator, pa.scalar(value, kind), value)


# --- types whose values are steps of equal size ---


@dataclass(frozen=True, slots=True)
class _Lattice:
    """The values of a type with steps of equal size, which are ``n / scale`` for the integers n from ``low`` to
    ``high``. ``what`` is the text in an error that describes the literals that can be compared with the type."""

    scale: Fraction
    low: int
    high: int
    what: str
    is_aware: bool = False

    def exact(self, literal: Any) -> Exact:
        match self.what:
            case "a decimal.Decimal or an int":
                if isinstance(literal, float | np.floating):
                    raise NotComparable("a decimal.Decimal or an int: 0.1 as a float is not exactly a tenth")
                return _number(literal)
            case "an int, a float or a decimal.Decimal":
                return _number(literal)
            case "a datetime.time":
                return _time(literal)
            case "a datetime.timedelta":
                return _duration(literal)
        return _instant(literal, self.what, is_aware=self.is_aware)


def _lattice(kind: pa.DataType) -> _Lattice | None:
    types = pa.types
    if types.is_integer(kind):
        bits = kind.bit_width
        low, high = (-1 << bits - 1, 1 << bits - 1) if types.is_signed_integer(kind) else (0, 1 << bits)
        return _Lattice(Fraction(1), low, high - 1, "an int, a float or a decimal.Decimal")
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return _Lattice(Fraction(10) ** kind.scale, -most, most, "a decimal.Decimal or an int")
    if not types.is_temporal(kind) or types.is_interval(kind):
        return None
    most = 1 << (kind.bit_width - 1)
    if types.is_date(kind):
        scale = Fraction(1, _DAY_S) if kind.bit_width == 32 else Fraction(1000)
        return _Lattice(scale, -most, most - 1, "a datetime.date, or a datetime.datetime without a time zone")
    scale = Fraction(_UNITS[kind.unit])
    if types.is_time(kind):
        return _Lattice(scale, 0, int(scale) * _DAY_S - 1, "a datetime.time")
    if types.is_duration(kind):
        return _Lattice(scale, -most, most - 1, "a datetime.timedelta")
    zone = "with a time zone" if kind.tz else "without a time zone"
    return _Lattice(scale, -most, most - 1, f"a datetime.datetime {zone}", is_aware=bool(kind.tz))


def _stepped(operator: str, exact: Exact, kind: pa.DataType, lattice: _Lattice) -> Comparison:
    if isinstance(exact, float):
        below = lattice.high if exact > 0 else lattice.low - 1
        return _between(operator, below, below + 1, kind, lattice)
    steps = exact * lattice.scale
    if steps.denominator == 1 and lattice.low <= steps <= lattice.high:
        return Comparison(operator, _step(int(steps), kind), int(steps))
    below = math.floor(steps) if steps.denominator > 1 else int(steps) - (steps > lattice.high)
    return _between(operator, below, below + 1, kind, lattice)


def _between(operator: str, below: int, above: int, kind: pa.DataType, lattice: _Lattice) -> Comparison:
    """Return the comparison with a literal that is not a value of the type, and lies between the adjacent steps
    ``below`` and ``above``."""
    match operator:
        case "<" | "<=":
            if below < lattice.low:
                return NEVER
            return ALWAYS if below >= lattice.high else Comparison("<=", _step(below, kind), below)
        case ">" | ">=":
            if above > lattice.high:
                return NEVER
            return ALWAYS if above <= lattice.low else Comparison(">=", _step(above, kind), above)
    return ALWAYS if operator == "!=" else NEVER


def _step(steps: int, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        digits = tuple(map(int, str(abs(steps))))
        return pa.scalar(Decimal((int(steps < 0), digits, -kind.scale)), kind)
    if pa.types.is_temporal(kind):
        return pa.array([steps], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)[0]
    return pa.scalar(steps, kind)


# --- floating-point numbers ---


@np.errstate(over="ignore", under="ignore")
def _floating(operator: str, exact: Exact, kind: pa.DataType) -> Comparison:
    dtype: Any = {16: np.float16, 32: np.float32, 64: np.float64}[kind.bit_width]
    below = _at_most(exact, dtype)
    if _exact_float(below) == exact:
        return _same(operator, below, kind)
    match operator:
        case "<" | "<=":
            return _same("<=", below, kind)
        case ">" | ">=":
            return _same(">=", np.nextafter(below, dtype(_INFINITY)), kind)
    return ALWAYS if operator == "!=" else NEVER


def _at_most(exact: Exact, dtype: Any) -> Any:
    """Return the greatest value of this width that is not above ``exact``."""
    if isinstance(exact, float):
        return dtype(exact)
    try:
        near = float(exact)
    except OverflowError:
        near = math.copysign(_INFINITY, exact)
    found = dtype(near)
    while _exact_float(found) > exact:
        found = np.nextafter(found, dtype(-_INFINITY))
    while _exact_float(after := np.nextafter(found, dtype(_INFINITY))) <= exact:
        found = after
    return found


def _exact_float(value: Any) -> Exact:
    return Fraction(float(value)) if np.isfinite(value) else float(value)


# --- literals ---


def _boolean(literal: Any) -> bool:
    if isinstance(literal, pa.BooleanScalar):
        literal = literal.as_py()
    if not isinstance(literal, bool | np.bool_):
        raise NotComparable("True or False")
    return bool(literal)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _text(literal: Any) -> str:
    literal = literal.as_py() if isinstance(literal, pa.Scalar) else literal
    if not isinstance(literal, str):
        raise NotComparable("a str")
    try:
        literal.encode()
    except UnicodeEncodeError as error:
        raise NotComparable("a str that UTF-8 can hold") from error
    return str(literal)


def _bytes(literal: Any) -> bytes:
    literal = literal.as_py() if isinstance(literal, pa.Scalar) else literal
    if not isinstance(literal, bytes | bytearray | memoryview):
        raise NotComparable("bytes")
    return bytes(literal)


def _number(literal: Any) -> Exact:
    literal = literal.as_py() if isinstance(literal, pa.Scalar) else literal
    if isinstance(literal, bool | np.bool_) or not isinstance(
        literal, int | float | Decimal | Fraction | np.integer | np.floating
    ):
        raise NotComparable("an int, a float or a decimal.Decimal")
    if isinstance(literal, np.integer):
        return Fraction(int(literal))
    if isinstance(literal, int | Fraction):
        return Fraction(literal)
    if literal != literal:  # only NaN differs from itself
        raise NotComparable("a number: NaN is equal to nothing, less than nothing and greater than nothing")
    if isinstance(literal, Decimal):
        return Fraction(literal) if literal.is_finite() else float(literal)
    return _exact_float(literal)


def _time(literal: Any) -> Fraction:
    if isinstance(literal, pa.Time32Scalar | pa.Time64Scalar):
        return Fraction(literal.value, _UNITS[literal.type.unit])
    if not isinstance(literal, datetime.time) or literal.tzinfo is not None:
        raise NotComparable("a datetime.time without a time zone")
    seconds = 3600 * literal.hour + 60 * literal.minute + literal.second
    return seconds + Fraction(literal.microsecond, 10**6)


def _duration(literal: Any) -> Fraction:
    if isinstance(literal, pa.DurationScalar):
        return Fraction(literal.value, _UNITS[literal.type.unit])
    if isinstance(literal, np.timedelta64):
        return _numpy_time(literal, "a datetime.timedelta")
    if not isinstance(literal, datetime.timedelta) or _is_missing(literal):
        raise NotComparable("a datetime.timedelta")
    return _seconds(literal) + Fraction(getattr(literal, "nanoseconds", 0), 10**9)  # pandas counts them separately


def _instant(literal: Any, what: str, *, is_aware: bool) -> Fraction:
    """Return a literal in seconds since 1970-01-01T00:00. A literal with a time zone is converted to UTC; a literal
    without a time zone is not converted."""
    if isinstance(literal, pa.TimestampScalar | pa.Date32Scalar | pa.Date64Scalar):
        kind = literal.type
        if bool(pa.types.is_timestamp(kind) and kind.tz) != is_aware and pa.types.is_timestamp(kind):
            raise NotComparable(what)
        scale = _lattice(kind)
        assert scale is not None
        return Fraction(literal.value) / scale.scale
    if isinstance(literal, np.datetime64) and not is_aware:
        return _numpy_time(literal, what)
    if _is_missing(literal) or not isinstance(literal, datetime.date):
        raise NotComparable(what)
    if not isinstance(literal, datetime.datetime):
        if is_aware:
            raise NotComparable(what)
        return Fraction((literal - _EPOCH.date()).days * _DAY_S)
    if (literal.utcoffset() is not None) != is_aware:
        raise NotComparable(what)
    nanoseconds = Fraction(getattr(literal, "nanosecond", 0), 10**9)
    if hasattr(literal, "to_pydatetime"):
        literal = literal.to_pydatetime(warn=False)
    offset = literal.utcoffset() or datetime.timedelta()
    return _seconds(literal.replace(tzinfo=None) - _EPOCH - offset) + nanoseconds


def _seconds(span: datetime.timedelta) -> Fraction:
    return span.days * _DAY_S + span.seconds + Fraction(span.microseconds, 10**6)


def _numpy_time(literal: np.datetime64 | np.timedelta64, what: str) -> Fraction:
    """Return a numpy time in seconds. Units from weeks to attoseconds are converted here. Numpy itself converts the
    years and months of a datetime64."""
    unit, count = np.datetime_data(literal)
    units = _UNITS | {"ps": 10**12, "fs": 10**15, "as": 10**18}
    sizes = {"W": Fraction(7 * _DAY_S), "D": Fraction(_DAY_S), "h": Fraction(3600), "m": Fraction(60)}
    sizes |= {unit: Fraction(1, number) for unit, number in units.items()}
    if np.isnat(literal):
        raise NotComparable(what)
    if unit in ("Y", "M") and isinstance(literal, np.datetime64):
        literal, unit, count = literal.astype("datetime64[D]"), "D", 1  # the first day of the month or year
    if unit not in sizes:
        raise NotComparable(what)
    return Fraction(int(literal.astype(np.int64))) * count * sizes[unit]


def _is_missing(literal: Any) -> bool:
    """Return whether the literal is pandas' NaT, which differs from itself."""
    return bool(literal != literal)
