# SPDX-License-Identifier: Apache-2.0
"""The entries that ``make_codecs.py`` wrote are still what we write, and still read."""

from __future__ import annotations

import json
import runpy
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bk_core.entries.batch import EntryBatch
from bk_spark.codecs import LedgerAt, arrow_message, arrow_schema, envelope_bytes, spark_types
from bk_spark.codecs.arrow_rows import ArrowRows

HERE = Path(__file__).parent
MAKER: dict[str, Any] = runpy.run_path(str(HERE / "make_codecs.py"))
BATCHES = sorted(path.name for path in HERE.glob("entry-arrow-*.bin"))


def test_envelopes_are_still_written_as_the_golden_bytes() -> None:
    made = MAKER["golden_envelopes"]()
    assert sorted(made) == sorted(path.name for path in HERE.glob("entry-envelope-*.bin"))
    assert {name for name, entry in made.items() if entry != (HERE / name).read_bytes()} == set()


def test_golden_envelopes_are_read() -> None:
    names, rows = list(MAKER["ENVELOPES"]), list(MAKER["ENVELOPES"].values())
    found = envelope_bytes.decode(
        EntryBatch.from_list([(HERE / f"entry-envelope-{name}.bin").read_bytes() for name in names])
    )
    assert not found.bad.any()
    assert {key: getattr(found, key).to_pylist() for key in rows[0]} == {
        key: [row[key] for row in rows] for key in rows[0]
    }


def test_an_envelope_is_what_the_format_document_says_field_by_field() -> None:
    row = MAKER["ENVELOPES"]["full"]
    at_us = int(row["timestamp"].timestamp()) * 1_000_000 + row["timestamp"].microsecond
    head = struct.pack("<BBHIq", 1, 7, 4, len(b"key"), at_us)
    table = struct.pack("<8i", 5, 2, 2, -1, -2, -1, -1, 0)
    data = b"key" + b"trace" + b"\x01\x02" + "é".encode() + b"value"
    assert (HERE / "entry-envelope-full.bin").read_bytes() == head + table + data
    assert (HERE / "entry-envelope-nulls.bin").read_bytes() == struct.pack("<BBHIq", 1, 0, 0, 0, at_us)


def test_the_schema_is_still_written_as_the_golden_bytes() -> None:
    data = (HERE / "schema-arrow.json").read_bytes()
    assert arrow_schema.to_bytes(MAKER["SCHEMA"]) == data
    assert arrow_schema.from_bytes(data) == MAKER["SCHEMA"]
    assert json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == data


@pytest.mark.parametrize("name", BATCHES)
def test_golden_record_batches_are_read(name: str) -> None:
    entry, schema = (HERE / name).read_bytes(), (HERE / "schema-arrow.json").read_bytes()
    arrow_message.check(memoryview(entry))
    columns = spark_types.spark_schema_of(MAKER["SCHEMA"])
    codec = ArrowRows.of(columns, {"events": {1: schema}})
    batch = EntryBatch.from_list([entry])
    (rows,) = codec.rows(batch, batch.entry_ids(), LedgerAt(ledger_id=1, log="events", schema=schema))
    assert rows.to_pylist() == pa.RecordBatch.from_pylist(MAKER["ROWS"], schema=MAKER["SCHEMA"]).to_pylist()


def test_there_is_a_record_batch_of_each_compression() -> None:
    assert sorted(MAKER["golden_batches"]()) == BATCHES
