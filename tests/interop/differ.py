# SPDX-License-Identifier: Apache-2.0
"""``scripts/prove differ``: sends the same random operations to a bookie of Apache's and to one of ours, and compares
the answers.

The pure codecs build and read the frames, without a client. Answers are equal if they mean the same, whatever their
order and their form. If they differ, a rule of ``differ_rules`` must explain it; each rule is a row of
docs/compatibility.md. A difference without a rule ends the run, which prints the seed, and the fewest operations that
still show the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bk_cli.local.cluster import LocalCluster
from bk_core.wire.bookie_rpc.frames import frames
from bk_core.wire.bookie_rpc.status import BY_CODE, Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.interop.differ_operations import EPOCH_OPERATIONS, LEDGERS_AN_EPOCH, WIRES, Burst, Epoch, Operation, Step
from tests.interop.differ_rules import RULES, Said
from tests.interop.jars import MAIN, toolchain
from tests.interop.java_process import FAST
from tests.interop.peers import ApacheCluster
from tests.kit import bookie_requests as make
from tests.trials.harness import Figures, Rounds, Trial

ANSWERS_S = 10.0
SETTLE_S = 0.04
"""The seconds after which polls have arrived and wait at the bookie."""
SILENT_S = 0.3
"""The seconds after which an operation sent alone counts as not answered."""
SHRINKS_MAX = 60
LEDGER_BASES = (4_000_000, 2**31 + 1_000_000, 2**32 + 5_000_000, 2**40)
"""The first ledger ids of epochs. They are far from ids at which numbers get longer, so that the frames of a repeated
epoch have the same length."""

APACHE_CONF = {
    "gcWaitTime": 86_400_000,
    "gcOverreplicatedLedgerWaitTime": 86_400_000,
    "minorCompactionInterval": 172_800,
    "majorCompactionInterval": 604_800,
}
"""Settings that delay garbage collection, which would delete the ledgers of this test because they have no metadata."""

NO_ENTRY = b"\xff" * 8
Address = tuple[str, int]


@dataclass(eq=False)
class Difference(Exception):
    """Answers that differ, and that no rule explains."""

    operation: Operation
    apache: Sequence[Said]
    ours: Sequence[Said]

    def __str__(self) -> str:
        apache, ours = ("; ".join(map(str, said)) or "nothing" for said in (self.apache, self.ours))
        return f"{self.operation}\n  Apache's bookie: {apache}\n  ours: {ours}"


# ── connections ──


class Line(asyncio.Protocol):
    """One connection: the frames that it received, and whether it has ended."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.closed = False
        self._rest = bytearray()
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, address: Address) -> Line:
        _, line = await asyncio.get_running_loop().create_connection(cls, *address)
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        received = bytes(self._rest)
        cut = frames(received, 1 << 30)
        for begin, length in zip(cut.offsets.tolist(), cut.lengths.tolist(), strict=True):
            self.came.append(received[begin : begin + length])
        self._rest = bytearray(received[cut.used :])
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._news.set()

    def send(self, data: bytes) -> None:
        if not self.closed:
            self.transport.write(data)

    async def until(self, count: int, within_s: float) -> None:
        """Wait until ``count`` answers came or the connection ended, at most ``within_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while len(self.came) < count and not self.closed:
                    self._news.clear()
                    await self._news.wait()

    def take(self) -> list[bytes]:
        came, self.came = self.came, []
        return came

    def close(self) -> None:
        self.transport.abort()


# ── what answers say ──


def said_of(content: bytes) -> Said:
    """Return what an answer says. Fields that differ from bookie to bookie, or with time, only count as present or
    absent."""
    if content[:1] == b"\x0a":
        with contextlib.suppress(Exception):
            told = pb.Response.FromString(content)
            return _said_of_v3(told)
    if len(content) < 24:
        return Said("v2", None, repr(content))
    operation, version = content[1] or content[3], content[0]
    code = int.from_bytes(content[4:8], "big", signed=True)
    if operation == 3:
        return Said("v2", None, repr(content))
    last = _id_in(content[24:]) if content[16:24] == NO_ENTRY else None
    told = f"version {version} operation {operation} code {code} {content[8:].hex()}"
    return Said("v2", BY_CODE.get(code), told, last=last)


def _said_of_v3(told: pb.Response) -> Said:
    if told.readResponse.HasField("lacUpdateTimestamp"):
        told.readResponse.lacUpdateTimestamp = 1
    for name in ("totalDiskCapacity", "freeDiskSpace"):
        if told.getBookieInfoResponse.HasField(name):
            setattr(told.getBookieInfoResponse, name, 1)
    inner = next((body.status for _, body in told.ListFields() if hasattr(body, "status")), 0)
    listed = told.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
    lac = _id_in(told.readLacResponse.lacBody)
    last = _id_in(told.readResponse.body if told.readResponse.entryId == -1 else told.readLacResponse.lastEntryBody)
    return Said("v3", Status(told.status or inner), " ".join(str(told).split()), lac, last=last, listed=listed)


def _id_in(entry: bytes) -> int | None:
    """Return the id in Apache's header. For an explicit LAC this is the LAC."""
    return int.from_bytes(entry[8:16], "big", signed=True) if entry else None


def key_of(content: bytes, wire: int) -> object:
    """Return the key of the operation that is answered."""
    if content[:1] == b"\x0a" and wire == 3:
        return pb.Response.FromString(content).header.txnId
    operation = content[1] or content[3]
    if operation == 7:
        return "batch", int.from_bytes(content[24:32], "big", signed=True)
    ids = (int.from_bytes(content[at : at + 8], "big", signed=True) for at in (8, 16))
    return "add" if operation == 1 else "read", *ids


# ── two bookies ──


class Pair:
    """Sends the same operations to both bookies."""

    def __init__(self, apache: Address, ours: Address, base: int = 0) -> None:
        self.addresses = apache, ours
        self._bases = base
        self.figures = Figures()
        self.lines: list[tuple[Line, Line]] = []

    def next_base(self, number: int) -> int:
        """Return the first ledger id of an epoch, whose ledgers are not used yet."""
        self._bases += 1
        return LEDGER_BASES[number % len(LEDGER_BASES)] + self._bases * LEDGERS_AN_EPOCH

    async def run(self, seed: int, number: int, operations: int, keep: set[int] | None = None) -> None:
        """Run one epoch, or of its operations only ``keep``. Raises Difference."""
        self.lines = [await self._open() for _ in WIRES]
        try:
            for burst in Epoch(seed, number, self.next_base(number)).bursts(operations):
                await self._burst(_kept(burst, keep) if keep is not None else burst)
        finally:
            for both in self.lines:
                for line in both:
                    line.close()

    async def _open(self) -> tuple[Line, Line]:
        apache, ours = [await Line.open(address) for address in self.addresses]
        return apache, ours

    async def _send(self, steps: Sequence[Step]) -> None:
        for number, step in enumerate(steps):
            for connection, asked in step.items():
                data = b"".join([one.frame for one in asked])
                for line in self.lines[connection]:
                    line.send(data)
            if number < len(steps) - 1:
                await asyncio.sleep(SETTLE_S)

    async def _burst(self, burst: Burst) -> None:
        await self._send(burst.steps)
        asked_of: Step = {}
        for step in burst.steps:
            for connection, asked in step.items():
                asked_of.setdefault(connection, []).extend(asked)
        for connection, asked in asked_of.items():
            for line in self.lines[connection]:
                await line.until(len(asked), ANSWERS_S)
            self._compare(connection, asked)
        for one in burst.loose:
            await self._alone(one)

    def _compare(self, connection: int, asked: list[Operation]) -> None:
        apache, ours = (self._by_key(line.take(), WIRES[connection]) for line in self.lines[connection])
        by_key: dict[object, list[Operation]] = {}
        for one in asked:
            by_key.setdefault(one.key, []).append(one)
        for key, same in by_key.items():
            left, right = apache.pop(key, []), ours.pop(key, [])
            self.figures.counts["operations"] += len(same)
            for one in same:
                self.figures.table("operation")[one.kind] += 1
            if left != right:
                self._differ(same, left, right)
        for contents in (*apache.values(), *ours.values()):
            raise AssertionError(f"an answer that nobody asked: {contents[0].hex()}")

    def _by_key(self, came: list[bytes], wire: int) -> dict[object, list[bytes]]:
        found: dict[object, list[bytes]] = {}
        for content in came:
            found.setdefault(key_of(content, wire), []).append(content)
        return found

    def _differ(self, asked: list[Operation], left: list[bytes], right: list[bytes]) -> None:
        """Handle answers that are not the same bytes. Operations of one key may have their answers in any order."""
        apache, ours = (sorted(map(said_of, each), key=str) for each in (left, right))
        if apache != ours:
            self._judge(asked, apache, ours)

    def _judge(self, asked: Sequence[Operation], apache: list[Said], ours: list[Said]) -> None:
        if len(apache) == len(ours):
            pairs = [(a, b) for a, b in zip(apache, ours, strict=True) if a != b]
            rules = [next((rule for rule in RULES for one in asked if rule.fits(one, *pair)), None) for pair in pairs]
            if None not in rules:
                self.figures.table("listed difference").update(rule.name for rule in rules if rule is not None)
                return
        raise Difference(asked[0], apache, ours)

    async def _alone(self, one: Operation) -> None:
        """Send an operation on a connection of its own, and compare the answers, and whether the connection ends."""
        lines = await self._open()
        try:
            said = await asyncio.gather(*(self._ask(line, one) for line in lines))
        finally:
            for line in lines:
                line.close()
        self.figures.counts["operations"] += 1
        self.figures.table("operation")[one.kind] += 1
        apache, ours = said
        if apache != ours:
            self._judge([one], [apache], [ours])

    async def _ask(self, line: Line, one: Operation) -> Said:
        line.send(one.frame)
        await line.until(1, SILENT_S)
        came = line.take()
        if not came:
            return Said("closed" if line.closed else "silent", None)
        said = said_of(came[0])
        if said.wire == "v3":
            line.send(make.info(1))
            await line.until(1, ANSWERS_S)
            said = said._replace(then="closed" if line.closed else "")
        return said


def _kept(burst: Burst, keep: set[int]) -> Burst:
    steps = [
        {connection: [one for one in asked if one.number in keep] for connection, asked in step.items()}
        for step in burst.steps
    ]
    return Burst(burst.number, steps, [one for one in burst.loose if one.number in keep])


# ── a run ──


async def shrunk(pair: Pair, seed: int, number: int, found: Difference) -> list[Operation]:
    """Return the fewest operations found after which the answers to the same operation still differ."""
    last = found.operation.number
    operations = {
        one.number: one
        for burst in Epoch(seed, number, pair.next_base(number)).bursts(last + 1)
        for one in (*(o for step in burst.steps for asked in step.values() for o in asked), *burst.loose)
    }
    tries = 0

    async def fails(keep: set[int]) -> bool:
        nonlocal tries
        tries += 1
        try:
            await pair.run(seed, number, last + 1, keep)
        except Difference as again:
            return again.operation.number == last
        return False

    keep = set(range(last + 1))
    of_ledger = {k for k in keep if operations[k].ledger == operations[last].ledger}
    if await fails(of_ledger):
        keep = of_ledger
    elif not await fails(keep):
        return []
    size = len(keep) // 2
    while size and tries < SHRINKS_MAX:
        ids = sorted(keep - {last})
        for begin in range(0, len(ids), size):
            without = keep - set(ids[begin : begin + size])
            if tries < SHRINKS_MAX and await fails(without):
                keep = without
        size //= 2
    return [operations[k] for k in sorted(keep)]


async def differ(pair: Pair, operations: int, seed: int, epoch: int) -> Figures:
    """Run an epoch. Its figures have a problem if answers differ and no rule explains it."""
    pair.figures = figures = Figures(rounds=1)
    try:
        await pair.run(seed, epoch, operations)
    except Difference as found:
        few = await shrunk(pair, seed, epoch, found)
        steps = "".join(f"\n  {one}" for one in few) or " it does not show again: a race, or the time"
        figures.problems.append(f"{found}\nfewest operations that show it:{steps}")
    return figures


@contextlib.contextmanager
def two_bookies(
    version: str, path: Path, uri: str | None = None, *, flags: Sequence[str] = FAST
) -> Iterator[tuple[Address, Address]]:
    """Run a bookie of each kind, with this ZooKeeper or one of their own, and yield their addresses."""
    port = 0 if uri is None else None
    with LocalCluster(path / "ours", bookies=1, port=0, zookeeper_port=port, zookeeper_uri=uri) as ours:
        zookeeper = ours.uri.split("/")[2]
        with ApacheCluster(toolchain(version), zookeeper, path / "apache", flags=flags) as apache:
            (bookie,) = apache.start(1, APACHE_CONF)
            yield bookie.address, ("127.0.0.1", ours.bookies[0].port)


class DifferProof(Trial):
    name = "differ"
    about = "The same random operations to a bookie of Apache's and to one of ours: equal answers, or a listed rule."
    unit = "epoch"
    rounds = None
    world_rounds = 1_000_000

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--operations", type=int, default=100_000, metavar="N", help="so many in all")
        parser.add_argument("--version", default=MAIN, help=f"of Apache's bookie, by default {MAIN}")

    def next(self, figures: Figures) -> int | None:
        return figures.rounds if figures.counts["operations"] < self.ask.operations else None

    @contextlib.contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Rounds]:
        with two_bookies(self.ask.version, path) as both:
            pair = Pair(*both)
            yield Rounds(lambda epoch: asyncio.run(differ(pair, EPOCH_OPERATIONS, self.ask.seed, epoch)))
