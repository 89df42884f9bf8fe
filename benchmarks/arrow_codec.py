# SPDX-License-Identifier: Apache-2.0
"""What codec ``arrow`` costs by itself, without Spark and a cluster: rows to entries, and entries to rows.

``python -m benchmarks.arrow_codec [RUNS]`` prints CPU milliseconds for a batch of twenty columns, the least and the
median of the runs; wall time would say more of the machine's other work. Each case is also told in bytes written.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.entries.batch import EntryBatch
from bk_spark import codecs
from bk_spark.codecs import LedgerAt
from bk_spark.options.options import Use, parse_options

ROWS = 100_000
ROWS_AT_ONCE = 10_000
SMALL_BATCHES, SMALL_ROWS = 300, 10
FEW = ("long_0", "text_0", "at")


def rows_of_twenty_columns(rows: int) -> pa.RecordBatch:
    """Like the table of ``benchmarks/spark/columns.py``: what no encoding makes small."""
    random = np.random.default_rng(4711)

    def hashes() -> Any:
        return random.integers(-(1 << 63), 1 << 63, rows, dtype=np.int64)

    def text() -> pa.Array:
        digits = np.frombuffer(random.bytes(8 * rows).hex().upper().encode(), dtype=np.dtype((np.bytes_, 16)))
        return pc.cast(pa.array(digits), pa.string())

    columns: dict[str, pa.Array] = {f"long_{n}": pa.array(hashes()) for n in range(5)}
    columns |= {f"int_{n}": pa.array((hashes() % 1_000_000).astype(np.int32)) for n in range(4)}
    columns |= {f"double_{n}": pa.array(hashes() / 1e9) for n in range(4)}
    columns |= {f"text_{n}": text() for n in range(3)}
    columns["amount"] = pc.cast(pa.array(hashes() % 100_000_000), pa.decimal128(21, 2)).cast(pa.decimal128(38, 2))
    columns["at"] = pa.array(1_700_000_000_000_000 + hashes() % 100_000_000_000).cast(pa.timestamp("us", tz="UTC"))
    columns["day"] = pa.array((hashes() % 2_000).astype(np.int32) + 18_262).cast(pa.date32())
    columns["yes"] = pa.array(hashes() > 0)
    return pa.RecordBatch.from_pydict(columns)


def cases() -> Iterator[tuple[str, Callable[[], object], int]]:
    """Name, what is timed, and the bytes of its entries."""
    from bk_spark.codecs.spark_types import spark_schema_of

    rows = rows_of_twenty_columns(ROWS)
    schema = spark_schema_of(rows.schema)
    large = [rows.slice(at, ROWS_AT_ONCE) for at in range(0, ROWS, ROWS_AT_ONCE)]
    small = [rows.slice(at * SMALL_ROWS, SMALL_ROWS) for at in range(SMALL_BATCHES)]

    def made(given: list[pa.RecordBatch], compression: str) -> tuple[list[EntryBatch], bytes]:
        how = parse_options(
            {"metadataserviceuri": "zk://x:1/l", "path": "l", "codec": "arrow", "compression": compression}, Use.WRITE
        )
        codec = codecs.entry_codec(how, schema, {"l": {}})
        assert codec.schema is not None
        return [batch for part in given for batch in codec.entries(part)], codec.schema

    def read(entries: list[EntryBatch], stored: bytes, columns: str | None) -> int:
        more = {} if columns is None else {"columns": columns}
        how = parse_options({"metadataserviceuri": "zk://x:1/l", "path": "l", "codec": "arrow", **more}, Use.READ)
        known = {"l": {1: stored}}
        codec = codecs.row_codec(how, codecs.default_schema(how, known), known)
        at = LedgerAt(ledger_id=1, log="l", offset_shift=0, schema=stored)
        return sum(found.num_rows for batch in entries for found in codec.rows(batch, batch.entry_ids(), at))

    for name, given, compression in (
        ("zstd", large, "zstd"),
        ("none", large, "none"),
        (f"{SMALL_ROWS} rows an entry", small, "zstd"),
    ):
        written, stored = made(given, compression)
        entries = [EntryBatch.concat(written)]
        size = entries[0].payload_bytes
        assert read(entries, stored, None) == sum(part.num_rows for part in given)
        yield f"write, {name}", partial(made, given, compression), size
        yield f"read 20 columns, {name}", partial(read, entries, stored, None), size
        yield f"read 3 columns, {name}", partial(read, entries, stored, ",".join(FEW)), size


def main(runs: int) -> None:
    pa.set_cpu_count(1)
    print(f"{'':36} {'least':>9} {'median':>9}   CPU ms; bytes")
    for name, work, size in cases():
        work()
        spent = []
        for _ in range(runs):
            began = time.process_time()
            work()
            spent.append(1000 * (time.process_time() - began))
        print(f"{name:36} {min(spent):9.2f} {statistics.median(spent):9.2f}   {size:,}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
