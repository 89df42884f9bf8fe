# SPDX-License-Identifier: Apache-2.0
"""Spark's classes as Java keeps them for its next start (a dynamic archive of class data): half of what the first
seconds of a driver cost. Made once for each Java and pyspark, by a driver that does what drivers do here; without it
everything works as well.

``python -m tests.spark.class_archive`` makes it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from benchmarks.spark.in_memory import InMemory
from bk_cli.local.java import find_java
from tests.spark.sessions import ROOT, environment, settings

MAKE_S_MAX = 180.0
OPTIONS = "spark.driver.extraJavaOptions"


def archive_path() -> Path:
    """Where the archive for this Java and this pyspark is, or would be."""
    java = Path(find_java().path).resolve()
    key = f"{java} {java.stat().st_mtime_ns} {Path(pyspark.__file__).parent}"
    name = f"{pyspark.__version__}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
    return ROOT / ".cache" / "spark-classes" / name


def java_option() -> str:
    """The option for a driver's Java, empty without an archive."""
    path = archive_path()  # which asks Java
    return f" -XX:SharedArchiveFile={path}" if path.exists() else ""


def make() -> None:
    """The archive, where there is none. What goes wrong is said, and drivers start as slowly as without."""
    path = archive_path()
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run([sys.executable, "-m", __spec__.name, str(path)], cwd=ROOT, timeout=MAKE_S_MAX, check=True)
    except subprocess.SubprocessError as error:
        print(f"no archive of Spark's classes: {error}", file=sys.stderr)


def _use_spark(archive: Path) -> None:
    """A session that reads and writes by Python, as a batch and as a stream; Java writes the archive as it ends."""
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        unfinished = Path(folder, "classes")
        wanted = settings(Path(folder))
        wanted[OPTIONS] += f" -XX:ArchiveClassesAtExit={unfinished}"
        builder = SparkSession.builder.master("local[1]").appName("classes")
        for name, text in wanted.items():
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
        java.stdin.close()  # Spark's Java ends with it
        java.wait(MAKE_S_MAX)
        unfinished.replace(archive)  # only what is complete has this name


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _use_spark(Path(sys.argv[1]))
    else:
        make()
