# SPDX-License-Identifier: Apache-2.0
"""The cost of Spark's own machinery: a source that makes rows in memory, batch and stream, and a sink that drops them.

These are the ceilings of every Python data source: the same job, the same columns, the same size of Arrow batches, and
no log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

ROWS_PER_BATCH = 10_000
BATCH_BYTES = 1 << 20
BATCHES = 64
"""The number of different batches. It is large enough that the rows are not in the processor's cache already."""
PLACES = "value BINARY, log STRING, ledger_id BIGINT, entry_id BIGINT, offset BIGINT"
"""The columns of ``format("bookkeeper")``."""
PARTITIONS = 2


def rows_per_batch(size: int) -> int:
    """Return how many rows of ``size`` bytes a batch has: as many as our batches, which are about as large as a
    frame."""
    return max(1, min(ROWS_PER_BATCH, BATCH_BYTES // size))


def batches(rows: int, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` rows of ``size`` random bytes, the same ones over and over, because nothing here reads them."""
    step = rows_per_batch(size)
    numbers = pa.array(np.arange(step, dtype=np.int64))
    others = {"log": pa.array(["bench"] * step, pa.string()), "ledger_id": numbers, "entry_id": numbers}
    others["offset"] = numbers
    made = [_batch({"value": value, **others}, columns) for value in _values(size, step)]
    for number, left in enumerate(range(rows, 0, -step)):
        batch = made[number % len(made)]
        yield batch if left >= step else batch.slice(0, left)


def _batch(made: dict[str, pa.Array], columns: list[str]) -> pa.RecordBatch:
    return pa.record_batch({name: made[name] for name in columns})


@cache
def _values(size: int, step: int) -> list[pa.Array]:
    """Return the values of each batch. The worker keeps them, so that a warm run does not make them."""
    ends = pa.py_buffer(np.arange(0, size * (step + 1), size, dtype=np.int32))
    payloads = (pa.py_buffer(os.urandom(size * step)) for _ in range(BATCHES))
    return [pa.Array.from_buffers(pa.binary(), step, [None, ends, payload]) for payload in payloads]


def mapped(path: str, columns: list[str], part: int) -> Iterator[pa.RecordBatch]:
    """Yield this partition's batches of an Arrow file, without copying them."""
    file = pa.ipc.open_file(pa.memory_map(path))
    return (file.get_batch(number).select(columns) for number in range(part, file.num_record_batches, PARTITIONS))


class Rows:
    """The rows to make, in two partitions: a number of rows with some columns, or those of an Arrow file."""

    def __init__(self, options: dict[str, str], schema: Any) -> None:
        self.rows, self.size, self.columns = int(options["rows"]), int(options["size"]), list(schema.names)
        self.path = options.get("path", "")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self.path:
            return mapped(self.path, self.columns, partition.value)
        return batches(self.rows // PARTITIONS, self.size, self.columns)


class MemoryReader(Rows, DataSourceReader):
    """A batch reader."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]


class MemoryStreamReader(Rows, DataSourceStreamReader):
    """A stream that has all of its rows from the beginning."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"rows": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def commit(self, end: dict[str, int]) -> None:
        pass


class DroppingWriter(DataSourceArrowWriter):
    """A sink that drops all batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class InMemory(DataSource):
    """``format("inmemory")`` with options ``rows`` and ``size``, or with ``path``: a file of Arrow."""

    @classmethod
    def name(cls) -> str:
        return "inmemory"

    def schema(self) -> Any:
        if "path" not in self.options:
            return PLACES
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.ipc.open_file(pa.memory_map(self.options["path"])).schema)

    def reader(self, schema: Any) -> MemoryReader:
        return MemoryReader(dict(self.options), schema)

    def streamReader(self, schema: Any) -> MemoryStreamReader:  # noqa: N802  # Spark's name
        return MemoryStreamReader(dict(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> DroppingWriter:
        return DroppingWriter()
