# SPDX-License-Identifier: Apache-2.0
"""A program with OpenTelemetry's SDK. It runs in a process of its own, because a process can set a provider only once:
``python -m tests.kit.traced_program FOLDER``. It uses three bookies over each of our lanes, a blocking client, a log,
and the data source as Spark's tasks do. It prints the spans that ended, one JSON object a line."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql.types import BinaryType, StructField, StructType

from bk_core import blocking
from bk_core.client import ClientConfig, connect
from bk_core.entries.batch import EntryBatch
from bk_core.errors import LedgerFencedError, NoSuchLedgerError
from bk_core.metadata import open_store
from bk_spark.options.options import Use, parse_options
from bk_spark.read.ledger_reader import LedgerReader
from bk_spark.write.log_writer import LogWriter
from bookie_server.main import Bookie
from tests.kit.lane_table import OURS
from tests.kit.lanes import bookie_config
from tests.kit.memory_store import MemoryStore as MemoryStore  # for memory://


@contextmanager
def about(name: str) -> Iterator[None]:
    """Run a block in a span of this program."""
    with trace.get_tracer("program").start_as_current_span(name):
        yield


async def ledgers(uri: str, lane: str) -> None:
    async with await connect(uri, config=ClientConfig(lanes=lane)) as client:
        with about(f"{lane} write"):
            # Every bookie acks the first entry before the frames are sent, so that no message carries both.
            writer = await client.create_ledger(ack_quorum_size=3)
            with about(f"{lane} append"):
                await writer.append(b"one")
            await writer.append_batch(EntryBatch.from_list([bytes(1_000)] * 3_000))  # several frames
            await writer.close()
        with about(f"{lane} read"):
            reader = await client.open_ledger(writer.ledger_id, recover=False)
            async for _ in reader.read(0, reader.last_add_confirmed):
                pass
            with suppress(NoSuchLedgerError):
                await client.open_ledger(999, recover=False)
        with about(f"{lane} recover"):
            fenced = await client.create_ledger()
            await fenced.append(b"one")
            await client.open_ledger(fenced.ledger_id, recover=True)
            with suppress(LedgerFencedError):
                await fenced.append(b"two")
        nobodys = await client.create_ledger()
        await nobodys.append(b"one")
        await nobodys.close()


def threads(uri: str) -> None:
    with blocking.connect(uri) as client, about("blocking"), client.create_ledger() as writer:
        writer.append(b"one")


def log(uri: str) -> None:
    with blocking.connect(uri) as client, about("log"):
        with client.log("events").lead() as leader:
            leader.append(b"one")
        client.log("events").trim(1)


def tasks(uri: str) -> None:
    """Do what Spark's driver and workers do, without Spark."""
    options, schema = {"metadataserviceuri": uri, "path": "rows"}, StructType([StructField("value", BinaryType())])
    with about("spark"):
        writer = LogWriter.plan(parse_options(options, Use.WRITE), schema)
        batch = pa.record_batch([pa.array([b"one", b"two"], pa.binary())], names=["value"])
        writer.commit([writer.write(iter([batch]))])
        reader = LedgerReader(parse_options(options, Use.READ), schema)
        rows = sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))
    assert rows == 2


async def main(folder: Path) -> None:
    exporter, uri = InMemorySpanExporter(), f"memory://{uuid.uuid4().hex}"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    async with AsyncExitStack() as stack:
        for number in range(3):
            config = bookie_config(folder / str(number), uri, bookie_id=f"b{number}")
            bookie = await Bookie.start(config, open_store(uri), init_cluster=number == 0)
            stack.push_async_callback(bookie.stop)
        for lane in OURS:
            await ledgers(uri, lane)
        for blocked in (threads, log, tasks):
            await asyncio.to_thread(blocked, uri)
    for span in exporter.get_finished_spans():
        print(json.dumps(as_object(span)))


def as_object(span: ReadableSpan) -> dict[str, object]:
    said = span.get_span_context()
    assert said is not None
    return {
        "name": span.name,
        "trace": said.trace_id,
        "span": said.span_id,
        "parent": span.parent.span_id if span.parent is not None else None,
        "attributes": dict(span.attributes or {}),
        "error": span.status.description if span.status.status_code is trace.StatusCode.ERROR else None,
    }


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
