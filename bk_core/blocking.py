# SPDX-License-Identifier: Apache-2.0
"""The client without ``await``: the asyncio client on a private daemon thread, one thread a connection (DESIGN §8).

The thread starts with :func:`connect`, never at import: Spark forks its workers (RULES K4). Every call waits for its
answer on that thread and raises what it raised. Handles may be used from several threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bk_core import client
from bk_core.client.config import ClientConfig
from bk_core.client.fork import ForkGuard
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import ClientClosedError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, BookieServiceInfo, DigestType, EntryId, LedgerId, LedgerMetadata, Versioned

if TYPE_CHECKING:
    from bk_core.client.detached import Refresh

T = TypeVar("T")
H = TypeVar("H")
STOP_TIMEOUT_S = 10.0


class LoopThread:
    """An asyncio loop on a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        self._guard = ForkGuard()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and wait. An interrupt here cancels it there."""
        if self._guard.forked or not self._thread.is_alive():
            work.close()
            self._guard.check("this client")
            raise ClientClosedError("this client is closed", remedy="connect again")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosedError("this client was closed while it was waiting") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """An async iterator as a plain one; closing it closes the source."""
        try:
            while True:
                item = self.call(_next(source))
                if item is _END:
                    return
                yield item  # type: ignore[misc]  # mypy does not narrow by a sentinel
        finally:
            if self._thread.is_alive() and not self._guard.forked:
                self.call(_close(source))

    def stop(self) -> None:
        """Cancel what runs, end the thread."""
        if self._guard.forked or not self._thread.is_alive():
            return
        with suppress(ClientClosedError):
            self.call(_cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)


_END = object()


async def _next(source: AsyncIterator[T]) -> T | object:
    return await anext(source, _END)


async def _close(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


class _Handle(Generic[H]):
    """A handle of the asyncio client and the thread it lives on."""

    def __init__(self, inner: H, thread: LoopThread) -> None:
        self._inner, self._thread = inner, thread


class LedgerWriter(_Handle[client.LedgerWriter]):
    """As :class:`bk_core.client.LedgerWriter`; a context manager that closes the ledger."""

    @property
    def ledger_id(self) -> LedgerId:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._inner.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._inner.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        return self._inner.last_add_pushed

    @property
    def length(self) -> int:
        return self._inner.length

    @property
    def is_failed(self) -> bool:
        return self._inner.is_failed

    def append(self, payload: Bytes) -> EntryId:
        return self._thread.call(self._inner.append(payload))

    def append_nowait(self, payload: Bytes) -> EntryId:
        return self._inner.append_nowait(payload)

    def append_batch(self, batch: EntryBatch) -> EntryId:
        return self._thread.call(self._inner.append_batch(batch))

    def wait_confirmed(self, entry_id: EntryId) -> None:
        self._thread.call(self._inner.wait_confirmed(entry_id))

    def flush(self) -> None:
        self._thread.call(self._inner.flush())

    def close(self) -> None:
        self._thread.call(self._inner.close())

    def abandon(self) -> None:
        self._thread.call(self._inner.abandon())

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._inner.__aexit__(kind, error, trace))


class LedgerReader(_Handle[client.LedgerReader]):
    """As :class:`bk_core.client.LedgerReader`."""

    @property
    def ledger_id(self) -> LedgerId:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._inner.metadata

    @property
    def is_closed(self) -> bool:
        return self._inner.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._inner.last_add_confirmed

    @property
    def length(self) -> int:
        return self._inner.length

    def read(self, first: EntryId, last: EntryId) -> Iterator[EntryBatch]:
        return self._thread.iterate(self._inner.read(first, last))

    def tail(self, from_entry: EntryId = 0) -> Iterator[EntryBatch]:
        return self._thread.iterate(self._inner.tail(from_entry))

    def refresh_lac(self) -> EntryId:
        return self._thread.call(self._inner.refresh_lac())

    def wait_lac(self, above: EntryId, timeout_s: float) -> EntryId:
        return self._thread.call(self._inner.wait_lac(above, timeout_s))

    def close(self) -> None:
        self._thread.call(self._inner.close())

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LogLeader(_Handle["AsyncLogLeader"]):
    """As :class:`bk_core.logs.named_log.LogLeader`."""

    def __getattr__(self, name: str) -> Any:
        return _blocking(getattr(self._inner, name), self._thread)

    def __enter__(self) -> LogLeader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._inner.__aexit__(kind, error, trace))


class NamedLog(_Handle["AsyncNamedLog"]):
    """As :class:`bk_core.logs.named_log.NamedLog`."""

    def __getattr__(self, name: str) -> Any:
        return _blocking(getattr(self._inner, name), self._thread)

    def lead(self, **options: Any) -> LogLeader:
        return LogLeader(self._thread.call(self._inner.lead(**options)), self._thread)


def _blocking(member: Any, thread: LoopThread) -> Any:
    """A coroutine method or async generator method without ``await``; anything else as it is."""
    if not callable(member):
        return member

    def call(*args: Any, **kwargs: Any) -> Any:
        result = member(*args, **kwargs)
        if asyncio.iscoroutine(result):
            return thread.call(result)
        if hasattr(result, "__anext__"):
            return thread.iterate(result)
        return result

    return call


class BookKeeper(_Handle[client.BookKeeper]):
    """As :class:`bk_core.client.BookKeeper`; a context manager that closes the connection."""

    @property
    def store(self) -> MetadataStore:
        return self._inner.store

    @property
    def instance_id(self) -> str:
        return self._inner.instance_id

    @property
    def config(self) -> ClientConfig:
        return self._inner.config

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
    ) -> LedgerWriter:
        work = self._inner.create_ledger(
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            digest_type=digest_type,
            password=password,
            custom_metadata=custom_metadata,
        )
        return LedgerWriter(self._thread.call(work), self._thread)

    def open_ledger(
        self, ledger_id: LedgerId, *, recover: bool, password: bytes = b"", digest_type: DigestType | None = None
    ) -> LedgerReader:
        work = self._inner.open_ledger(ledger_id, recover=recover, password=password, digest_type=digest_type)
        return LedgerReader(self._thread.call(work), self._thread)

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        self._thread.call(self._inner.delete_ledger(ledger_id))

    def read_metadata(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        return self._thread.call(self._inner.read_metadata(ledger_id))

    def list_ledgers(self) -> list[LedgerId]:
        return self._thread.call(self._inner.list_ledgers())

    def log(self, name: str, *, password: bytes = b"") -> NamedLog:
        """A named log; nothing is read or made yet. Raises InvalidArgumentError for a bad name."""
        from bk_core.logs.named_log import NamedLog as Inner

        return NamedLog(Inner(self._inner, name, password=password), self._thread)

    def close(self) -> None:
        """End the session, the connections and the thread."""
        with suppress(ClientClosedError):
            self._thread.call(self._inner.close())
        self._thread.stop()

    def __enter__(self) -> BookKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(uri: str, *, config: ClientConfig | None = None) -> BookKeeper:
    """As :func:`bk_core.client.connect`, on a thread of its own."""
    return connect_with(lambda: client.connect(uri, config=config))


def connect_with(make: Callable[[], Coroutine[Any, Any, client.BookKeeper]]) -> BookKeeper:
    """A client that ``make`` connects on the new thread (tests and other transports)."""
    thread = LoopThread("bookkeeper")
    try:
        return BookKeeper(thread.call(make()), thread)
    except BaseException:
        thread.stop()
        raise


class DetachedReader(_Handle[client.DetachedReader]):
    """As :class:`bk_core.client.DetachedReader`, on a thread of its own."""

    def __init__(
        self,
        infos: Mapping[BookieId, BookieServiceInfo],
        *,
        instance_id: str,
        config: ClientConfig | None = None,
        refresh: Refresh | None = None,
    ) -> None:
        thread = LoopThread("bookkeeper-reader")

        async def make() -> client.DetachedReader:
            return client.DetachedReader(infos, instance_id=instance_id, config=config, refresh=refresh)

        super().__init__(thread.call(make()), thread)

    def update_bookies(self, infos: Mapping[BookieId, BookieServiceInfo]) -> None:
        self._thread.loop.call_soon_threadsafe(self._inner.update_bookies, infos)

    def read(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, first: EntryId, last: EntryId, *, prefer: int = 0
    ) -> Iterator[EntryBatch]:
        return self._thread.iterate(self._inner.read(ledger_id, metadata, first, last, prefer=prefer))

    def close(self) -> None:
        with suppress(ClientClosedError):
            self._thread.call(self._inner.close())
        self._thread.stop()

    def __enter__(self) -> DetachedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
