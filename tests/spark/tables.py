# SPDX-License-Identifier: Apache-2.0
"""Makes the rows, ledgers and logs that tests without Spark give to the source and the sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from bk_core.blocking import BookKeeper, LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.logs.model.head import NewExtent, PublishId
from bk_spark.options.options import BkOptions
from bk_spark.workers import clients
from bk_spark.write.log_writer import LogWriter
from tests.kit.extents import new_extent

VALUE = StructType([StructField("value", BinaryType())])
ROUTED = StructType([StructField("log", StringType()), StructField("value", BinaryType())])


def connected(bookkeeper: BookKeeper, request: pytest.FixtureRequest) -> str:
    """Return a URI of the test's own, which this process is connected to already."""
    uri = f"memory://{request.node.name}"
    clients._clients.get((uri, ()), lambda: bookkeeper)
    return uri


@pytest.fixture
def memory_uri(bookkeeper: BookKeeper, request: pytest.FixtureRequest) -> str:
    return connected(bookkeeper, request)


def rows(*values: str, log: Sequence[str | None] | None = None) -> pa.RecordBatch:
    value = pa.array([each.encode() for each in values], pa.binary())
    if log is None:
        return pa.record_batch([value], names=["value"])
    return pa.record_batch([pa.array(log, pa.string()), value], names=["log", "value"])


def job(options: BkOptions, *tasks: pa.RecordBatch, schema: StructType = VALUE, overwrite: bool = False) -> None:
    writer = LogWriter.plan(options, schema, overwrite=overwrite)
    writer.commit([writer.write(iter([task])) for task in tasks])


def values(bookkeeper: BookKeeper, log: str) -> list[str]:
    named = bookkeeper.log(log)
    head = named.head().value
    found = named.read(head.start_offset, head.next_offset)
    return [entry.decode() for _, batch in found for entry in batch.to_list()]


def written(bookkeeper: BookKeeper, count: int, *, close: bool = True, password: bytes = b"") -> LedgerWriter:
    """A ledger of so many entries of ten bytes."""
    ledger = bookkeeper.create_ledger(password=password)
    if count:
        ledger.wait_confirmed(ledger.append_batch(EntryBatch.from_list([b"x" * 10] * count)))
    if close:
        ledger.close()
    return ledger


def closed(bookkeeper: BookKeeper, entries: int | Sequence[bytes]) -> NewExtent:
    """A closed ledger of these entries, or of so many of ten bytes, as a writer reports it."""
    given = [b"x" * 10] * entries if isinstance(entries, int) else list(entries)
    with bookkeeper.create_ledger() as ledger:
        ledger.append_batch(EntryBatch.from_list(given))
    fragments = bookkeeper.read_metadata(ledger.ledger_id).value.fragments
    return new_extent(ledger.ledger_id, len(given), sum(map(len, given)), fragments=fragments)


def publish(bookkeeper: BookKeeper, name: str, *ledgers: int | Sequence[bytes] | NewExtent) -> None:
    """Append ledgers to a log, which is made if need be."""
    log = bookkeeper.log(name)
    log.open_or_create()
    extents = [each if isinstance(each, NewExtent) else closed(bookkeeper, each) for each in ledgers]
    log.publish(extents, PublishId.job(f"{name}/{time.monotonic_ns()}"))


def fails(call: Callable[[], object], kind: type[Exception]) -> bool:
    try:
        call()
    except kind:
        return True
    return False
