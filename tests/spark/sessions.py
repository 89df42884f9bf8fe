# SPDX-License-Identifier: Apache-2.0
"""The one Spark driver that a Python process can have: on this machine, or on a standalone cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCAL = "local[2]"
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java compiles for the few queries of a test what it would compile for a day's work: half of the time of a suite."""


def environment(address: str = "127.0.0.1") -> dict[str, str]:
    """What Spark's processes need to run this Python and to find this checkout as an installed package is found."""
    return {
        "PYSPARK_PYTHON": str(ROOT / "tests" / "spark" / "worker_python"),
        "WORKER_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SPARK_LOCAL_IP": address,
        "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
    }


def settings(where: Path) -> dict[str, str]:
    """Small, on loopback, all files below ``where``."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",  # to compile a plan costs more than the few rows of a test
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(where / "warehouse"),
        "spark.local.dir": str(where / "local"),
    }


class ClassicSpark:
    """Sessions of a driver in this process. Another master means another driver, so the one before is stopped."""

    def __init__(self, where: Path) -> None:
        os.environ.update(environment())
        self._where = where
        self._session: Any = None
        self._key: object = None

    def session(self, master: str = LOCAL, **more: str) -> Any:
        """The session on ``master``; ``more`` are settings with ``__`` for the dots."""
        from pyspark.sql import SparkSession

        key = (master, tuple(sorted(more.items())))
        if self._key != key:
            self.stop()
            builder = SparkSession.builder.master(master).appName("bookkeeper-tests")
            wanted = settings(self._where) | {name.replace("__", "."): text for name, text in more.items()}
            for name, text in wanted.items():
                builder = builder.config(name, text)
            self._session, self._key = builder.getOrCreate(), key
            self._session.sparkContext.setLogLevel("ERROR")
        return self._session

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()
        self._session = self._key = None
