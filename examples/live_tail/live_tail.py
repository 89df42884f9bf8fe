# SPDX-License-Identifier: Apache-2.0
"""# A live tail

A process outside Spark appends readings of two sensors to a log, a streaming query follows the log, and a plot follows
the query. Run it cell by cell in an editor that supports ``# %%`` (or in Jupyter with jupytext), or as a whole:

    pip install '.[spark]' matplotlib                         # in the checkout
    bk local                                                  # in another terminal
    python live_tail.py zk://localhost:2181/ledgers tail.png
"""

# %% The cluster and the file of the picture
from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import matplotlib

in_notebook = "ipykernel" in sys.modules
arguments = [] if in_notebook else sys.argv[1:]
uri = arguments[0] if arguments else "zk://localhost:2181/ledgers"
picture = Path(arguments[1] if len(arguments) > 1 else "live_tail.png")
seconds = 8
log = f"sensors-{uuid.uuid4().hex[:8]}"
if not in_notebook:
    matplotlib.use("Agg")

# %% Spark, whose workers run this Python
from pyspark.sql import SparkSession  # noqa: E402 - imported where the example needs it
from pyspark.sql import functions as f  # noqa: E402 - imported where the example needs it

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
spark = (
    SparkSession.builder.master("local[2]")
    .appName("live_tail")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

# %% The log, and its writer: another process, which does not use Spark
from bk_core.blocking import connect  # noqa: E402 - imported where the example needs it

with connect(uri) as bookkeeper:
    bookkeeper.log(log).create()
sensors = Path(__file__ if not in_notebook else "live_tail.py").with_name("sensors.py")
writer = subprocess.Popen([sys.executable, str(sensors), uri, log, str(seconds)], stdout=subprocess.PIPE, text=True)

# %% The stream: the log's rows are JSON and become columns
stream = (
    spark.readStream.format("bookkeeper")
    .option("metadataServiceUri", uri)
    .option("startingOffsets", "earliest")
    .load(log)
    .select(
        "offset", f.from_json(f.col("value").cast("string"), "sensor STRING, celsius DOUBLE, taken DOUBLE").alias("r")
    )
    .select("offset", "r.*")
)

seen: list[tuple[Any, float]] = []


def take(batch: Any, batch_id: int) -> None:
    """Keep the rows of a micro-batch. Spark calls this on the driver."""
    rows = batch.collect()
    now = time.time()
    seen.extend((row, now) for row in rows)


query = stream.writeStream.foreachBatch(take).start()

# %% The plot, drawn a few times a second while rows arrive
from matplotlib import pyplot as plt  # noqa: E402 - imported where the example needs it

figure, (values, lag) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")


def draw(finished: bool = False) -> None:
    """Draw the readings, and below them how old each was when its micro-batch arrived."""
    rows = list(seen)
    if not rows:
        return
    began = min(row.taken for row, _ in rows)
    values.clear()
    lag.clear()
    for name in sorted({row.sensor for row, _ in rows}):
        mine = [row for row, _ in rows if row.sensor == name]
        values.plot([row.taken - began for row in mine], [row.celsius for row in mine], label=name, linewidth=1)
    lag.plot([row.taken - began for row, _ in rows], [1000 * (now - row.taken) for row, now in rows], ".", markersize=2)
    values.set(ylabel="°C", title=f"log {log}: {len(rows)} rows{'' if finished else ', live'}")
    values.legend(loc="upper right")
    lag.set(xlabel="seconds", ylabel="age in foreachBatch, ms", ylim=(0, None))
    beside = picture.with_suffix(".tmp.png")
    figure.savefig(beside)
    beside.replace(picture)  # a viewer never sees half of a picture
    if in_notebook:
        from IPython.display import clear_output, display

        clear_output(wait=True)
        display(figure)


while writer.poll() is None and query.isActive:
    draw()
    time.sleep(0.3)

# %% The writer has ended. Each confirmed row must be here, once and in order
assert writer.stdout is not None
confirmed = int(writer.stdout.read())
deadline = time.monotonic() + 30
while len(seen) < confirmed and query.isActive and time.monotonic() < deadline:
    time.sleep(0.1)
failure = query.exception()
query.stop()
draw(finished=True)
print(f"confirmed to the writer: {confirmed}, seen by the query: {len(seen)}, drawn in {picture.name}")
assert failure is None, failure
assert [row.offset for row, _ in seen] == list(range(confirmed)), "a row is missing, doubled or out of order"

# %%
if not in_notebook:
    spark.stop()
