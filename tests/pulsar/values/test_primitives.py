# SPDX-License-Identifier: Apache-2.0
"""Values of primitive schemas, in the bytes that Pulsar's Java client writes (its classes of ``impl.schema``)."""

from __future__ import annotations

import datetime
import math
import struct
from typing import Any

import pytest

from bk_core.pulsar.values.primitives import NAMES, PrimitiveReader
from tests.pulsar.values.kit import column, read

UTC = datetime.UTC
NOON = datetime.datetime(2026, 11, 28, 12, 0, 0, 123_000, tzinfo=UTC)
MS = round(NOON.timestamp() * 1000)
DAYS = MS // 86_400_000


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("BOOLEAN", b"\x01", True),
        ("BOOLEAN", b"\x00", False),
        ("INT8", b"\x80", -128),
        ("INT16", b"\x80\x00", -32768),
        ("INT32", b"\xff\xff\xff\xfe", -2),
        ("INT64", b"\x7f" + b"\xff" * 7, (1 << 63) - 1),
        ("FLOAT", struct.pack(">f", 0.5), 0.5),
        ("DOUBLE", struct.pack(">d", -math.pi), -math.pi),
        ("STRING", "é€".encode(), "é€"),
        ("STRING", b"", ""),
        ("STRING", b"\xff", "\ufffd"),
        ("BYTES", b"\x00\xff", b"\x00\xff"),
        ("NONE", b"x", b"x"),
        ("DATE", struct.pack(">q", MS), NOON),
        ("TIMESTAMP", struct.pack(">q", MS), NOON),
        ("TIMESTAMP", struct.pack(">q", -1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ("TIME", struct.pack(">q", 43_200_001), datetime.time(12, 0, 0, 1000)),
        ("TIME", struct.pack(">q", -3_600_000), datetime.time(23)),
        ("INSTANT", struct.pack(">qi", MS // 1000, 123_456_789), NOON.replace(microsecond=123_456)),
        ("INSTANT", struct.pack(">qi", 253_402_300_799, 0), datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("LOCALDATE", struct.pack(">q", DAYS), NOON.date()),
        ("LOCALTIME", struct.pack(">q", 43_200_000_001_000), datetime.time(12, 0, 0, 1)),
        ("LOCALDATETIME", struct.pack(">qq", DAYS, 43_200_123_456_789), NOON.replace(tzinfo=None, microsecond=123_456)),
    ],
)
def test_values(kind: str, data: bytes, value: Any) -> None:
    assert column(PrimitiveReader(kind), [data, data]) == [value, value]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("BOOLEAN", b"\x02"),
        ("BOOLEAN", b""),
        ("INT8", b"ab"),
        ("INT64", b"1234567"),
        ("DATE", b"123456789"),
        ("INSTANT", struct.pack(">qi", 1, 1_000_000_000)),
        ("INSTANT", struct.pack(">qi", 1, -1)),
        ("INSTANT", struct.pack(">qi", 1 << 62, 0)),
        ("LOCALDATE", struct.pack(">q", 1 << 31)),
        ("LOCALTIME", struct.pack(">q", 86_400_000_000_000)),
        ("LOCALTIME", struct.pack(">q", -1)),
        ("LOCALDATETIME", struct.pack(">qq", 1 << 40, 0)),
        ("LOCALDATETIME", struct.pack(">qq", 0, -1)),
    ],
)
def test_a_value_of_another_length_or_outside_the_range_is_bad(kind: str, data: bytes) -> None:
    width = {"BOOLEAN": 1, "INT8": 1, "INSTANT": 12, "LOCALDATETIME": 16}.get(kind, 8)
    found = read(PrimitiveReader(kind), [bytes(width), data, bytes(width)])
    assert list(found.problems) == [1]
    assert kind in found.problems[1]


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_no_values_are_no_rows(kind: str) -> None:
    assert column(PrimitiveReader(kind), []) == []
