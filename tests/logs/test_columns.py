# SPDX-License-Identifier: Apache-2.0
"""Logs as Arrow columns, without Spark: appending tables, and reading every codec, over bookies in memory."""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import duckdb
import pandas
import pyarrow as pa
import pytest

from bk_core.blocking import BookKeeper as BlockingBookKeeper
from bk_core.blocking.logs import NamedLog as BlockingNamedLog
from bk_core.client import BookKeeper
from bk_core.columns import envelope_bytes
from bk_core.errors import (
    CorruptEntryError,
    InvalidArgumentError,
    LogHasLeaderError,
    NoSuchEntryError,
    NoSuchLogError,
    SchemaMismatchError,
    WrongDigestTypeError,
)
from bk_core.logs.model.head import COMPRESSIONS, PublishId
from bk_core.logs.named_log import NamedLog
from bk_core.model import DigestType
from tests.kit.canaries import PASSWORD
from tests.kit.memory_cluster import MemoryBookKeeper, blocking_cluster
from tests.kit.waiting import until
from tests.logs.leader_kit import ledger, log_of, one_log, publish

EVERY_TYPE = pa.table(
    {
        "yes": pa.array([True, None, False]),
        "long": pa.array([1, None, -(2**63)], pa.int64()),
        "short": pa.array([1, None, -(2**15)], pa.int16()),
        "real": pa.array([0.5, None, float("inf")], pa.float64()),
        "text": pa.array(["a", None, "é" * 40]),
        "bytes": pa.array([b"", None, b"\xff" * 40]),
        "amount": pa.array([Decimal("1.20"), None, Decimal("-9.99")], pa.decimal128(12, 2)),
        "day": pa.array([dt.date(2026, 1, 31), None, dt.date(1, 1, 1)]),
        "at": pa.array([0, None, 1], pa.timestamp("us", tz="UTC")),
        "local": pa.array([0, None, 1], pa.timestamp("us")),
        "spans": pa.array([1, None, 2], pa.duration("us")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.field("element", pa.int32()))),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "struct": pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int64())])),
    }
)


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(first, first + count), pa.int64()), "s": [f"row {n}" for n in range(count)]})


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.rule("K8")
async def test_a_table_comes_back_as_it_was(compression: str) -> None:
    async with one_log() as (_cluster, _bookkeeper, log):
        large = pa.concat_tables([EVERY_TYPE] * 3000).combine_chunks()
        first = await log.append_arrow(EVERY_TYPE, compression=compression)
        second = await log.append_arrow(large, compression=compression)
        assert (first, second.start) == (range(1), 1)
        assert (await log.to_arrow()).combine_chunks() == pa.concat_tables([EVERY_TYPE, large]).combine_chunks()
        assert (await log.to_arrow(first.start, first.stop)).equals(EVERY_TYPE)
        assert (await log.to_arrow(second.start)).num_rows == large.num_rows
        assert (await log.to_arrow(1, 1)).num_rows == 0


async def test_columns_come_in_the_order_asked_for_and_with_where_they_are_from() -> None:
    async with one_log() as (_cluster, _bookkeeper, log):
        await log.append_arrow(numbers(0, 2))
        await log.append_arrow(numbers(2, 2))
        columns = ["s", "offset", "row_index", "n", "log"]
        found = await log.to_arrow(columns=columns)
        assert found.column_names == columns
        assert found.to_pydict() == {
            "s": ["row 0", "row 1"] * 2,
            "offset": [0, 0, 1, 1],
            "row_index": [0, 1, 0, 1],
            "n": [0, 1, 2, 3],
            "log": ["events"] * 4,
        }
        assert (await log.to_arrow(1, columns=["offset"])).to_pydict() == {"offset": [1, 1]}
        for wrong in (["n", "n"], [], "n"):
            with pytest.raises(InvalidArgumentError, match="each once"):
                await log.to_arrow(columns=wrong)
        with pytest.raises(InvalidArgumentError, match="did you mean offset"):
            await log.to_arrow(columns=["ofset"])


@pytest.mark.rule("K8")
async def test_a_log_keeps_its_columns_and_takes_new_ones_only_when_asked() -> None:
    async with one_log() as (_cluster, _bookkeeper, log):
        await log.append_arrow(numbers(0, 2))
        wider = pa.table({"more": [1.5], "s": ["x"], "n": [9]})
        with pytest.raises(SchemaMismatchError, match="merge_schema=True"):
            await log.append_arrow(wider)
        with pytest.raises(SchemaMismatchError, match="s is missing"):
            await log.append_arrow(pa.table({"n": [1]}), merge_schema=True)
        with pytest.raises(SchemaMismatchError, match="n is utf8 and was int64"):
            await log.append_arrow(pa.table({"n": ["1"], "s": ["x"]}), merge_schema=True)
        assert await log.append_arrow(wider, merge_schema=True) == range(1, 2)
        assert await log.append_arrow(wider.slice(0, 0)) == range(2, 2)
        assert (await log.to_arrow()).to_pydict() == {
            "n": [0, 1, 9],
            "s": ["row 0", "row 1", "x"],
            "more": [None, None, 1.5],
        }
        assert (await log.to_arrow(0, 1, ["more"])).to_pydict() == {"more": [None, None]}
        assert len(await log.schemas()) == 2


async def test_types_that_say_the_same_are_one_type_in_the_log_and_others_are_refused() -> None:
    async with one_log() as (_cluster, _bookkeeper, log):
        given = pa.table(
            {
                "a": pa.DictionaryArray.from_arrays([0, 1, 0], pa.array(["x", "y"], pa.string_view())),
                "b": pa.array(["x", "y", "z"], pa.large_string()),
                "c": pa.array([1, 2, 2**32 - 1], pa.uint32()),
                "d": pa.array([0, 1000, 2000], pa.timestamp("ns", tz="Europe/Berlin")),
                "e": pa.array([[1], [2], [3]], pa.large_list(pa.int32())),
            }
        )
        await log.append_arrow(given)
        found = await log.to_arrow()
        assert [str(field.type) for field in found.schema] == [
            "string",
            "string",
            "int64",
            "timestamp[us, tz=UTC]",
            "list<element: int32>",
        ]
        assert found.column("c").to_pylist() == [1, 2, 2**32 - 1]
        assert found.column("d").cast(pa.int64()).to_pylist() == [0, 1, 2]
        refused = {"u": pa.array([1], pa.uint64()), "n": pa.nulls(1), "l": pa.array([[None]])}
        with pytest.raises(InvalidArgumentError, match="u uint64, n null, l list<item: null>"):
            await log.append_arrow(pa.table(refused))
        with pytest.raises(InvalidArgumentError, match="names of columns that a read adds"):
            await log.append_arrow(pa.table({"offset": [1]}))
        with pytest.raises(InvalidArgumentError, match="also if case is ignored"):
            await log.append_arrow(pa.table({"a": [1], "A": [1]}))
        with pytest.raises(InvalidArgumentError, match="stream interface"):
            await log.append_arrow([1, 2])
        with pytest.raises(InvalidArgumentError, match="no such compression"):
            await log.append_arrow(given, compression="gzip")


async def test_an_append_that_fails_leaves_no_rows_and_no_ledger() -> None:
    async with one_log() as (cluster, _bookkeeper, log):
        schema = pa.schema([("at", pa.timestamp("ns"))])

        def rows() -> Iterator[pa.RecordBatch]:
            for first in range(4):
                at = pa.array([1000 * n for n in range(600_000)], pa.timestamp("ns"))
                yield pa.record_batch([at if first < 3 else pa.array([1], pa.timestamp("ns"))], schema=schema)

        with pytest.raises(InvalidArgumentError, match="column at do not fit"):
            await log.append_arrow(pa.RecordBatchReader.from_batches(schema, rows()))
        assert list(cluster.store.list_ledgers()) == []
        assert (await log.to_arrow()).num_rows == 0


@pytest.mark.rule("N2")
async def test_an_append_is_refused_before_it_writes_where_it_cannot_be_published() -> None:
    async with one_log() as (cluster, _bookkeeper, log):
        async with await log.lead(digest_type=DigestType.CRC32C) as leader:
            before = list(cluster.store.list_ledgers())
            with pytest.raises(LogHasLeaderError):
                await log.append_arrow(numbers(0, 1))
            await leader.append(b"x")
        with pytest.raises(InvalidArgumentError, match="another codec"):
            await log.append_arrow(numbers(0, 1))
        with pytest.raises(WrongDigestTypeError):
            await log.append_arrow(numbers(0, 1), digest_type=DigestType.MAC)
        assert list(cluster.store.list_ledgers()) == before


async def test_entries_of_each_codec_become_its_columns() -> None:
    async with one_log() as (_cluster, bookkeeper, _log):
        raw = NamedLog(bookkeeper, "raw", password=PASSWORD)
        await publish(bookkeeper, raw, b"a", b"", b"\xff")
        assert (await raw.to_arrow()).to_pydict() == {"offset": [0, 1, 2], "value": [b"a", b"", b"\xff"]}
        assert (await raw.to_arrow(1, columns=["entry_length", "value"])).to_pydict() == {
            "entry_length": [0, 1],
            "value": [b"", b"\xff"],
        }
        envelopes = NamedLog(bookkeeper, "envelopes", password=PASSWORD)
        made = envelope_bytes.encode(
            pa.array([b"k", None], pa.binary()),
            pa.array([b"v", b"w"], pa.binary()),
            pa.array([1, 2], envelope_bytes.TIMESTAMP),
            pa.array([[{"key": "h", "value": b"1"}], None], envelope_bytes.HEADERS_TYPE),
        )
        await publish(bookkeeper, envelopes, *made.to_pylist(), codec="envelope")
        found = await envelopes.to_arrow()
        assert found.column_names == ["offset", "key", "value", "timestamp", "headers"]
        assert found.column("key").to_pylist() == [b"k", None]
        assert found.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None]
        objects = NamedLog(bookkeeper, "objects", password=PASSWORD)
        await publish(bookkeeper, objects, b'{"value": 1, "b": "x"}', b'{"b": "y"}', codec="json")
        assert (await objects.to_arrow(columns=["value"])).to_pydict() == {
            "value": ['{"value": 1, "b": "x"}', '{"b": "y"}']
        }
        members = pa.schema([("value", pa.int64())])
        assert (await objects.to_arrow(schema=members)).to_pydict() == {"offset": [0, 1], "value": [1, None]}
        with pytest.raises(InvalidArgumentError, match="codec json"):
            await raw.to_arrow(schema=members)


async def test_entries_of_several_codecs_are_read_apart_or_as_bytes() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await publish(bookkeeper, log, b"{}")
        await publish(bookkeeper, log, b'{"a": 1}', codec="json")
        with pytest.raises(InvalidArgumentError, match="written with json, raw"):
            await log.to_arrow()
        with pytest.raises(InvalidArgumentError, match="cannot be read together"):
            await log.to_arrow(codec="envelope")
        with pytest.raises(InvalidArgumentError, match="no such codec"):
            await log.to_arrow(codec="avro")
        assert (await log.to_arrow(codec="raw")).column("value").to_pylist() == [b"{}", b'{"a": 1}']
        members = pa.schema([("a", pa.int64())])
        assert (await log.to_arrow(codec="json", schema=members)).column("a").to_pylist() == [None, 1]
        assert (await log.to_arrow(1)).to_pydict() == {"offset": [1], "value": ['{"a": 1}']}


@pytest.mark.parametrize(
    ("codec", "bad", "schema"),
    [
        ("json", b"\xff", None),
        ("json", b'{"a": ', pa.schema([("a", pa.int64())])),
        ("envelope", b"short", None),
        ("arrow", b"no directory", None),
    ],
)
async def test_an_entry_that_cannot_be_decoded_is_named(codec: str, bad: bytes, schema: pa.Schema | None) -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        if codec == "arrow":
            await log.append_arrow(numbers(0, 1))
            extent = replace(await ledger(bookkeeper, log, bad, codec=codec), schema_number=1)
            await log.publish([extent], PublishId.job("bad"))
        else:
            await publish(bookkeeper, log, b"{}", bad, codec=codec)
        with pytest.raises(CorruptEntryError, match=f"offset {1 if codec != 'envelope' else 0} of log events"):
            await log.to_arrow(codec=codec, schema=schema)


async def test_offsets_that_cannot_be_read_are_refused() -> None:
    async with one_log() as (_cluster, _bookkeeper, log):
        with pytest.raises(NoSuchLogError):
            await log.to_arrow()
        for first in range(3):
            await log.append_arrow(numbers(first, 1))
        with pytest.raises(InvalidArgumentError, match="readable: 0 to 3"):
            await log.to_arrow(0, 4)
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            await log.to_arrow(2, 1)
        await log.trim(2)
        with pytest.raises(NoSuchEntryError, match="read from offset 2"):
            await log.to_arrow(0)
        assert (await log.to_arrow(columns=["n"])).to_pydict() == {"n": [2]}


async def test_entries_that_a_leader_has_confirmed_are_read_too() -> None:
    async with one_log() as (_cluster, _bookkeeper, log), await log.lead() as leader:
        await leader.append(b"one")
        await leader.append(b"two")
        while await log.end_offset() < 2:
            await asyncio.sleep(0.005)
        found = await log.to_arrow(columns=["value", "ledger_closed"])
        assert found.to_pydict() == {"value": [b"one", b"two"], "ledger_closed": [False, False]}


async def test_an_asyncio_program_pulls_a_reader_on_another_thread_only() -> None:
    async with one_log() as (_cluster, _bookkeeper, log):
        await log.append_arrow(numbers(0, 3))
        reader = await log.record_batch_reader(columns=["n"])
        assert reader.schema == pa.schema([("n", pa.int64())])
        assert (await asyncio.to_thread(reader.read_all)).to_pydict() == {"n": [0, 1, 2]}
        with pytest.raises(pa.ArrowInvalid, match=r"\[BK_INVALID_ARGUMENT\].*to_thread"):
            (await log.record_batch_reader()).read_all()


@pytest.fixture
def world() -> Iterator[tuple[MemoryBookKeeper, BlockingBookKeeper]]:
    with blocking_cluster(3) as (client, cluster):
        yield cluster, client


def test_whoever_knows_arrows_stream_interface_reads_and_writes_a_log(
    world: tuple[MemoryBookKeeper, BlockingBookKeeper],
) -> None:
    log = world[1].log("events", password=PASSWORD)
    assert log.append_arrow(pandas.DataFrame({"n": [1, 2, 3], "s": ["a", None, "c"]})) == range(1)
    assert log.append_arrow(duckdb.sql("SELECT 4::BIGINT AS n, 'd' AS s")) == range(1, 2)
    asked = duckdb.from_arrow(log.record_batch_reader()).aggregate("sum(n), max(s)")
    assert asked.fetchall() == [(10, "d")]
    copied = pa.RecordBatchReader.from_stream(log.record_batch_reader()).read_all()
    assert copied.equals(log.to_arrow())
    assert log.to_arrow().to_pandas()["n"].tolist() == [1, 2, 3, 4]


PIECE = pa.table({"bytes": [bytes([n]) * (1 << 19) for n in range(16)]})


def large_log(client: BlockingBookKeeper) -> BlockingNamedLog:
    """A log of eight pieces."""
    log = client.log("events", password=PASSWORD)
    for _ in range(8):
        log.append_arrow(PIECE, compression="none")
    return log


@pytest.mark.long
def test_a_reader_holds_a_part_of_a_large_log_only(world: tuple[MemoryBookKeeper, BlockingBookKeeper]) -> None:
    cluster, client = world
    reader = large_log(client).record_batch_reader()
    first = reader.read_next_batch()
    assert first.column(0)[0].as_py() == b"\0" * (1 << 19)

    async def kill_all() -> None:
        for name in cluster.names:
            cluster.network.kill(name)

    client.begin(lambda _: kill_all()).result(5)
    rest, error = first.nbytes, None
    try:
        for batch in reader:
            rest += batch.nbytes
    except pa.ArrowInvalid as found:
        error = found
    assert "[BK_ENTRY_UNREADABLE]" in str(error)
    assert rest < 5 * PIECE.nbytes


def test_a_reader_of_a_closed_client_says_so(world: tuple[MemoryBookKeeper, BlockingBookKeeper]) -> None:
    _, client = world
    log = client.log("events", password=PASSWORD)
    log.append_arrow(numbers(0, 3))
    reader = log.record_batch_reader()
    client.close()
    with pytest.raises(pa.ArrowInvalid, match=r"\[BK_CLIENT_CLOSED\]"):
        reader.read_all()


class Reads:
    """Counts the reads that a client has under way at its bookies."""

    def __init__(self, client: BlockingBookKeeper) -> None:
        self._client = client

    def under_way(self) -> int:
        async def count(_: BookKeeper) -> int:
            await asyncio.sleep(0)
            reads = ("_advance", "_Reading._run", "_take")
            running = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
            return sum(name.endswith(reads) for name in running)

        return self._client.begin(count).result(5)

    def wait_for_none(self) -> None:
        until(lambda: not self.under_way(), 5, "reads go on")


def begun(client: BlockingBookKeeper) -> tuple[pa.RecordBatchReader, Reads]:
    """A reader of a large log whose first rows were taken, while it reads on."""
    reader, reads = large_log(client).record_batch_reader(), Reads(client)
    reader.read_next_batch()
    assert reads.under_way()
    return reader, reads


def test_closing_a_record_batch_reader_ends_its_reads(world: tuple[MemoryBookKeeper, BlockingBookKeeper]) -> None:
    reader, reads = begun(world[1])
    reader.close()
    reads.wait_for_none()
    with pytest.raises(pa.ArrowInvalid, match="closed"):
        reader.read_next_batch()


def test_leaving_the_block_of_a_record_batch_reader_ends_its_reads(
    world: tuple[MemoryBookKeeper, BlockingBookKeeper],
) -> None:
    reader, reads = begun(world[1])
    with reader:
        pass
    reads.wait_for_none()


@pytest.mark.parametrize("where", ["here", "on the loop"])
def test_a_record_batch_reader_that_is_collected_ends_its_reads_in_silence(
    world: tuple[MemoryBookKeeper, BlockingBookKeeper], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    kept = [begun(world[1])]
    reads = kept[0][1]

    async def drop(_: BookKeeper) -> None:
        kept.clear()

    if where == "here":
        kept.clear()
    else:
        world[1].begin(drop).result(5)
    reads.wait_for_none()
    assert not noise


def test_a_reader_whose_loop_has_ended_says_that_its_client_is_closed() -> None:
    cluster = MemoryBookKeeper(4)

    async def work() -> pa.RecordBatchReader:
        log = log_of(cluster.client())
        await log.append_arrow(numbers(0, 3))
        return await log.record_batch_reader()

    reader = asyncio.run(work())  # nobody closes the client
    with pytest.raises(pa.ArrowInvalid, match=r"this client is closed.*connect again"):
        reader.read_next_batch()
    cluster.store.close()
