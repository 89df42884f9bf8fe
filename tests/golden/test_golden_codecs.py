# SPDX-License-Identifier: Apache-2.0
"""The entries that ``make_codecs.py`` wrote are still what we write, and still read."""

from __future__ import annotations

import datetime as dt
import json
import runpy
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bk_core.columns import arrow_schema, envelope_bytes
from bk_core.entries import arrow_directory
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import crc32c
from bk_spark import codecs
from bk_spark.codecs import LedgerAt, spark_types
from tests.spark.codecs.codec_kit import options

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
    told = arrow_directory.parse(memoryview(entry), len(entry))
    assert [column.nulls for column in told.columns] == [2] * 15 + [1] * 3
    columns = spark_types.spark_schema_of(MAKER["SCHEMA"])
    codec = codecs.row_codec(options(codec="arrow"), columns, {"events": {1: schema}})
    batch = EntryBatch.from_list([entry])
    (rows,) = codec.rows(batch, batch.entry_ids(), LedgerAt(ledger_id=1, log="events", schema=schema))
    assert rows.to_pylist() == pa.RecordBatch.from_pylist(MAKER["ROWS"], schema=MAKER["SCHEMA"]).to_pylist()


def test_there_is_a_record_batch_of_each_compression() -> None:
    assert sorted(MAKER["golden_batches"]()) == BATCHES


def test_a_golden_directory_is_what_the_format_document_says_field_by_field() -> None:
    """Of the entry that is not compressed; how long Arrow's own message is may differ with its version."""
    entry, schema = (HERE / "entry-arrow-none.bin").read_bytes(), MAKER["SCHEMA"]
    magic, version, zero, size, crc, rows, columns, head_bytes, head_crc = struct.unpack_from("<4sHHIIIIII", entry)
    assert (magic, version, zero, rows, columns) == (b"BKAD", 1, 0, len(MAKER["ROWS"]), len(schema))
    assert crc32c(entry[:12] + entry[16:size]) == crc
    assert crc32c(entry[size : size + head_bytes]) == head_crc
    at, values = size + head_bytes, 32 + 16 * columns
    found = {}
    for k, name in enumerate(schema.names):
        length, column_crc, _, bits, low, high, zero = struct.unpack_from("<IIIBBBB", entry, 32 + 16 * k)
        assert (crc32c(entry[at : at + length]), zero, at % 64) == (column_crc, 0, 0)
        found[name] = (bits, entry[values : values + low], entry[values + low : values + low + high])
        at, values = at + length, values + low + high
    assert at == len(entry)
    assert values <= size
    row = MAKER["ROWS"][0]
    at_us = int(row["at"].timestamp()) * 1_000_000 + row["at"].microsecond
    one = {
        "flag": b"\1",
        "tiny": struct.pack("<b", -1),
        "small": struct.pack("<h", 2),
        "id": struct.pack("<i", 3),
        "big": struct.pack("<q", -4),
        "single": struct.pack("<f", 0.5),
        "double": struct.pack("<d", 0.25),
        "price": (1_234_567_890).to_bytes(16, "little"),
        "name": "é".encode(),
        "bytes": b"\x00\xff",
        "day": struct.pack("<i", (row["day"] - dt.date(1970, 1, 1)).days),
        "at": struct.pack("<q", at_us),
        "local": struct.pack("<q", at_us),
        "time": struct.pack("<q", ((1 * 60 + 2) * 60 + 3) * 10**9 + 4000),
        "took": struct.pack("<q", -1_000_000),
    }
    nothing = dict.fromkeys(("list", "parts", "map"), (0, b"", b""))
    assert found == {name: (3, value, value) for name, value in one.items()} | nothing
