# SPDX-License-Identifier: Apache-2.0
"""How soon a stream knows of an entry: from the ack of an append to the ``latestOffset`` that shows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from benchmarks.report.figures import Figure
from bk_core import blocking
from bk_core.logs.model.head import PublishId

if TYPE_CHECKING:
    from bk_core.blocking.logs import LogLeader
    from bk_spark.stream.stream_reader import StreamReader

Offset = dict[str, Any]

ROUNDS = 500
PAUSE_S = 0.005
"""Between appends: the writer is idle each time, which is the harder case (RULES P9)."""
POLL_S = 0.0005
TIMEOUT_S = 10.0


def figures(uri: str) -> list[Figure]:
    """The figure of issue 6, p99 ≤ 50 ms, for one log and for one among a hundred."""
    return [
        Figure(
            f"ack to latestOffset, p99, {quiet + 1} logs watched",
            "ms",
            [float(np.percentile(ack_to_offset(uri, quiet_logs=quiet), 99)) * 1000],
            wanted=50.0,
            less_is_better=True,
        )
        for quiet in (0, 99)
    ]


def ack_to_offset(uri: str, *, rounds: int = ROUNDS, quiet_logs: int = 0) -> list[float]:
    """Seconds from an append's return to the first ``latestOffset`` beyond it, for each of ``rounds`` entries, while
    ``quiet_logs`` other logs are watched by the same stream. Makes logs of a random name and leaves them."""
    name = f"latency-{uuid4().hex[:12]}"
    with blocking.connect(uri) as bookkeeper:
        for number in range(quiet_logs):
            log = bookkeeper.log(f"{name}-{number}")
            log.open_or_create()
            log.publish([], PublishId.job(name))
        with bookkeeper.log(f"{name}-led").lead() as leader:
            leader.append(b"first")
            reader = _reader(uri, f"{name}-.*")
            try:
                start = reader.initialOffset()
                _wait_until_seen(reader, start, f"{name}-led", leader.next_offset)
                return [_round(leader, reader, start, f"{name}-led") for _ in range(rounds)]
            finally:
                reader.stop()


def _reader(uri: str, pattern: str) -> StreamReader:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from bk_spark.options.options import Use, parse_options
    from bk_spark.stream.stream_reader import StreamReader

    given = {"metadataserviceuri": uri, "logpattern": pattern, "startingoffsets": "earliest"}
    return StreamReader(parse_options(given, Use.STREAM), StructType([StructField("value", BinaryType())]))


def _round(leader: LogLeader, reader: StreamReader, start: Offset, log: str) -> float:
    time.sleep(PAUSE_S)
    offset = leader.append(b"x" * 100)
    began = time.perf_counter()
    _wait_until_seen(reader, start, log, offset + 1)
    return time.perf_counter() - began


def _wait_until_seen(reader: StreamReader, start: Offset, log: str, end: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while reader.latestOffset(start, None)["logs"][log]["next"] < end:
        if time.monotonic() > deadline:
            raise TimeoutError(f"entry {end - 1} of {log} was not seen within {TIMEOUT_S} s")
        time.sleep(POLL_S)
