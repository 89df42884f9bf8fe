# SPDX-License-Identifier: Apache-2.0
"""Entries of codec arrow become record batches where they were received."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from bk_core.columns import arrow_entries, arrow_rows, arrow_schema, row_origins
from bk_core.columns.row_origins import LedgerAt
from bk_core.entries.batch import EntryBatch

ROWS = pa.record_batch({"n": pa.array(range(5000), pa.int64()), "s": [f"row {n}" for n in range(5000)]})
SCHEMA = arrow_schema.to_bytes(ROWS.schema)


def received(compression: str, shift: int = 0) -> EntryBatch:
    """Entries in a buffer that begins ``shift`` bytes behind a multiple of 64."""
    (made,) = arrow_entries.ArrowEntries(SCHEMA, compression, 64 << 10).entries(ROWS)
    room = np.zeros(made.payload_bytes + 128, dtype=np.uint8)
    begin = -room.ctypes.data % 64 + shift
    room[begin : begin + made.payload_bytes] = np.frombuffer(made.payload, dtype=np.uint8)
    payload = memoryview(room)[begin : begin + made.payload_bytes]
    return EntryBatch(lengths=made.lengths, payload=payload)


def decoded(batch: EntryBatch, *names: str) -> list[pa.RecordBatch]:
    found = [each for each, _ in arrow_rows.decoded(batch, arrow_rows.stored_columns(SCHEMA, names))]
    assert all(isinstance(each, pa.RecordBatch) for each in found)
    return found


def addresses(batches: list[pa.RecordBatch]) -> list[int]:
    columns = [column for batch in batches for column in batch.columns]
    return [buffer.address for column in columns for buffer in column.buffers() if buffer is not None]


def test_columns_that_are_not_compressed_stay_in_the_receive_buffer() -> None:
    batch = received("none")
    memory = pa.py_buffer(batch.payload)
    found = decoded(batch, "n", "s")
    assert len(found) > 1
    assert all(memory.address <= address < memory.address + memory.size for address in addresses(found))
    assert pa.Table.from_batches(found).combine_chunks() == pa.Table.from_batches([ROWS])


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_some_columns_do_not_hold_the_bytes_of_all(compression: str) -> None:
    batch = received(compression)
    memory = pa.py_buffer(batch.payload)
    found = decoded(batch, "n")
    assert not any(memory.address <= address < memory.address + memory.size for address in addresses(found))
    assert pa.Table.from_batches(found).column("n").to_pylist() == list(range(5000))


def test_numbers_never_lie_across_words_of_memory() -> None:
    found = decoded(received("none", shift=3), "n", "s")
    assert all(address % 8 == 0 for address in addresses(found))
    assert pa.Table.from_batches(found).combine_chunks() == pa.Table.from_batches([ROWS])


def test_the_origin_of_rows_takes_no_memory_unless_it_is_asked_for() -> None:
    each = [arrow_rows.Decoded(ROWS, ROWS.nbytes, n, 100, None) for n in range(50)]
    tracemalloc.start()
    try:
        found = list(arrow_rows.joined(each, ROWS.schema))
        rows = sum(one.rows.count for one in found)
        assert (rows, tracemalloc.get_traced_memory()[1] < rows) == (50 * len(ROWS), True)
    finally:
        tracemalloc.stop()
    at = LedgerAt(ledger_id=1)
    joined = {
        name: [n for one in found for n in row_origins.column(name, one.rows, at).to_pylist()]
        for name in ("entry_id", "entry_length", "row_index")
    }
    assert joined["entry_id"] == [n for n in range(50) for _ in range(len(ROWS))]
    assert joined["entry_length"] == [100] * rows
    assert joined["row_index"] == list(range(len(ROWS))) * 50
