# SPDX-License-Identifier: Apache-2.0
"""Decides which log a row goes to: the one that the options name, or the one in its column ``log`` (RULES K10). Pure.

An option or a path wins over the column, as Kafka's ``topic`` does. Codecs with fixed columns then leave the column
out; for other codecs it is a column like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bk_core.errors import InvalidArgumentError
from bk_core.logs.machines.publication import LOGS_MAX
from bk_spark import codecs
from bk_spark.codecs import spelling
from bk_spark.options.selection import LOG_COLUMN, parse_log_name

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions

logger = logging.getLogger("bk_spark.write.log_writer")


@dataclass(frozen=True, slots=True)
class Columns:
    """The use of a DataFrame's columns in a write. The codec gets ``written``, a StructType. ``log_column`` is the
    DataFrame's spelling of the column that names the log, or None if the options name it."""

    written: Any
    log_column: str | None = None

    @property
    def by_column(self) -> bool:
        return self.log_column is not None

    def routed(
        self, rows: pa.RecordBatch, partition: int, first_row: int
    ) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Yield the rows of each log, in order, with the codec's columns only. The log is None if the options name it.
        Raises InvalidArgumentError for a null, with partition and row, and for an impossible name, with partition."""
        kept = rows.select(self.written.names) if len(self.written.names) < rows.num_columns else rows
        if self.log_column is None:
            yield None, kept
            return
        names = rows.column(self.log_column)
        if names.null_count:
            at = int(np.flatnonzero(names.is_null().to_numpy(zero_copy_only=False))[0])
            raise InvalidArgumentError(
                f"column {LOG_COLUMN} is null",
                value=f"partition {partition}, row {first_row + at}",
                remedy='give every row the name of its log, or all of them one: .option("log", "events")',
            )
        coded = names.dictionary_encode()
        logs, of_row = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        if len(logs) == 1:
            yield self._log(logs[0], partition), kept
            return
        order = np.argsort(of_row, kind="stable")
        ends = np.cumsum(np.bincount(of_row, minlength=len(logs)))
        together = kept.take(pa.array(order))
        for number, log in enumerate(logs):
            first = int(ends[number - 1]) if number else 0
            yield self._log(log, partition), together.slice(first, int(ends[number]) - first)

    def _log(self, name: str, partition: int) -> str:
        try:
            return parse_log_name(name)
        except InvalidArgumentError as error:
            error.value = f"partition {partition}, column {LOG_COLUMN}: {error.value}"
            raise


def columns_of_write(options: BkOptions, schema: Any) -> Columns:
    """Return how a write uses the columns of ``schema``, a StructType. Raises InvalidArgumentError if neither the
    options nor a string column ``log`` names a log."""
    from pyspark.sql.types import StructType

    name = spelling.found(LOG_COLUMN, schema.names)
    found = None if name is None else schema[name]
    without = StructType([field for field in schema.fields if field.name != name])
    if options.log is not None:
        if found is None or codecs.codec_of(options).columns is None:  # any column log is the user's data
            return Columns(schema)
        logger.info("column %s is left out: every row goes to log %s", LOG_COLUMN, options.log)
        return Columns(without)
    if found is None or found.dataType.simpleString() != "string":
        raise InvalidArgumentError(
            "nothing says which log to write to",
            value=f"column {LOG_COLUMN} is {found.dataType.simpleString()}" if found else f"no column {LOG_COLUMN}",
            remedy=f'name a log: .save("events") or .option("log", "events"); or give each row its own in a column '
            f"{LOG_COLUMN} STRING",
        )
    return Columns(without, log_column=name)


def check_count(logs: int) -> None:
    """Check that one step can publish to this many logs. Raises InvalidArgumentError."""
    if logs > LOGS_MAX:
        raise InvalidArgumentError(
            f"a write goes to at most {LOGS_MAX} logs, because they are published in one step",
            value=f"{logs} logs or more",
            remedy=f"write fewer logs at a time: df.where(\"{LOG_COLUMN} IN ('a', 'b')\")",
        )
