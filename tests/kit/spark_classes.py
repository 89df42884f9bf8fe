# SPDX-License-Identifier: Apache-2.0
"""The archive of the classes that Spark's Java loads (``class_archives.py``). With it a driver needs a quarter to a
half less CPU time until its first query has ended, and tests start thirty drivers, masters and executors.

``scripts/test`` makes it before the tests, by ``python -m tests.kit.spark_classes``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kit import spark_home
from tests.kit.class_archives import using, writing
from tests.spark import sessions

ARCHIVE = spark_home.HOME.with_name(f"{spark_home.HOME.name}.jsa")
"""Java uses it only with the jars' paths with which it was made: those of this home."""
MAKE_S = 180.0


def use() -> None:
    """Let Spark use the tests' home in this process and its children, and every Java the archive, if it exists and no
    option names another one."""
    spark_home.use()
    if str(ARCHIVE) not in os.environ.get("JDK_JAVA_OPTIONS", ""):
        os.environ["JDK_JAVA_OPTIONS"] = _with(using(ARCHIVE))


def _with(options: Sequence[str]) -> str:
    """Return what JDK_JAVA_OPTIONS says, with more options."""
    return " ".join([*os.environ.get("JDK_JAVA_OPTIONS", "").split(), *options])


def make() -> None:
    """Make the archive if it does not exist, with a driver that does what drivers do in the tests. Java writes the
    archive when the driver ends in order. A failure is printed."""
    spark_home.use()
    if ARCHIVE.exists():
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        unfinished = Path(folder, "classes.jsa")
        command = [sys.executable, "-m", __spec__.name, folder]
        environment = {**os.environ, "JDK_JAVA_OPTIONS": _with(writing(unfinished))}
        try:
            subprocess.run(command, cwd=sessions.ROOT, timeout=MAKE_S, check=True, env=environment)
            unfinished.replace(ARCHIVE)  # only a complete archive has this name
        except (OSError, subprocess.SubprocessError) as error:
            print(f"no archive of Spark's classes: {error}", file=sys.stderr)


def _use_spark(folder: str) -> None:
    """Read and write with Python, as a batch and as a stream, and end Java in order."""
    from pyspark.sql import SparkSession

    from benchmarks.spark.in_memory import InMemory

    os.environ.update(sessions.environment())
    builder = SparkSession.builder.master("local[1]").appName("classes")
    for name, text in sessions.settings(Path(folder)).items():
        builder = builder.config(name, text)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(InMemory)
    rows = {"rows": 10, "size": 10}
    values = spark.range(10).selectExpr("concat('x', id) AS value")
    values.write.format("inmemory").mode("append").save()
    spark.read.format("inmemory").options(**rows).load().collect()
    stream = spark.readStream.format("inmemory").options(**rows).load().writeStream.format("noop")
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    stream.start().awaitTermination()
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()  # this ends Spark's Java
    java.wait(MAKE_S)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _use_spark(sys.argv[1])
    else:
        make()
