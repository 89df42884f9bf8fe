# SPDX-License-Identifier: Apache-2.0
"""A Spark query that tails a topic, as a process of its own: ``python -m tests.trials.topics.stream WHERE OPTIONS``.

It continues from the checkpoint in WHERE. Each try of a micro-batch becomes a file ``rows/BATCH-TRY.arrow`` there,
which appears whole. The query ends when the standard input does. OPTIONS are those of the source, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.spark.sessions import environment, settings
from tests.trials.spark.driver import end_with_parent

COLUMNS = ("__partition", "__messageId", "__key", "substring(value, 1, 24) AS value")


def session(where: Path) -> Any:
    from pyspark.sql import SparkSession

    from bk_spark.source import BookKeeperDataSource

    os.environ.update(environment())
    builder = SparkSession.builder.master("local[2]").appName("topics-trial")
    for name, text in settings(where).items():
        builder = builder.config(name, text)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(BookKeeperDataSource)
    return spark


def write(rows: Path, batch: Any, number: int) -> None:
    """Write the rows of a micro-batch in their order."""
    table: pa.Table = batch.selectExpr(*COLUMNS).toArrow()
    name = f"{number:08}-{time.time_ns()}"
    with pa.OSFile(str(rows / f".{name}"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    (rows / f".{name}").rename(rows / f"{name}.arrow")


def main() -> None:
    end_with_parent()
    where, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    rows = where / "rows"
    rows.mkdir(exist_ok=True)
    frame = session(where).readStream.format("bookkeeper").options(**options).load()
    writer = frame.writeStream.foreachBatch(lambda batch, number: write(rows, batch, number))
    query = writer.option("checkpointLocation", str(where / "checkpoint")).start()

    def stop_with_input() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop_with_input, daemon=True).start()
    try:
        query.awaitTermination()
    except Exception as error:  # the reason comes last, because the trial shows the end of the log
        sys.exit(str(error).partition("=== Streaming Query ===")[0])


if __name__ == "__main__":
    main()
