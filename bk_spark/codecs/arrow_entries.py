# SPDX-License-Identifier: Apache-2.0
"""Codec ``arrow``, writing: rows to record batches that fill entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from bk_core.entries.batch import EntryBatch
from bk_core.logs import schemas as log_schemas
from bk_core.wire.lane import ENTRY_BYTES_MAX
from bk_spark.codecs import arrow_message, arrow_schema, spark_types
from bk_spark.codecs.codec import too_large

ENTRY_BYTES_WANTED = 1 << 20
"""Entries are filled up to this (option maxEntryBytes)."""
FILLED = 0.9
"""Part of it that is aimed at, as slices of a batch do not compress alike."""
RAW_BYTES_MAX = 16 << 20
"""Bytes of an entry's columns before they are compressed, unless it is one row."""
COMPRESSED_BYTES_MIN = 4096
"""Smaller ones grow by being compressed: each column has a length and a frame of its own."""


@dataclass(slots=True)
class ArrowEntries:
    """Rows to record batches of at most ``entry_bytes_wanted``, or of one row, in the log's columns, ``schema``."""

    schema: bytes
    compression: str = "none"
    entry_bytes_wanted: int = ENTRY_BYTES_WANTED
    entry_bytes_max: int = ENTRY_BYTES_MAX
    _ratio: float = field(default=1.0, repr=False)  # of bytes written to bytes given, as it was last

    @classmethod
    def of(cls, spark_schema: Any, newest: bytes | None, *, merge: bool = False, **how: Any) -> ArrowEntries:
        """For a StructType, and the newest schema of the log. Raises SchemaMismatchError for columns that do not go
        with it, and InvalidArgumentError for types that Arrow does not have or not in full."""
        spark_types.check_kept(spark_schema)
        wanted = spark_types.arrow_schema_of(spark_types.all_nullable(spark_schema))
        return cls(log_schemas.merged(newest, arrow_schema.to_bytes(wanted), merge), **how)

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        """One batch of entries, each of about as many rows."""
        if not rows.num_rows:
            return
        batch = spark_types.conformed(rows, arrow_schema.from_bytes(self.schema))
        made, todo = list[memoryview](), self._cuts(batch)
        while todo:
            start, stop = todo.pop()
            entry = self._entry(batch.slice(start, stop - start), first_row + start)
            if entry is not None:
                made.append(entry)
            else:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
        self._ratio = sum(map(len, made)) / max(1, batch.nbytes)
        yield EntryBatch.from_list(made)

    def _cuts(self, batch: pa.RecordBatch) -> list[tuple[int, int]]:
        """Rows of like number, the first ones last."""
        rows, size = batch.num_rows, batch.nbytes
        wanted = self.entry_bytes_wanted * FILLED
        parts = int(
            max(-(-size * self._ratio // wanted), -(-size // RAW_BYTES_MAX), -(-rows // arrow_message.ROWS_MAX))
        )
        parts = min(max(parts, 1), rows)
        return [(rows * part // parts, rows * (part + 1) // parts) for part in reversed(range(parts))]

    def _entry(self, rows: pa.RecordBatch, first_row: int) -> memoryview | None:
        """The bytes of an entry; None where it must be cut. Raises EntryTooLargeError for a single row."""
        if rows.num_rows == 1 and rows.nbytes > arrow_message.BODY_BYTES_MAX:
            raise too_large(first_row, rows.nbytes, min(self.entry_bytes_max, arrow_message.BODY_BYTES_MAX))
        entry = message_of(rows, self.compression if rows.nbytes >= COMPRESSED_BYTES_MIN else "none")
        most = self.entry_bytes_max if rows.num_rows == 1 else min(self.entry_bytes_wanted, self.entry_bytes_max)
        if len(entry) <= most:
            return entry
        if rows.num_rows == 1:
            raise too_large(first_row, len(entry), self.entry_bytes_max)
        return None


def message_of(rows: pa.RecordBatch, compression: str) -> memoryview:
    """The encapsulated RecordBatch message of ``rows``."""
    options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    sink = pa.BufferOutputStream()
    writer = ipc.new_stream(sink, rows.schema, options=options)
    writer.write_batch(rows)
    written = memoryview(sink.getvalue())
    return written[8 + int.from_bytes(written[4:8], "little") :]  # behind the schema's message
