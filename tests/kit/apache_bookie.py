# SPDX-License-Identifier: Apache-2.0
"""A bookie in memory that answers as Apache's bookies do: entry by entry, in any order, with Apache's statuses. It
answers an add once the entry is on disk. It answers a fence that finds no entry before the fence is on disk.

:class:`ApacheBookie` has no socket and no clock. :class:`ApacheServer` serves it on a port.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bk_core.entries.digest import crc32c
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import AnswerReader, RequestReader
from bk_core.wire.bookie_rpc.runs import AddRun, BatchAnswer, BatchRead, ReadRun, Single
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb

Later = Callable[[float, Callable[[], None]], Any]
"""Calls a function after this many seconds."""

HEADER = 32
SPACE_BYTES = 1 << 30


@dataclass
class Ledger:
    key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False
    lac: int = -1
    lac_body: bytes = b""

    @property
    def last(self) -> int:
        return max(self.entries, default=-1)


@dataclass(frozen=True)
class Doing:
    """An operation that was done in memory and waits in the journal's queue. ``act`` does it again, and ``answer``
    answers its request. ``kind`` is ``add``, ``fence``, ``LAC`` or ``force``. For an add, ``entry`` is the entry, and
    ``recovery`` says whether a recovery sent it."""

    kind: str
    act: Callable[[], None]
    answer: Callable[[], None]
    entry: bytes = b""
    recovery: bool = False
    answered: bool = False  # whether the bookie answered before the operation was on disk


class ApacheBookie:
    """The bookie. Everything on disk survives :meth:`kill`. While commits are held, only :meth:`sync` writes to the
    disk.

    ``refuse`` returns the status with which an operation on a ledger and entry is refused, or None. With ``compares``,
    the bookie refuses an add over an entry with another payload, and a wrong LAC body, as our bookies do. Apache's
    accept both. ``batches`` says whether the bookie knows batch reads, as Apache's bookies do since 4.17. ``order``
    shuffles the answers to a burst, and the answers after a sync. ``on_disk`` is called with every operation that
    became durable.
    """

    def __init__(self, later: Later, *, order: random.Random | None = None, compares: bool = False) -> None:
        self._later = later
        self.order, self.compares = order, compares
        self.refuse: Callable[[str, int, int], Status | None] = lambda what, ledger, entry: None
        self.read_only, self.batches = False, True
        self.ledgers: dict[int, Ledger] = {}
        self.asked: dict[str, int] = {}  # number of requests, by operation
        self.held = False
        self.on_disk: Callable[[Doing], None] = lambda doing: None
        self.unsynced: list[Doing] = []
        self._disk: list[Callable[[], None]] = []  # the durable operations in order; calling one does it again
        self._watchers: list[tuple[int, int, Callable[[], None]]] = []

    # --- controls ---

    def kill(self, kept: int = 0) -> None:
        """Kill and restart the process. Operations that were not on disk are lost, except the first ``kept``. These
        reached the disk, but the bookie never answered them."""
        self._written(self.unsynced[:kept])
        self.unsynced.clear()
        self._watchers.clear()
        self.ledgers = {}
        for act in self._disk:
            act()

    def commit(self) -> None:
        """Make everything that was accepted durable, and answer it, unless commits are held."""
        if not self.held:
            self.sync(len(self.unsynced))

    def sync(self, count: int) -> None:
        """Make the first ``count`` accepted operations durable, and answer them."""
        done, self.unsynced = self.unsynced[:count], self.unsynced[count:]
        self._written(done)
        if self.order:
            self.order.shuffle(done)
        for doing in done:
            doing.answer()

    def _written(self, done: list[Doing]) -> None:
        for doing in done:
            self._disk.append(doing.act)
            self.on_disk(doing)

    def release(self) -> None:
        self.held = False
        self.commit()

    def forget(self, ledger_id: int) -> None:
        """Delete everything of a ledger, even its fence, as garbage collection does."""

        def act() -> None:
            self.ledgers.pop(ledger_id, None)

        act()
        self._disk.append(act)

    def damage(self, ledger_id: int, entry_id: int, bit: int) -> None:
        """Flip a bit of an entry at rest. This bookie has no checksum that finds it."""

        def act() -> None:
            ledger = self.ledgers.get(ledger_id)
            if ledger is not None and entry_id in ledger.entries:
                changed = bytearray(ledger.entries[entry_id])
                changed[bit // 8 % len(changed)] ^= 1 << bit % 8
                ledger.entries[entry_id] = bytes(changed)

        act()
        self._disk.append(act)

    # --- what it does ---

    def _do(self, doing: Doing) -> None:
        doing.act()
        self.unsynced.append(doing)

    def ledger(self, ledger_id: int, key: bytes) -> Ledger:
        return self.ledgers.setdefault(ledger_id, Ledger(key))

    def _count(self, what: str) -> None:
        self.asked[what] = self.asked.get(what, 0) + 1

    def add(
        self,
        entry: bytes,
        ids: tuple[int, int],
        key: bytes,
        recovery: bool,
        answer: Callable[[Status], None],
        *,
        deferred: bool = False,
    ) -> None:
        self._count("deferred add" if deferred else "add")
        if len(entry) < HEADER:
            return answer(Status.EBADREQ)
        ledger_id, entry_id, lac, _ = np.frombuffer(entry[:HEADER], dtype=">i8").tolist()
        if (status := self.refuse("add", ledger_id, entry_id)) is not None:
            return answer(status)
        if self.read_only:
            return answer(Status.EREADONLY)
        known = self.ledgers.get(ledger_id)
        if known and known.fenced and not recovery:
            return answer(Status.EFENCED)
        if known and known.key != key:
            return answer(Status.EUA)
        before = known.entries.get(entry_id) if known else None
        if self.compares and before is not None and before[24:32] + before[36:] != entry[24:32] + entry[36:]:
            return answer(Status.EBADREQ)

        def act() -> None:
            ledger = self.ledger(ledger_id, key)
            ledger.entries[entry_id] = entry
            ledger.lac = max(ledger.lac, lac)

        if deferred:  # answered before the operation is on disk
            self._do(Doing("add", act, lambda: None, entry, recovery, answered=True))
            self._woken(ledger_id)
            return answer(Status.EOK)
        self._do(Doing("add", act, partial(self._answered, ledger_id, answer), entry, recovery))
        return None

    def _answered(self, ledger_id: int, answer: Callable[[Status], None]) -> None:
        answer(Status.EOK)
        self._woken(ledger_id)

    def read(self, ledger_id: int, entry_id: int) -> tuple[Status, bytes, int]:
        self._count("read")
        if (status := self.refuse("read", ledger_id, entry_id)) is not None:
            return status, b"", -1
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return Status.ENOLEDGER, b"", -1
        entry = ledger.entries.get(ledger.last if entry_id == -1 else entry_id)
        return (Status.EOK, entry, ledger.lac) if entry is not None else (Status.ENOENTRY, b"", -1)

    def fencing_read(
        self, ledger_id: int, entry_id: int, key: bytes, answer: Callable[[tuple[Status, bytes, int]], None]
    ) -> None:
        self._count("fence")
        known = self.ledgers.get(ledger_id)
        if not key or (known and known.key != key):
            return answer((Status.EUA, b"", -1))

        def act() -> None:
            self.ledger(ledger_id, key).fenced = True

        act()
        said = self.read(ledger_id, entry_id)
        if said[0] is not Status.EOK:
            self.unsynced.append(Doing("fence", act, lambda: None, answered=True))
            return answer(said)  # Apache's bookies answer before the fence is on disk
        self.unsynced.append(Doing("fence", act, lambda: answer(said)))
        return None

    def write_lac(self, ledger_id: int, key: bytes, body: bytes, answer: Callable[[Status], None]) -> None:
        self._count("write_lac")
        known = self.ledgers.get(ledger_id)
        if self.read_only:
            return answer(Status.EREADONLY)
        if known and known.key != key:
            return answer(Status.EUA)
        if self.compares and (
            int.from_bytes(body[:8], "big") != ledger_id or crc32c(body[:16]) != int.from_bytes(body[16:], "big")
        ):
            return answer(Status.EBADREQ)
        lac = int.from_bytes(body[8:16], "big", signed=True)

        def act() -> None:
            ledger = self.ledger(ledger_id, key)
            if not ledger.lac_body or lac >= int.from_bytes(ledger.lac_body[8:16], "big", signed=True):
                ledger.lac_body = body
            ledger.lac = max(ledger.lac, lac)

        self._do(Doing("LAC", act, partial(self._answered, ledger_id, answer)))
        return None

    def force(self, answer: Callable[[Status], None]) -> None:
        self._count("force")
        if (status := self.refuse("force", -1, -1)) is not None:
            return answer(status)
        self.unsynced.append(Doing("force", lambda: None, lambda: answer(Status.EOK)))
        return None

    def poll(self, ledger_id: int, above: int, timeout_s: float, woken: Callable[[], None]) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.lac > above:
            return woken()
        watcher = (ledger_id, above, woken)
        self._watchers.append(watcher)

        def over() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)
                woken()

        self._later(timeout_s, over)
        return None

    def _woken(self, ledger_id: int) -> None:
        lac = self.ledgers[ledger_id].lac if ledger_id in self.ledgers else -1
        for watcher in [w for w in self._watchers if w[0] == ledger_id and w[1] < lac]:
            self._watchers.remove(watcher)
            watcher[2]()


class ApacheConnection:
    """One client's connection. Bytes from the client go to :meth:`receive`; answers leave through ``write``. ``lie``
    changes the answers."""

    def __init__(self, bookie: ApacheBookie, write: Callable[[bytes], None]) -> None:
        self.bookie, self._write = bookie, write
        self._reader, self._rest = RequestReader(), b""
        self._answers: list[bytes] | None = None  # the answers to the burst that is being handled
        self.gone = False

    def write(self, frame: bytes) -> None:
        if self._answers is not None:
            self._answers.append(frame)
        elif not self.gone:
            self._write(frame)

    def receive(self, data: bytes) -> bool:
        """Handle bytes from the client. Return False if the connection must be closed."""
        data = self._rest + data
        burst = self._reader.read(data)
        self._rest = data[burst.used :]
        self._answers = []
        for item in burst.items:
            if isinstance(item, AddRun):
                self._adds(item)
            elif isinstance(item, ReadRun):
                self._reads(item)
            elif isinstance(item, BatchRead):
                if not self.bookie.batches:
                    return False  # bookies before 4.17 do not know the operation
                self._batch(item)
            else:
                self._single(item)
        self.bookie.commit()
        answers, self._answers = self._answers, None
        if self.bookie.order:
            self.bookie.order.shuffle(answers)
        for answer in answers:
            self.write(answer)
        return burst.fault is None

    @property
    def version(self) -> int:
        return self._reader.version

    @property
    def _wire(self) -> Any:
        return v3 if self.version == 3 else v2

    def _adds(self, run: AddRun) -> None:
        entries = list(map(bytes, run.bodies().pieces()))
        keys = [bytes(run.buffer[a : a + n]) for a, n in zip(run.key_offsets, run.key_lengths, strict=True)]
        deferred = (run.write_flags & 1).tolist()
        for k, entry in enumerate(entries):
            ids = int(run.ledger_ids[k]), int(run.entry_ids[k])
            told = partial(self._added, int(run.txns[k]), ids)
            self.bookie.add(entry, ids, keys[k], bool(run.recovery[k]), told, deferred=bool(deferred[k]))

    def _added(self, txn: int, ids: tuple[int, int], status: Status) -> None:
        txns, entry_ids = np.array([txn], dtype=np.uint64), np.array([ids[1]])
        self.write(self._wire.add_answers(txns, ids[0], entry_ids, int(status)))

    def _reads(self, run: ReadRun) -> None:
        asked = list(zip(run.txns.tolist(), run.ledger_ids.tolist(), run.entry_ids.tolist(), strict=True))
        for txn, ledger_id, entry_id in asked:
            self._told(txn, ledger_id, entry_id, self.bookie.read(ledger_id, entry_id))

    def _told(
        self, txn: int, ledger_id: int, entry_id: int, said: tuple[Status, bytes, int], *, lac: bool = True
    ) -> None:
        status, entry, max_lac = said
        txns, ids = np.array([txn], dtype=np.uint64), np.array([entry_id])
        if status is not Status.EOK:
            self.write(self._wire.refused_reads(txns, ledger_id, ids, int(status)))
            return
        bodies = Bodies.of_entries(entry, np.array([len(entry)]))
        self.write(b"".join(self._wire.read_answers(txns, ledger_id, ids, bodies, max_lacs=max_lac if lac else None)))

    def _batch(self, asked: BatchRead) -> None:
        self.bookie._count("batch")
        entries: list[bytes] = []
        size = 36
        while len(entries) < (asked.max_count if asked.max_count > 0 else 1 << 20):
            status, entry, _ = self.bookie.read(asked.ledger_id, asked.first_entry_id + len(entries))
            size += len(entry) + 4
            if status is not Status.EOK or (entries and size > (asked.max_bytes if asked.max_bytes > 0 else 5 << 20)):
                break
            entries.append(entry)
        if not entries:
            self.write(v2.refusal(BatchRead(**{**_fields(asked), "status": status})))
            return
        bodies = Bodies.of_entries(b"".join(entries), np.array([len(e) for e in entries]))
        self.write(b"".join(map(bytes, v2.batch_answer(asked, bodies))))

    def _single(self, single: Single) -> None:
        request, bookie = single.request, self.bookie
        if single.status is not Status.EOK:
            self.write(self._wire.refusal(single))
            return
        match request.header.operation:
            case pb.READ_ENTRY:
                self._read(request)
            case pb.WRITE_LAC:
                call = request.writeLacRequest
                bookie.write_lac(call.ledgerId, call.masterKey, call.body, partial(self._answer, request))
            case pb.READ_LAC:
                self._read_lac(request)
            case pb.FORCE_LEDGER:
                bookie.force(partial(self._answer, request))
            case pb.GET_BOOKIE_INFO:
                answer = v3.answer(request)
                answer.getBookieInfoResponse.totalDiskCapacity = SPACE_BYTES
                answer.getBookieInfoResponse.freeDiskSpace = SPACE_BYTES
                self.write(v3.framed(answer))
            case _:
                self.write(self._wire.refusal(Single(single.frame, request, Status.EBADREQ)))

    def _read(self, request: pb.Request) -> None:
        asked, txn, bookie = request.readRequest, request.header.txnId, self.bookie
        if asked.flag == pb.ReadRequest.FENCE_LEDGER and asked.HasField("flag"):
            told = partial(self._told, txn, asked.ledgerId, asked.entryId, lac=False)
            bookie.fencing_read(asked.ledgerId, asked.entryId, asked.masterKey, told)
            return

        def woken() -> None:
            self._told(txn, asked.ledgerId, asked.entryId, bookie.read(asked.ledgerId, asked.entryId))

        bookie._count("poll")
        bookie.poll(asked.ledgerId, asked.previousLAC, asked.timeOut / 1000, woken)

    def _read_lac(self, request: pb.Request) -> None:
        ledger_id = request.readLacRequest.ledgerId
        ledger = self.bookie.ledgers.get(ledger_id)
        has_lac = bool(ledger and ledger.lac_body)
        status = Status.EOK if ledger and ledger.entries else Status.EIO if has_lac else Status.ENOENTRY
        answer = v3.answer(request, status)
        if ledger and ledger.lac_body:
            answer.readLacResponse.lacBody = ledger.lac_body
        if ledger and ledger.entries:
            answer.readLacResponse.lastEntryBody = ledger.entries[ledger.last]
        self.write(v3.framed(answer))

    def _answer(self, request: pb.Request, status: Status) -> None:
        self.write(v3.framed(v3.answer(request, status)))


def _fields(asked: BatchRead) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in BatchRead.__slots__}


def _entries_in(answer: bytes) -> int:
    (item,) = AnswerReader(2).read(answer).items
    return len(item.bodies) if isinstance(item, BatchAnswer) else 1


class ApacheServer:
    """Serves a bookie on a port of loopback. ``lie`` returns the bytes to send instead of a frame of version 3, and
    ``lie_2`` those instead of a frame of version 2. Each entry takes ``pace_s`` seconds, on any connection, even if the
    client has ended."""

    def __init__(self, bookie: ApacheBookie | None = None) -> None:
        self.bookie = bookie or ApacheBookie(asyncio.get_running_loop().call_later)
        self.lie: Callable[[bytes], Sequence[bytes]] = lambda frame: [frame]
        self.lie_2: Callable[[bytes], Sequence[bytes]] = lambda frame: [frame]
        self.pace_s = 0.0
        self.port = 0
        self._busy_until = 0.0
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> ApacheServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break all connections."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def _write_slowly(self, writer: asyncio.StreamWriter, frame: bytes, entries: int) -> None:
        loop = asyncio.get_running_loop()
        self._busy_until = max(self._busy_until, loop.time()) + self.pace_s * entries
        loop.call_at(self._busy_until, writer.write, frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def write(frame: bytes) -> None:
            for said in (self.lie if connection.version == 3 else self.lie_2)(frame):
                if self.pace_s:
                    self._write_slowly(writer, said, _entries_in(said) if connection.version == 2 else 1)
                else:
                    writer.write(said)

        connection = ApacheConnection(self.bookie, write)
        self._writers.add(writer)
        try:
            while data := await reader.read(1 << 20):
                if not connection.receive(data):
                    break
                await writer.drain()
        except OSError:
            pass
        finally:
            connection.gone = True
            self._writers.discard(writer)
            writer.close()
