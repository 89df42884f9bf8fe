# SPDX-License-Identifier: Apache-2.0
"""The Spark session of the measurements, and helpers that all of them use."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

SLOTS = 2
FORMAT = "bookkeeper"


def session(folder: Path, **more: str) -> Any:
    """Return a session on ``local[2]``, with this interpreter for its workers and its files below ``folder``. ``more``
    are settings, with ``__`` for the dots."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(SLOTS),
        "spark.sql.session.timeZone": "UTC",
    } | {name.replace("__", "."): value for name, value in more.items()}
    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def drop_rows(frame: Any) -> None:
    """Make every row of a batch DataFrame, and forget it."""
    frame.write.format("noop").mode("overwrite").save()


def drop_written(frame: Any) -> None:
    """Write every row of a batch DataFrame to the sink in memory, which drops it."""
    frame.write.format("inmemory").mode("append").save()


def drop_stream(frame: Any, folder: Path) -> None:
    """Make every row that a stream has now, and forget it. Wait until the query has ended. Raises the error that ended
    it."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
