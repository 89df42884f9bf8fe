# SPDX-License-Identifier: Apache-2.0
"""The differences between pyspark 4.0 and 4.3, in one place.

Admission control (``latestOffset(start, limit)``) and ``Trigger.AvailableNow`` with limits exist from 4.2 on. Before
that, ``latestOffset()`` is called without arguments, and AvailableNow makes one batch of everything.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class StreamReaderBase(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """The base class of stream readers whose triggers can be limited."""

except ImportError:  # pyspark 4.0, 4.1
    ReadAllAvailable = ReadMaxRows = ReadMaxBytes = None

    class StreamReaderBase(DataSourceStreamReader):  # type: ignore[no-redef]  # for pyspark before 4.2
        """Base of stream readers whose triggers take everything."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    HAS_STREAM_WRITER = True

    class StreamWriterBase(DataSourceStreamArrowWriter):
        """The base class of stream writers that take whole batches."""

except ImportError:  # pyspark 4.0 gives stream writers one row at a time
    HAS_STREAM_WRITER = False

    class StreamWriterBase(DataSourceStreamWriter):  # type: ignore[no-redef]  # for pyspark 4.0
        """Base of stream writers, which this package refuses on pyspark 4.0."""


PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


def ends_batches() -> bool:
    """Return whether this process makes writers only to commit or abort micro-batches that other processes wrote."""
    return SINK_WORKER in sys.modules


def plans_by_pushdown() -> bool:
    """Return whether this is the process that plans a read when filter push-down is on. It calls ``partitions()`` even
    for ``explain()``."""
    return PUSHDOWN_WORKER in sys.modules


def default_read_limit(entries_max: int | None, bytes_max: int | None) -> Any:
    """Return the limit to tell Spark, which carries only one. The reader applies both of its own limits unless Spark
    asks for everything."""
    if entries_max is not None:
        return ReadMaxRows(entries_max)
    return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)


def is_unlimited(limit: Any) -> bool:
    """Return whether Spark asks for everything: ``Trigger.Once``, or a pyspark without limits."""
    return limit is None or ReadAllAvailable is None or isinstance(limit, ReadAllAvailable)


def columns_of(schema: Any) -> list[tuple[str, str, bool]]:
    """Return (name, Spark type, nullable) of each field of a StructType."""
    return [(field.name, field.dataType.simpleString(), bool(field.nullable)) for field in schema.fields]


def pyspark_version() -> str:
    """Return the installed version of pyspark."""
    import pyspark

    return str(pyspark.__version__)
