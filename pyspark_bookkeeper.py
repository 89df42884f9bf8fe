# SPDX-License-Identifier: Apache-2.0
"""Lets Spark find ``format("bookkeeper")`` by itself, and registers it where Spark cannot look.

Spark's driver imports every top-level module named ``pyspark_*`` and takes its ``DefaultSource``. A module of that kind
which fails to import disables all others, so this one imports nothing, and a failure means only that the name
is missing here (RULES K6).
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["DefaultSource", "in_this_thread", "register"]  # noqa: F822 - made on first use


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from bk_spark.source import BookKeeperDataSource
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f'pyspark_bookkeeper: format("bookkeeper") is not available: {reason}', file=sys.stderr)
        raise AttributeError(f"DefaultSource: {reason}") from None
    globals()["DefaultSource"] = BookKeeperDataSource
    return BookKeeperDataSource


def register(spark: Any) -> None:
    """Register the format in a session. This is needed only where the package came with ``--py-files``, ``addPyFile``
    or Spark Connect's ``addArtifacts``. If the format is there already, it stays. Raises what the import raises, for
    instance ImportError without pyspark 4."""
    from pyspark.errors import AnalysisException

    from bk_spark.source import BookKeeperDataSource

    try:
        spark.dataSource.register(BookKeeperDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 raises this for a format that it found by itself
            raise


def in_this_thread(spark: Any) -> Any:
    """Let the calling thread write with ``spark`` and start streams; returns ``spark``.

    Spark looks for a Python format only in the session that is active in the calling thread, and ``getOrCreate`` makes
    it active only in the thread that calls it. Every other thread of a classic driver gets ``DATA_SOURCE_NOT_FOUND``
    from ``save``, ``saveAsTable``, ``start`` and ``toTable``, whatever the format. So each such thread calls this once,
    before it writes: ``ThreadPoolExecutor(initializer=in_this_thread, initargs=(spark,))``. A function of
    ``foreachBatch`` need not. With Spark Connect no thread needs this call, and it does nothing.
    """
    if getattr(spark, "_jsparkSession", None) is not None:  # a session of Spark Connect has none
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    return spark
