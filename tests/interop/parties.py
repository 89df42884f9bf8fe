# SPDX-License-Identifier: Apache-2.0
"""Our client and Apache's behind one interface, so that a story is written once for both.

A *party* is a client library with its wire: ours over gRPC where a bookie offers it (``grpc``) or over Apache's wire
alone (``v3``), or a version of Apache's on ``v3`` or ``v2``. Calls block. The story chooses the bookies of a new
ledger: the first ones are its ensemble, the others replace failed ones.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bk_core.blocking.loop_thread import LoopThread
from bk_core.client import BookKeeper, ClientConfig
from bk_core.client.reading.reader import LedgerReader
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError
from bk_core.metadata import open_store
from bk_core.metadata.tree.store import TreeStore
from bk_core.model import BOOKIE_RPC, BookieId, BookieServiceInfo, DigestType
from bk_core.transport.lanes import LANES, LaneTransport
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, JavaClient, JavaLedger, JavaTail, PeerClient, Read, added

T = TypeVar("T")
CALL_S = 120.0
CHOSEN = "interop.bookies"  # java/Chosen.java
FENCED, NO_LEDGER, PASSWORD_REFUSED = "fenced", "no such ledger", "password refused"

_SAID: Mapping[str, str] = {
    "BK_LEDGER_FENCED": FENCED,
    "LedgerFenced": FENCED,
    "BK_NO_SUCH_LEDGER": NO_LEDGER,
    "NoSuchLedgerExists": NO_LEDGER,
    "NoSuchLedgerExistsOnMetadataServer": NO_LEDGER,
    "BK_WRONG_PASSWORD": PASSWORD_REFUSED,
    "UnauthorizedAccess": PASSWORD_REFUSED,
}

Sizes = tuple[int, int, int]
"""E, Qw, Qa."""


def said(error: BaseException) -> str:
    """Return a word for a refusal that is the same for both libraries."""
    name = error.name if isinstance(error, PeerError) else error.code if isinstance(error, BookKeeperError) else ""
    return _SAID.get(name, f"{name or type(error).__name__}: {error}")


def refusal(call: Callable[[], object]) -> str:
    """Return the refusal of a call, or "nothing" if the call succeeds."""
    try:
        call()
    except (PeerError, BookKeeperError) as error:
        return said(error)
    return "nothing"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a row of adds: how many entries were acknowledged, counted from the first of the row."""

    acked: int
    said: str  # the refusal; empty if all were acknowledged


class Adding(Protocol):
    """Adds under way. :meth:`ended` raises TimeoutError if they do not end in time."""

    def halt(self) -> None:
        """Send no more adds."""

    def ended(self, within_s: float = CALL_S) -> Ended: ...


class Writer(Protocol):
    """A ledger that is open for appending."""

    ledger_id: int

    def add(self, count: int, pattern: Pattern, *, first: int, window: int = 100) -> None:
        """Add entries of the pattern. All are acknowledged when this returns."""

    def begin(self, count: int, pattern: Pattern, *, first: int, window: int, pause_ms: int = 0) -> Adding:
        """Begin to add entries of the pattern, with a pause before each entry."""

    def append(self, payload: bytes) -> None:
        """Append one entry, whatever came before it."""

    def lac(self) -> int:
        """Return the id up to which entries are confirmed. Adds may be under way."""

    def close(self) -> None: ...


class Tail(Protocol):
    """Follows a ledger to its end."""

    def take(self, count: int, *, within_s: float) -> Read: ...


class Reader(Protocol):
    """A ledger that is open for reading. ``lac`` and ``closed`` are as they were when it was opened."""

    lac: int
    closed: bool

    def read(self, first: int, last: int) -> Read: ...
    def tail(self, first: int) -> Tail: ...


class Party(Protocol):
    """A client library and its wire."""

    name: str
    is_ours: bool

    def create(self, bookies: Sequence[str], sizes: Sizes, digest: str) -> Writer: ...
    def open(self, ledger_id: int, digest: str, *, recover: bool, password: bytes = PASSWORD) -> Reader: ...
    def delete(self, ledger_id: int) -> None: ...
    def ledger_ids(self) -> list[int]: ...
    def fragments(self, ledger_id: int) -> dict[int, tuple[str, ...]]:
        """Return first entry ids and ensembles, as this client reads them."""

    def rest(self) -> None:
        """Close everything that the last story left open."""


# --- Apache's ---


class JavaParty:
    """Apache's client. ``peer`` is its JVM, and ``conf`` is additional configuration."""

    is_ours = False

    def __init__(self, peer: PeerClient, uri: str, wire: str, conf: Mapping[str, object], poll_ms: int = 3000) -> None:
        self.name = f"java-{peer.tools.version}/{wire}"
        self._client: JavaClient = peer.client(
            uri, wire=int(wire.removeprefix("v")), conf={"ensemblePlacementPolicy": "Chosen", **conf}
        )
        self._poll_ms = poll_ms

    def create(self, bookies: Sequence[str], sizes: Sizes, digest: str) -> Writer:
        ledger = self._client.create(
            ensemble_size=sizes[0],
            write_quorum_size=sizes[1],
            ack_quorum_size=sizes[2],
            digest=digest,
            custom={CHOSEN: ",".join(bookies).encode()} if bookies else {},
        )
        return JavaWriter(ledger)

    def open(self, ledger_id: int, digest: str, *, recover: bool, password: bytes = PASSWORD) -> Reader:
        ledger = self._client.open(ledger_id, digest=digest, recover=recover, password=password, within_s=CALL_S)
        return JavaReader(ledger, self._poll_ms)

    def delete(self, ledger_id: int) -> None:
        self._client.delete(ledger_id)

    def ledger_ids(self) -> list[int]:
        return self._client.ledger_ids()

    def fragments(self, ledger_id: int) -> dict[int, tuple[str, ...]]:
        ensembles = self._client.metadata(ledger_id)["ensembles"]
        return {int(first): tuple(members) for first, members in ensembles.items()}

    def rest(self) -> None:
        """Do nothing. Open ledgers cost nothing, and the client lives as long as its JVM."""


class JavaWriter:
    def __init__(self, ledger: JavaLedger) -> None:
        self._ledger, self.ledger_id = ledger, ledger.ledger_id

    def add(self, count: int, pattern: Pattern, *, first: int, window: int = 100) -> None:
        self._ledger.add(count, pattern, first=first, window=window)

    def begin(self, count: int, pattern: Pattern, *, first: int, window: int, pause_ms: int = 0) -> Adding:
        future = self._ledger.submit_add(count, pattern, first=first, window=window, pause_ms=pause_ms)
        return JavaAdding(self._ledger, future)

    def append(self, payload: bytes) -> None:
        self._ledger.add_bytes(payload)

    def lac(self) -> int:
        return self._ledger.state().lac

    def close(self) -> None:
        self._ledger.close()


class JavaAdding:
    def __init__(self, ledger: JavaLedger, future: Future[dict[str, Any]]) -> None:
        self._ledger, self._future = ledger, future

    def halt(self) -> None:
        self._ledger.halt()

    def ended(self, within_s: float = CALL_S) -> Ended:
        fields = self._future.result(within_s)
        try:
            added(fields)
        except PeerError as error:
            return Ended(error.acked, said(error))
        return Ended(fields["acked"], "")


class JavaReader:
    def __init__(self, ledger: JavaLedger, poll_ms: int) -> None:
        self._ledger, self._poll_ms = ledger, poll_ms
        self.lac, self.closed = ledger.opened.lac, ledger.opened.closed

    def read(self, first: int, last: int) -> Read:
        return self._ledger.read(first, last)

    def tail(self, first: int) -> JavaTail:
        return self._ledger.tail(first, poll_ms=self._poll_ms)


# --- ours ---


class OurParty:
    """Our client. For each ledger that it creates it has another client, which sees only the chosen bookies."""

    is_ours = True

    def __init__(self, uri: str, wire: str, config: ClientConfig) -> None:
        self.name = f"ours/{wire}"
        self._uri, self._config = uri, config
        chosen = (BOOKIE_RPC,) if wire == "v3" else ("grpc", BOOKIE_RPC)  # Apache's bookies have only the second lane
        self._lanes = {lane: LANES[lane] for lane in chosen}
        self._thread = LoopThread("our party")
        self._clients: list[BookKeeper] = []

    def call(self, work: Coroutine[Any, Any, T], within_s: float = CALL_S) -> T:
        """Return the result of ``work``. A TimeoutError says where this call, and everything else in this client,
        waits."""

        async def bounded() -> T:
            task = asyncio.ensure_future(work)
            await asyncio.wait([task], timeout=within_s)
            if task.done():
                return task.result()
            said = " | ".join(_waits(each.get_coro()) for each in (task, *asyncio.all_tasks()))
            task.cancel()
            raise TimeoutError(f"after {within_s:.0f} s: {said}")

        return self._thread.call(bounded())

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._thread.begin(work)

    def _client(self, bookies: Sequence[str] = ()) -> BookKeeper:
        async def made() -> BookKeeper:
            store = await asyncio.to_thread(open_store, self._uri)
            assert isinstance(store, TreeStore)
            instance_id = await asyncio.to_thread(store.instance_id)
            caller = replace(self._config.caller(instance_id), connect_timeout_s=2.0)
            transport = LaneTransport(caller, self._lanes, look_up=store.bookie_info)
            client = BookKeeper(store, transport, instance_id=instance_id, config=self._config)
            if bookies:
                _see_only(store, bookies)
                client._choose = lambda writable, size, *_: tuple(bookies[:size])
            return client

        self._clients.append(self.call(made()))
        return self._clients[-1]

    def create(self, bookies: Sequence[str], sizes: Sizes, digest: str) -> Writer:
        names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
        writer = self.call(
            self._client(bookies).create_ledger(
                **dict(zip(names, sizes, strict=True)),
                digest_type=DigestType[digest],
                password=PASSWORD,
                custom_metadata={CHOSEN: ",".join(bookies).encode()} if bookies else {},
            )
        )
        return OurWriter(self, writer)

    def open(self, ledger_id: int, digest: str, *, recover: bool, password: bytes = PASSWORD) -> Reader:
        client = self._client()
        digest_type = DigestType[digest]
        opened = client.open_ledger(ledger_id, recover=recover, password=password, digest_type=digest_type)
        return OurReader(self, self.call(opened))

    def delete(self, ledger_id: int) -> None:
        self.call(self._client().delete_ledger(ledger_id))

    def ledger_ids(self) -> list[int]:
        return self.call(self._client().list_ledgers())

    def fragments(self, ledger_id: int) -> dict[int, tuple[str, ...]]:
        metadata = self.call(self._client().read_metadata(ledger_id)).value
        return {fragment.first_entry_id: fragment.ensemble for fragment in metadata.fragments}

    def rest(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            self.call(client.close())

    def close(self) -> None:
        self.rest()
        self._thread.stop()


def _waits(work: object) -> str:
    """Return the lines at which a chain of coroutines waits."""
    places = []
    while work is not None:
        kind = next((kind for kind in ("cr", "ag", "gi") if hasattr(work, f"{kind}_frame")), "")
        frame = getattr(work, f"{kind}_frame", None)
        if frame is not None:
            places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        if kind:
            work = getattr(work, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
        else:  # a step of an async generator; the generator is not known here
            work = next((each for each in gc.get_referents(work) if hasattr(each, "ag_frame")), None)
    return " > ".join(places)


def _see_only(store: TreeStore, bookies: Sequence[str]) -> None:
    """Let other bookies seem read-only: their addresses are known, and none of them is chosen."""
    writable, read_only = store.writable_bookies, store.read_only_bookies

    def chosen() -> dict[BookieId, BookieServiceInfo]:
        found = writable()
        return {bookie: found[bookie] for bookie in bookies if bookie in found}

    def others() -> dict[BookieId, BookieServiceInfo]:
        return {**{id: info for id, info in writable().items() if id not in bookies}, **read_only()}

    store.writable_bookies, store.read_only_bookies = chosen, others
    store.seen_bookies = lambda: None


class OurWriter:
    def __init__(self, party: OurParty, writer: LedgerWriter) -> None:
        self._party, self._writer, self.ledger_id = party, writer, writer.ledger_id

    def add(self, count: int, pattern: Pattern, *, first: int, window: int = 100) -> None:
        self._party.call(self._add(count, pattern, first, window, 0, threading.Event()))

    async def _add(
        self, count: int, pattern: Pattern, first: int, window: int, pause_ms: int, halt: threading.Event
    ) -> None:
        """Add with ``window`` entries in flight and a pause before each, as the program with Apache's client does."""
        writer = self._writer
        assert writer.last_add_pushed == first - 1
        for begin in itertools.takewhile(lambda _: not halt.is_set(), range(first, first + count, window)):
            until = min(begin + window, first + count) - 1
            await writer.append_batch(EntryBatch.from_list(list(pattern.payloads(begin, until))))
            if pause_ms:
                await asyncio.sleep(pause_ms * (until - begin + 1) / 1000)
            await writer.wait_confirmed(begin - 1 if until < first + count - 1 else until)
        await writer.flush()

    def begin(self, count: int, pattern: Pattern, *, first: int, window: int, pause_ms: int = 0) -> Adding:
        halt = threading.Event()
        return OurAdding(
            self._writer, first, halt, self._party.begin(self._add(count, pattern, first, window, pause_ms, halt))
        )

    def append(self, payload: bytes) -> None:
        self._party.call(self._writer.append(payload))

    def lac(self) -> int:
        return self._writer.last_add_confirmed

    def close(self) -> None:
        self._party.call(self._writer.close())


class OurAdding:
    def __init__(self, writer: LedgerWriter, first: int, halt: threading.Event, future: Future[None]) -> None:
        self._writer, self._first, self._halt, self._future = writer, first, halt, future

    def halt(self) -> None:
        self._halt.set()

    def ended(self, within_s: float = CALL_S) -> Ended:
        words = ""
        try:
            self._future.result(within_s)
        except BookKeeperError as error:
            words = said(error)
        return Ended(self._writer.last_add_confirmed + 1 - self._first, words)


class OurReader:
    def __init__(self, party: OurParty, reader: LedgerReader) -> None:
        self._party, self._reader = party, reader
        self.lac, self.closed = reader.last_add_confirmed, reader.is_closed

    def read(self, first: int, last: int) -> Read:
        async def entries() -> list[bytes]:
            return [bytes(each) async for batch in self._reader.read(first, last) for each in batch.to_list()]

        return _read(first, self._party.call(entries()))

    def tail(self, first: int) -> Tail:
        return OurTail(self._party, self._reader, first)


class OurTail:
    def __init__(self, party: OurParty, reader: LedgerReader, first: int) -> None:
        self._party, self._reader, self._next = party, reader, first
        self._found: list[bytes] = []
        self._moved, self._over = asyncio.Event(), False
        self._task = party.begin(self._follow())

    async def _follow(self) -> None:
        try:
            async for batch in self._reader.tail(self._next):
                self._found += [bytes(each) for each in batch.to_list()]
                self._moved.set()
        finally:
            self._over = True
            self._moved.set()

    def take(self, count: int, *, within_s: float) -> Read:
        async def taken() -> Read:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while len(self._found) < count and not self._over:
                        self._moved.clear()
                        await self._moved.wait()
            some, self._found = self._found[:count], self._found[count:]
            first, self._next = self._next, self._next + len(some)
            return _read(first, some, ended=self._over and not self._found)

        read = self._party.call(taken(), within_s + CALL_S)
        if self._over:
            self._task.result(CALL_S)
        return read


def _read(first: int, payloads: list[bytes], *, ended: bool = False) -> Read:
    """Return a read in the form of a Java program."""
    some = bool(payloads)
    return Read(
        first=first if some else -1,
        last=first + len(payloads) - 1 if some else -1,
        count=len(payloads),
        size=sum(map(len, payloads)),
        checksum=checksum(payloads),
        payloads=(),
        ended=ended,
    )
