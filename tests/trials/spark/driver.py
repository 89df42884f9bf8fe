# SPDX-License-Identifier: Apache-2.0
"""A Spark driver as a process of its own. Lines on its standard input ask for jobs, and it answers in lines.

``python -m tests.trials.spark.driver WHERE MASTER WARM [CONF=VALUE …]``. The first answer says that the session is up,
and has the pid of its JVM. WARM is empty, or names a log to copy before that, so that all processes of Spark run
(:meth:`Driver.warm_up`). The driver ends when its input does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.spark.sessions import environment, settings
from tests.trials.spark.marks import Marks

ROWS_A_BATCH = 16
END_S = 240.0


class Driver:
    """A session, and the jobs that it does on request."""

    def __init__(self, where: Path, master: str, conf: dict[str, str]) -> None:
        from pyspark.sql import SparkSession

        from tests.trials.spark.source import TrialSource

        os.environ.update(environment())
        wanted = settings(where) | {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_A_BATCH),
            "spark.sql.session.timeZone": "UTC",
            **conf,
        }
        builder = SparkSession.builder.master(master).appName("spark-trial")
        for name, text in wanted.items():
            builder = builder.config(name, text)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.spark.dataSource.register(TrialSource)
        self._kept: dict[str, Any] = {}
        self._where = where

    def jvm_pid(self) -> int:
        return int(self.spark._jvm.java.lang.ProcessHandle.current().pid())

    def warm_up(self, options: dict[str, str], source: str, sink: str) -> None:
        """Copy a log with a query, before any job is timed."""
        self.stream(
            source=source,
            sink=sink,
            checkpoint=str(self._where / "warm"),
            read={"startingOffsets": "earliest", **options},
            write=options,
        )

    # --- what it can be asked -----------------------------------------------------------------------------------------

    def write(self, *, tag: str, count: int, partitions: int, log: str, options: dict[str, str]) -> dict[str, Any]:
        """Append ``tag:0`` to ``tag:count-1`` in one job."""
        frame = self.spark.range(0, count, 1, partitions).selectExpr(f"concat('{tag}:', id) AS value")
        frame.write.format("bookkeeper_trial").options(**options).mode("append").save(log)
        return {}

    def stream(
        self,
        *,
        source: str,
        sink: str,
        checkpoint: str,
        read: dict[str, str],
        write: dict[str, str],
        until: str = "",
        marks: str = "",
    ) -> dict[str, Any]:
        """Copy all rows of a log, or of several (``a,b``), into another. With ``until``, continue until that mark is
        set, and then copy the remaining rows."""
        frame = self.spark.readStream.format("bookkeeper_trial").options(**read).option("logs", source).load()
        writer = frame.select("value").writeStream.format("bookkeeper_trial").options(**write)
        writer = writer.option("checkpointLocation", checkpoint).outputMode("append")
        if not until:
            query = writer.trigger(availableNow=True).start(sink)
            query.awaitTermination(int(END_S))
        else:
            query = writer.start(sink)
            self._follow(query, Marks(marks), until)
        if query.isActive:
            query.stop()
            raise TimeoutError(f"the query did not end in {END_S:.0f} s")
        return {"batches": [progress["batchId"] for progress in query.recentProgress]}

    def _follow(self, query: Any, marks: Marks, until: str) -> None:
        deadline = time.monotonic() + END_S
        while query.isActive and not marks.has(until):
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        if query.isActive:
            query.processAllAvailable()
            query.stop()
        if query.exception() is not None:
            raise query.exception()

    def load(self, *, name: str, path: str, options: dict[str, str]) -> dict[str, Any]:
        """Plan a load and keep the frame. Spark plans its partitions at the first use."""
        self._kept[name] = self.spark.read.format("bookkeeper_trial").options(**options).load(path)
        return {}

    def digest(self, *, name: str) -> dict[str, Any]:
        """Return the digest of the rows of a kept frame, in the order of their partitions."""
        found = hashlib.sha256()
        rows = self._kept[name].select("offset", "value").collect()
        for row in rows:
            found.update(b"%d=%b;" % (row.offset, row.value))
        return {"rows": len(rows), "digest": found.hexdigest()}

    def forget(self, *, name: str) -> dict[str, Any]:
        del self._kept[name]
        return {}


def end_with_parent() -> None:
    """End this process and its JVM if the trial is killed in the middle of a job."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        # this also kills the JVM, because this process leads a group of its own
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if os.getpgrp() == os.getpid():
        threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    end_with_parent()
    where, master, warm = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Spark's output goes to the log
    driver = Driver(where, master, dict(pair.split("=", 1) for pair in sys.argv[4:]))
    if warm:
        driver.warm_up(**json.loads(warm))
    print(json.dumps({"ready": True, "jvm": driver.jvm_pid()}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = getattr(driver, job.pop("do"))(**job)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
