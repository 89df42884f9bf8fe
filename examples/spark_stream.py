# SPDX-License-Identifier: Apache-2.0
"""Tail a ledger with structured streaming while it is written: ``python -m examples.spark_stream URI``."""

from __future__ import annotations

import sys
import time

from bk_core.blocking import connect
from examples.spark_session import spark_session

TIMEOUT_S = 60


def main(uri: str) -> None:
    spark = spark_session("spark_stream")
    try:
        with connect(uri) as bookkeeper, bookkeeper.create_ledger() as ledger:
            stream = (
                spark.readStream.format("bookkeeper")
                .option("metadataServiceUri", uri)
                .option("ledgerId", ledger.ledger_id)
                .option("startingOffsets", "earliest")
                .load()
            )
            query = stream.writeStream.format("memory").queryName("tail").start()
            for i in range(100):
                ledger.append(b"event %d" % i)
            # the writer is idle now, and its last entry arrives nevertheless
            deadline = time.monotonic() + TIMEOUT_S
            while spark.table("tail").count() < 100 and time.monotonic() < deadline:
                time.sleep(0.1)
            query.stop()
            last = spark.table("tail").selectExpr("max_by(CAST(value AS STRING), entry_id) AS last").first()
            print("rows seen:", spark.table("tail").count(), "last:", last["last"])
            assert spark.table("tail").count() == 100
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
