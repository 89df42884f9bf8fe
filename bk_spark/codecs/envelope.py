# SPDX-License-Identifier: Apache-2.0
"""Codec ``envelope``: one entry is one row of key, value, timestamp and headers, like Kafka's records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns import envelope_bytes, texts
from bk_core.columns.envelope_bytes import HEADERS_MAX, HEADERS_TYPE, TIMESTAMP
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_spark.codecs.codec import Codec, LogSchemas, check_rows
from bk_spark.codecs.read_columns import Decoded, EntryRows, ReadColumns

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions

NAME = "envelope"
DATA = {
    "key": "binary",
    "value": "binary",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
WRITABLE = {name: ("binary", "string") if name in ("key", "value") else (kind,) for name, kind in DATA.items()}
BYTES_AT_ONCE = 256 << 20
"""The maximum number of bytes of rows that are encoded together. A larger batch is encoded in parts, because an Arrow
column of bytes holds at most 2 GiB."""


def _reader(columns: ReadColumns, spark_schema: Any, schemas: LogSchemas, options: BkOptions) -> EntryRows:
    """Return the reader. It accepts raw entries too, because another program may have written envelopes as bytes."""
    return EntryRows(NAME, columns, _decoded, options.corrupt_entries, ("raw",))


def _decoded(batch: EntryBatch, columns: ReadColumns) -> Decoded:
    found = envelope_bytes.decode(batch)
    bad = found.bad if found.bad.any() else None
    return Decoded(lambda name: getattr(found, name), bad, lambda _: "its bytes are no envelope")


@dataclass(frozen=True, slots=True)
class EnvelopeEntries:
    """Encodes rows as envelopes. A null timestamp becomes the time of writing; every other null is kept."""

    entry_bytes_max: int = ENTRY_BYTES_MAX
    schema: bytes | None = None

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        step = max(1, rows.num_rows * BYTES_AT_ONCE // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, step):
            yield self._encoded(rows.slice(start, step), first_row + start)

    def _encoded(self, rows: pa.RecordBatch, first_row: int) -> EntryBatch:
        def column(name: str, kind: pa.DataType) -> pa.Array:
            if name not in rows.schema.names:
                return pa.nulls(rows.num_rows, kind)
            given = rows.column(name)
            return given if given.type == kind else given.cast(kind)

        now = pa.scalar(time.time_ns() // 1000, TIMESTAMP)
        headers = column("headers", HEADERS_TYPE)
        texts.check(pa.record_batch([headers], names=["headers"]), first_row)
        self._check_headers(headers, first_row)
        made = envelope_bytes.encode(
            column("key", pa.binary()),
            column("value", pa.binary()),
            column("timestamp", TIMESTAMP).fill_null(now),
            headers,
        )
        check_rows(made, self.entry_bytes_max, first_row)
        return EntryBatch.from_arrow(made)

    def _check_headers(self, headers: pa.Array, first_row: int) -> None:
        most = pc.max(pc.list_value_length(headers)).as_py()
        if most is not None and most > HEADERS_MAX:
            row = pc.index(pc.list_value_length(headers), most).as_py()
            raise InvalidArgumentError(
                f"an envelope has at most {HEADERS_MAX} headers", value=f"row {first_row + row} has {most}"
            )


def _check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
    """Check that a DataFrame of (name, Spark type) has ``value`` and no other columns than ``key``, ``timestamp`` and
    ``headers``. Raises InvalidArgumentError that names the other columns and prints the ``select`` to paste."""
    wrong = [f"{name} {kind}" for name, kind in columns if kind not in WRITABLE.get(name, ())]
    names = [name for name, _ in columns]
    if wrong or "value" not in names or len(set(names)) != len(names):
        usable = [f'"{name}"' for name, kind in columns if kind in WRITABLE.get(name, ())]
        has_value = '"value"' in usable
        raise InvalidArgumentError(
            f"{target} takes envelopes: value, key BINARY or STRING, timestamp TIMESTAMP, headers "
            "ARRAY<STRUCT<key: STRING, value: BINARY>>",
            value=f"the DataFrame has {', '.join(wrong) or 'no value, or a column twice'}",
            remedy=f"write df.select({', '.join(dict.fromkeys(usable))})" if has_value else "name a column value",
        )


def _writer(spark_schema: Any, newest: bytes | None, options: BkOptions) -> EnvelopeEntries:
    return EnvelopeEntries(options.max_entry_bytes or ENTRY_BYTES_MAX)


CODEC = Codec.of_columns(DATA, name=NAME, reader=_reader, writer=_writer, check_input=_check_input)
