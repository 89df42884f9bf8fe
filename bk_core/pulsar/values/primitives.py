# SPDX-License-Identifier: Apache-2.0
"""Decodes the values of Pulsar's primitive schemas, which are big-endian numbers, texts or bytes.

DATE, TIME and TIMESTAMP, which are types of ``java.util`` and ``java.sql``, are moments in milliseconds. The types of
``java.time`` have nanoseconds. INSTANT and LOCAL_DATE_TIME are cut to microseconds, because Arrow's nanoseconds end in
2262, and because Spark has microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import I64, U8
from bk_core.pulsar.messages.rows import VALUE, spans, texts
from bk_core.pulsar.messages.scan import Mask
from bk_core.pulsar.values.avro.schema import LIMITS
from bk_core.pulsar.values.part import Part, Places, complain

_DAY_MS, _DAY_NS = 86_400_000, 86_400_000_000_000
_SECONDS_MAX = (1 << 63) // 1_000_000 - 1
"""The greatest and, negated, the least time in seconds since 1970 that fits into 64 bits as microseconds."""
_DAYS_MAX = (1 << 31) - 1
_DAYS_IN_US_MAX = _SECONDS_MAX // 86_400 - 1


@dataclass(frozen=True, slots=True)
class _Kind:
    """A primitive type. ``widths`` has the sizes of its numbers in bytes, and is empty for a type of any length.
    ``make`` returns an array of the numbers' values, and a mask of the numbers that are not values."""

    arrow: pa.DataType
    widths: tuple[int, ...] = ()
    make: Callable[..., tuple[pa.Array, Mask | None]] | None = None


def _number(code: str) -> Callable[[U8], tuple[pa.Array, None]]:
    return lambda raw: (pa.array(raw.view(code)[:, 0].astype(code.replace(">", "="))), None)


def _boolean(raw: U8) -> tuple[pa.Array, Mask]:
    return pa.array(raw[:, 0] != 0), raw[:, 0] > 1


def _moment(millis: I64) -> tuple[pa.Array, Mask]:
    least, most = LIMITS["timestamp-millis"]
    wrong = (millis < least) | (millis > most)
    return pa.array(np.where(wrong, 0, millis)).view(pa.timestamp("ms", "UTC")), wrong


def _time(millis: I64) -> tuple[pa.Array, None]:
    return pa.array((millis % _DAY_MS).astype(np.int32)).view(pa.time32("ms")), None


def _local_date(days: I64) -> tuple[pa.Array, Mask]:
    wrong = np.abs(days) > _DAYS_MAX
    return pa.array(np.where(wrong, 0, days).astype(np.int32)).view(pa.date32()), wrong


def _local_time(nanos: I64) -> tuple[pa.Array, Mask]:
    wrong = (nanos < 0) | (nanos >= _DAY_NS)
    return pa.array(np.where(wrong, 0, nanos)).view(pa.time64("ns")), wrong


def _instant(seconds: I64, nanos: I64) -> tuple[pa.Array, Mask]:
    wrong = (np.abs(seconds) > _SECONDS_MAX) | (nanos < 0) | (nanos > 999_999_999)
    micros = np.where(wrong, 0, seconds) * 1_000_000 + np.where(wrong, 0, nanos) // 1000
    return pa.array(micros).view(pa.timestamp("us", "UTC")), wrong


def _local_date_time(days: I64, nanos: I64) -> tuple[pa.Array, Mask]:
    wrong = (np.abs(days) > _DAYS_IN_US_MAX) | (nanos < 0) | (nanos >= _DAY_NS)
    micros = np.where(wrong, 0, days) * (_DAY_NS // 1000) + np.where(wrong, 0, nanos) // 1000
    return pa.array(micros).view(pa.timestamp("us")), wrong


_KINDS: Mapping[str, _Kind] = {
    "NONE": _Kind(pa.binary()),
    "BYTES": _Kind(pa.binary()),
    "STRING": _Kind(pa.string()),
    "BOOLEAN": _Kind(pa.bool_(), (1,), _boolean),
    "INT8": _Kind(pa.int8(), (1,), _number("i1")),
    "INT16": _Kind(pa.int16(), (2,), _number(">i2")),
    "INT32": _Kind(pa.int32(), (4,), _number(">i4")),
    "INT64": _Kind(pa.int64(), (8,), _number(">i8")),
    "FLOAT": _Kind(pa.float32(), (4,), _number(">f4")),
    "DOUBLE": _Kind(pa.float64(), (8,), _number(">f8")),
    "DATE": _Kind(pa.timestamp("ms", "UTC"), (8,), _moment),
    "TIME": _Kind(pa.time32("ms"), (8,), _time),
    "TIMESTAMP": _Kind(pa.timestamp("ms", "UTC"), (8,), _moment),
    "INSTANT": _Kind(pa.timestamp("us", "UTC"), (8, 4), _instant),
    "LOCALDATE": _Kind(pa.date32(), (8,), _local_date),
    "LOCALTIME": _Kind(pa.time64("ns"), (8,), _local_time),
    "LOCALDATETIME": _Kind(pa.timestamp("us"), (8, 8), _local_date_time),
}
_RAW = frozenset({"BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE"})
NAMES = frozenset(_KINDS)
"""The names of the primitive types."""


@dataclass(frozen=True, slots=True)
class PrimitiveReader:
    """Decodes values of one primitive type, by its name."""

    kind: str

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return {VALUE: _KINDS[self.kind].arrow}

    @property
    def is_record(self) -> bool:
        return False

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        kind = _KINDS[self.kind]
        if kind.make is None:
            return self._any_length(places)
        width, problems = sum(kind.widths), dict[int, str]()
        complain(problems, places.length != width, f"it has not the {width} bytes of {self.kind}")
        taken = places.data.take(places.begin[:, None] + np.arange(width), mode="clip")
        raw = np.ascontiguousarray(taken)
        if self.kind in _RAW:
            made, wrong = kind.make(raw)
        else:
            ends = np.cumsum(kind.widths)
            made, wrong = kind.make(
                *(_integers(raw[:, end - size : end]) for size, end in zip(kind.widths, ends, strict=True))
            )
        if wrong is not None:
            complain(problems, wrong, f"it is outside the range of {self.kind}")
        return Part({VALUE: made}, problems)

    def _any_length(self, places: Places) -> Part:
        found = spans(places.data, places.begin, places.length)
        if self.kind != "STRING":
            return Part({VALUE: found})
        return Part({VALUE: texts(found)})


def _integers(raw: Any) -> I64:
    code = f">i{raw.shape[1]}"
    return np.ascontiguousarray(raw).view(code)[:, 0].astype(np.int64)
