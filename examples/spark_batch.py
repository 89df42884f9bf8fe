# SPDX-License-Identifier: Apache-2.0
"""Write a DataFrame to a log and read it back: ``python -m examples.spark_batch URI``."""

from __future__ import annotations

import sys

from examples.spark_session import spark_session


def main(uri: str) -> None:
    spark = spark_session("spark_batch")
    try:
        people = spark.createDataFrame([(1, "Ada"), (2, "Grace"), (3, "Barbara")], "id int, name string")
        rows = people.selectExpr("to_json(struct(*)) AS value")
        rows.write.format("bookkeeper").option("metadataServiceUri", uri).mode("append").save("people")
        log = spark.read.format("bookkeeper").option("metadataServiceUri", uri).load("people")
        log.selectExpr("offset", "CAST(value AS STRING) AS value", "ledger_id", "entry_id").orderBy("offset").show()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
