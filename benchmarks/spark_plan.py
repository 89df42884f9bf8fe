# SPDX-License-Identifier: Apache-2.0
"""The cost of a log with very many ledgers: planning 100,000 extents on the driver.

Planning is measured in a process of its own, so that its memory can be measured: from the log's head to the partitions
as the bytes that Spark keeps. The metadata store is in memory, so that our work is measured, not the network. ``python
-m benchmarks.spark_plan [EXTENTS]`` prints one such run as JSON.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.report.figures import Figure
from bk_core.logs.model.head import LogHead

EXTENTS = 100_000
PLAN_S_MAX = 5.0
PLAN_MIB_MAX = 500.0
ROWS_PER_LEDGER = 100
ROW_BYTES = 100
BOOKIES = tuple(f"bookie-{i}.example.org:3181" for i in range(12))
LOG = "many"


def planning_figures(runs: int, scale: float = 1.0) -> list[Figure]:
    """Measure seconds and memory of planning a log of 100,000 extents, each run in a process of its own."""
    extents = max(1, int(EXTENTS * scale))
    command = [sys.executable, "-m", "benchmarks.spark_plan", str(extents)]
    found = []
    for _ in range(runs):
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
        found.append(json.loads(done.stdout))
    full = scale >= 1
    note = f"{extents:,} extents of 100 rows, metadata in memory; {found[0]['partition_bytes']:,} bytes of partitions"
    return [
        Figure(
            "spark_plan",
            "s",
            [each["seconds"] for each in found],
            lane="memory",
            wanted=PLAN_S_MAX if full else None,
            less_is_better=True,
            note=note,
        ),
        Figure(
            "spark_plan_memory",
            "MiB",
            [each["mib"] for each in found],
            lane="memory",
            wanted=PLAN_MIB_MAX if full else None,
            less_is_better=True,
            note="the process's peak above what it took before planning",
        ),
    ]


# --- one run of planning ----------------------------------------------------------------------------------------------


def measure_planning(extents: int) -> dict[str, float]:
    """Plan a log of ``extents`` extents once. Return the seconds, the MiB and the bytes of the partitions."""
    from bk_core import blocking
    from bk_core.client import BookKeeper, ClientConfig
    from bk_core.transport.caller import Caller
    from bk_core.transport.lanes import LaneTransport
    from tests.kit.memory_store import MemoryCluster, MemoryStore

    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn")
    ) as elsewhere:  # the memory for making it is not counted
        head, pages = elsewhere.submit(_log_records, extents).result()
    cluster = MemoryCluster()
    _fill(MemoryStore(cluster), head, pages)

    async def client() -> BookKeeper:
        store = MemoryStore(cluster)
        instance_id = store.instance_id()
        return BookKeeper(store, LaneTransport(Caller(instance_id)), instance_id=instance_id, config=ClientConfig())

    with blocking.BookKeeper(client) as bookkeeper:
        _plan(bookkeeper, 10)  # imports
        before, began = _memory_kib("VmRSS"), time.perf_counter()
        partitions = _plan(bookkeeper, None)
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "mib": (_memory_kib("VmHWM") - before) / 1024,
            "partitions": len(partitions),
            "partition_bytes": sum(map(len, partitions)),
        }


def _plan(bookkeeper: Any, stop: int | None) -> Sequence[bytes]:
    """Return the partitions as Spark keeps them, of offsets up to ``stop``."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from bk_spark import codecs
    from bk_spark.options.options import Use, parse_options
    from bk_spark.plan import resolve
    from bk_spark.read import tasks

    ending = {} if stop is None else {"endingoffsets": json.dumps({LOG: stop})}
    options = parse_options({"metadataserviceuri": "zk://localhost:2181/ledgers", "log": LOG, **ending}, Use.READ)
    codec = codecs.row_codec(options, StructType([StructField("value", BinaryType())]))
    resolved = resolve.resolve_batch(bookkeeper, options)
    return [pickle.dumps(plan) for plan in tasks.task_plans(bookkeeper, options, resolved, codec)]


def _fill(store: Any, head: bytes, pages: Mapping[str, bytes]) -> None:
    """Fill a cluster with one log and no ledgers."""
    from bk_core.model import BookieServiceInfo

    store.initialize_cluster()
    for bookie in BOOKIES:
        store.register_bookie(BookieServiceInfo(bookie))
    store.create_log(LOG, head)
    for name, data in pages.items():
        store.create_page(LOG, name, data)


def _log_records(count: int) -> tuple[bytes, dict[str, bytes]]:
    """Return the head and pages of a log of ``count`` sealed extents. Planning does not read their ledgers."""
    from bk_core.entries.digest import ledger_key
    from bk_core.logs.model.codec import encode_head
    from bk_core.logs.model.head import Extent
    from bk_core.logs.model.paging import fit
    from bk_core.logs.store import nonce
    from bk_core.model import DigestType, Fragment

    extents = tuple(
        Extent(
            ledger_id=10**9 + 7 * i,
            entry_count=ROWS_PER_LEDGER,
            size_bytes=ROWS_PER_LEDGER * ROW_BYTES,
            base_offset=i * ROWS_PER_LEDGER,
            created_ms=1_700_000_000_000 + 1000 * i,
            ensemble_size=3,
            write_quorum_size=3,
            ack_quorum_size=2,
            fragments=(Fragment(0, tuple(BOOKIES[(i + k) % len(BOOKIES)] for k in range(3))),),
        )
        for i in range(count)
    )
    empty = LogHead(uuid=str(uuid4()), created_ms=1, digest_type=DigestType.CRC32C, ledger_key=ledger_key(b""))
    change = fit(replace(empty, next_offset=count * ROWS_PER_LEDGER, tail=extents), nonce)
    return encode_head(change.head), {new.name: new.data for new in change.new_pages}


def _memory_kib(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if name in line)
    return int(line.split()[1])


if __name__ == "__main__":
    print(json.dumps(measure_planning(int(sys.argv[1]) if len(sys.argv) > 1 else EXTENTS)))
