# SPDX-License-Identifier: Apache-2.0
"""Some columns of a log, and some rows: the same as from all of them, for fewer bytes."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bk_core.client import BookKeeper
from bk_core.entries.frame import PARTIAL, parse_header
from bk_core.errors import InvalidArgumentError
from bk_core.logs.named_log import NamedLog
from bk_core.model import DigestType
from bk_core.transport.port import ReadPart
from tests.kit.memory_cluster import MemoryBookKeeper
from tests.kit.memory_transport import read_through
from tests.logs.leader_kit import one_log

ROWS = 60_000
RANDOM = np.random.default_rng(7)
TABLE = pa.table(
    {
        "n": pa.array(range(ROWS), pa.int64()),
        **{f"filler_{k}": RANDOM.integers(0, 1 << 62, ROWS) for k in range(12)},
        "name": [None if n % 7 == 0 else f"name {n // 1000:03}" for n in range(ROWS)],
        "half": pa.array(np.arange(ROWS) / 2 - 500.0),
        "day": pa.array((np.arange(ROWS) // 600).astype(np.int32)).cast(pa.date32()),
        "money": pa.array([Decimal(n) / 100 for n in range(ROWS)], pa.decimal128(12, 2)),
        "even": pa.array([n % 2 == 0 for n in range(ROWS)]),
    }
)


class Wire:
    """Counts what bookies send as answers to reads, and how many of the frames are parts."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self.bytes = self.partial = self.whole = 0
        self.transport = bookkeeper.transport
        read_through(self.transport, self.read)

    async def read(self, bookie: str, read: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        async for answer in read(*args, **more):
            if isinstance(answer, ReadPart):
                self.bytes += len(answer.frames)
                is_part = bool(parse_header(answer.frames, flags_known=0xFF).flags & PARTIAL)
                self.partial, self.whole = self.partial + is_part, self.whole + (not is_part)
            yield answer

    def take(self) -> int:
        taken, self.bytes = self.bytes, 0
        return taken


@asynccontextmanager
async def log_and_wire() -> AsyncIterator[tuple[MemoryBookKeeper, NamedLog, Wire]]:
    async with one_log() as (cluster, bookkeeper, log):
        yield cluster, log, Wire(bookkeeper)


@pytest.mark.parametrize("digest_type", [kind for kind in DigestType if kind.has_parts])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("stripes", [3, 4])
async def test_some_columns_cost_their_own_bytes(digest_type: DigestType, compression: str, stripes: int) -> None:
    async with log_and_wire() as (_cluster, log, wire):
        await log.append_arrow(TABLE, compression=compression, digest_type=digest_type, ensemble_size=stripes)
        assert (await log.to_arrow()).equals(TABLE)
        all_bytes = wire.take()
        columns = ["half", "n"]
        assert (await log.to_arrow(columns=columns)).equals(TABLE.select(columns))
        assert wire.partial
        assert wire.take() < 0.25 * all_bytes
        counted = await log.to_arrow(columns=["row_index"])
        assert counted.num_rows == ROWS
        assert wire.take() < 0.01 * all_bytes


@pytest.mark.parametrize(("given", "most"), [(None, 2 << 20), (256 << 10, 256 << 10), ((5 << 20) - 1024, 5 << 20)])
async def test_a_table_fills_entries_up_to_the_wanted_size(given: int | None, most: int) -> None:
    async with log_and_wire() as (_cluster, log, _wire):
        await log.append_arrow(TABLE, compression="none", max_entry_bytes=given)
        lengths = (await log.to_arrow(columns=["entry_length"])).column("entry_length")
        assert most // 2 < pc.max(lengths).as_py() <= most
        assert (await log.to_arrow()).equals(TABLE)


@pytest.mark.parametrize("given", [0, -1, 5 << 20])
async def test_entries_of_an_impossible_size_are_refused(given: int) -> None:
    async with log_and_wire() as (_cluster, log, _wire):
        with pytest.raises(InvalidArgumentError, match="no such size of entries"):
            await log.append_arrow(TABLE, max_entry_bytes=given)


@pytest.mark.parametrize("digest_type", [kind for kind in DigestType if not kind.has_parts])
async def test_where_a_digest_cannot_vouch_for_parts_entries_come_whole(digest_type: DigestType) -> None:
    async with log_and_wire() as (_cluster, log, wire):
        await log.append_arrow(TABLE, digest_type=digest_type)
        assert (await log.to_arrow(columns=["n"], where=[("n", ">=", 100)])).equals(TABLE.select(["n"]).slice(100))
        assert (wire.partial, wire.whole > 0) == (0, True)


@pytest.mark.rule("K8")
async def test_columns_that_older_rows_lack_are_null_there() -> None:
    async with log_and_wire() as (_cluster, log, _wire):
        await log.append_arrow(TABLE)
        more = TABLE.append_column("more", pa.array([1.5] * ROWS))
        await log.append_arrow(more, merge_schema=True)
        found = await log.to_arrow(columns=["more", "n"])
        assert found.column("more").null_count == ROWS
        assert found.slice(ROWS).equals(more.select(["more", "n"]))
        assert (await log.to_arrow(columns=["n"], where=[("more", "==", 1.5)])).equals(TABLE.select(["n"]))
        assert (await log.to_arrow(0, 1, columns=["more"])).column("more").null_count > 0


CONDITIONS: list[tuple[list[tuple[str, str, Any]], Callable[[pa.Table], Any]]] = [
    ([("n", "<", 1000)], lambda t: pc.less(t["n"], 1000)),
    ([("n", ">=", 59_990)], lambda t: pc.greater_equal(t["n"], 59_990)),
    ([("n", "==", 30_000)], lambda t: pc.equal(t["n"], 30_000)),
    ([("n", "in", [5, 59_000])], lambda t: pc.is_in(t["n"], pa.array([5, 59_000]))),
    ([("name", ">", "name 058")], lambda t: pc.greater(t["name"], "name 058")),
    ([("name", "<=", "name 000")], lambda t: pc.less_equal(t["name"], "name 000")),
    ([("half", ">", 29_000.25), ("even", "==", True)], lambda t: pc.and_(pc.greater(t["half"], 29_000.25), t["even"])),
    ([("day", "==", dt.date(1970, 1, 2))], lambda t: pc.equal(t["day"], dt.date(1970, 1, 2))),
    ([("money", "<", Decimal("1.00"))], lambda t: pc.less(t["money"], pa.scalar(Decimal("1.00")))),
    ([("n", ">", 1 << 40)], lambda t: pc.greater(t["n"], 1 << 40)),
    ([("n", "!=", 7), ("n", "<", 10)], lambda t: pc.and_(pc.not_equal(t["n"], 7), pc.less(t["n"], 10))),
]


async def test_rows_are_those_that_meet_all_conditions_and_few_entries_are_read() -> None:
    async with log_and_wire() as (_cluster, log, wire):
        await log.append_arrow(TABLE, compression="none")
        await log.to_arrow(columns=["filler_3", "n"])
        both = wire.take()
        for where, mask in CONDITIONS:
            expected = TABLE.filter(mask(TABLE)).select(["filler_3", "n"])
            found = await log.to_arrow(columns=["filler_3", "n"], where=where)
            assert found.combine_chunks() == expected.combine_chunks(), where
            assert wire.take() < 0.5 * both, where
        assert (await log.to_arrow(where=[("offset", "==", 1)], columns=["offset"])).column(
            "offset"
        ).unique().to_pylist() == [1]
        assert (await log.to_arrow(where=[("even", "!=", True)])).num_rows == ROWS // 2


async def test_conditions_that_make_no_sense_are_refused() -> None:
    async with log_and_wire() as (_cluster, log, _wire):
        await log.append_arrow(TABLE.slice(0, 10))
        refused: list[Any] = [
            [("nobody", "==", 1)],
            [("n", "~", 1)],
            [("n", "==", "one")],
            [("n", "==", None)],
            [("n", "==")],
            "n == 1",
            [("n", "in", 5)],
        ]
        for where in refused:
            with pytest.raises(InvalidArgumentError):
                await log.to_arrow(where=where)


async def test_rows_of_every_codec_can_be_chosen() -> None:
    async with log_and_wire() as (_cluster, log, _wire):
        async with await log.lead() as leader:
            for value in (b"a", b"b", b"c"):
                await leader.append(value)
        found = await log.to_arrow(columns=["value"], where=[("value", "!=", b"b"), ("offset", ">", 0)])
        assert found.to_pydict() == {"value": [b"c"]}


async def test_a_bookie_that_cuts_wrong_bytes_is_passed_over() -> None:
    async with log_and_wire() as (_cluster, log, wire):
        await log.append_arrow(TABLE)
        liars, lies = list[str](), [0]

        async def lying(bookie: str, read: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
            async for answer in read(*args, **more):
                liars[:] = liars or [bookie]  # who is asked first
                if isinstance(answer, ReadPart) and bookie in liars:
                    lies[0] += 1
                    changed = bytearray(answer.frames)
                    changed[-20] ^= 4
                    yield ReadPart(memoryview(bytes(changed)))
                else:
                    yield answer

        read_through(wire.transport, lying)
        assert (await log.to_arrow(columns=["n", "half"])).equals(TABLE.select(["n", "half"]))
        assert lies[0]
