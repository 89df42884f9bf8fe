# SPDX-License-Identifier: Apache-2.0
"""Writes the golden entries of the data source's codecs, ``entry-*.bin`` and ``schema-arrow.json``, beside this file:
``PYTHONPATH=. python tests/golden/make_codecs.py``.

They are final bytes (docs/formats.md §7): a run of this script that changes an envelope or the schema is a change of
format. Arrow's own bytes may differ with its version; those that are here must be read for ever.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from bk_core.columns import arrow_schema, envelope_bytes
from bk_core.logs.model.head import COMPRESSIONS
from tests.spark.codecs.codec_kit import arrow_entry

AT = dt.datetime(2026, 1, 31, 12, 34, 56, 789012, tzinfo=dt.UTC)
ENVELOPES: dict[str, dict[str, Any]] = {
    "full": {
        "key": b"key",
        "value": b"value",
        "timestamp": AT,
        "headers": [
            {"key": "trace", "value": b"\x01\x02"},
            {"key": "é", "value": None},
            None,
            {"key": None, "value": b""},
        ],
    },
    "nulls": {"key": None, "value": None, "timestamp": AT, "headers": None},
    "empty": {"key": b"", "value": b"", "timestamp": dt.datetime(1, 1, 1, tzinfo=dt.UTC), "headers": []},
}
_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", envelope_bytes.TIMESTAMP),
        ("headers", envelope_bytes.HEADERS_TYPE),
    ]
)
SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("id", pa.int32()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("name", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("time", pa.time64("ns")),
        ("took", pa.duration("us")),
        ("list", pa.list_(pa.field("element", pa.string()))),
        ("parts", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.int64())))])),
        ("map", pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.float64()))),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "flag": True,
        "tiny": -1,
        "small": 2,
        "id": 3,
        "big": -4,
        "single": 0.5,
        "double": 0.25,
        "price": Decimal("12345678.90"),
        "name": "é",
        "bytes": b"\x00\xff",
        "day": dt.date(2026, 1, 31),
        "at": AT,
        "local": AT.replace(tzinfo=None),
        "time": dt.time(1, 2, 3, 4),
        "took": dt.timedelta(seconds=-1),
        "list": ["a", None],
        "parts": {"x": 1, "y": [1, None]},
        "map": [("k", 1.5), ("n", None)],
    },
    dict.fromkeys(SCHEMA.names),
    {"list": [], "parts": {"x": None, "y": None}, "map": []},
]


def golden_envelopes() -> dict[str, bytes]:
    """File name to bytes."""
    rows = pa.RecordBatch.from_pylist(list(ENVELOPES.values()), schema=_COLUMNS)
    entries = envelope_bytes.encode(*rows.columns).to_pylist()
    return {f"entry-envelope-{name}.bin": entry for name, entry in zip(ENVELOPES, entries, strict=True)}


def golden_batches() -> dict[str, bytes]:
    """File name to bytes, as this version of Arrow writes them."""
    rows = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
    return {f"entry-arrow-{kind}.bin": arrow_entry(rows, kind) for kind in COMPRESSIONS}


if __name__ == "__main__":
    files = {**golden_envelopes(), **golden_batches(), "schema-arrow.json": arrow_schema.to_bytes(SCHEMA)}
    for name, data in files.items():
        (Path(__file__).parent / name).write_bytes(data)
