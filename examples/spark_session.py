# SPDX-License-Identifier: Apache-2.0
"""The Spark session of the examples: two local cores, this interpreter for the workers, nothing but loopback."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def spark_session(name: str, master: str = "local[2]") -> Any:
    """Return a session without log output. The caller stops it."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={LOG_SETTINGS}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
