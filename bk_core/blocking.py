# SPDX-License-Identifier: Apache-2.0
"""The client without ``await``: the asyncio client on a private daemon thread, one thread a connection (DESIGN §8).

The thread starts with :func:`connect`, never at import: Spark forks its workers (RULES K4). Every call waits for its
answer on that thread and raises what it raised. Handles may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from bk_core import client
from bk_core.client.config import ClientConfig
from bk_core.client.loop_thread import Handle, LoopThread
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import ClientClosedError, ForkedHandleError, WindowFullError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, BookieServiceInfo, DigestType, EntryId, LedgerId, LedgerMetadata, Versioned

if TYPE_CHECKING:
    from bk_core.blocking_logs import NamedLog as NamedLog
    from bk_core.client.ahead import WantedRange
    from bk_core.client.detached import Refresh
    from bk_core.logs.head import NewExtent, Published, PublishId
    from bk_core.logs.machines.transactions import Transaction

T = TypeVar("T")


class LedgerWriter(Handle[client.LedgerWriter]):
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
        try:
            return self._inner.append_future(payload).result()
        except WindowFullError:
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
        self._leave(self._inner.__aexit__(kind, error, trace), error)


class LedgerReader(Handle[client.LedgerReader]):
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


class BookKeeper(Handle[client.BookKeeper]):
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

    def delete_ledger(self, ledger_id: LedgerId, *, version: int | None = None) -> None:
        self._thread.call(self._inner.delete_ledger(ledger_id, version=version))

    def read_metadata(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        return self._thread.call(self._inner.read_metadata(ledger_id))

    def list_ledgers(self) -> list[LedgerId]:
        return self._thread.call(self._inner.list_ledgers())

    def log(self, name: str, *, password: bytes = b"") -> NamedLog:
        """A named log; nothing is read or made yet. Raises InvalidArgumentError for a bad name."""
        from bk_core import blocking_logs  # logs stand above the client: only who asks for one pays for the import
        from bk_core.logs.named_log import NamedLog as AsyncNamedLog

        return blocking_logs.NamedLog(AsyncNamedLog(self._inner, name, password=password), self._thread)

    def publish_to_logs(
        self,
        ledgers: Mapping[str, Sequence[NewExtent]],
        publish_id: PublishId,
        *,
        password: bytes = b"",
        overwrite: bool = False,
        transaction: Transaction | None = None,
        schema: bytes | None = None,
        merge_schema: bool = False,
    ) -> dict[str, Published]:
        """As :func:`bk_core.logs.fan_out.publish_to_logs`."""
        from bk_core.logs import fan_out  # as above

        work = fan_out.publish_to_logs(
            self._inner,
            ledgers,
            publish_id,
            password=password,
            overwrite=overwrite,
            transaction=transaction,
            schema=schema,
            merge_schema=merge_schema,
        )
        return self._thread.call(work)

    def begin(self, work: Callable[[client.BookKeeper], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start what needs the asyncio client, on its own loop, and do not wait for it: many things can be watched by
        one thread. Cancelling the future cancels it there; so does closing the client. Raises ClientClosedError."""
        return self._thread.begin(work(self._inner))

    def close(self) -> None:
        """End the session, the connections and the thread. In a forked child it does nothing: they are the parent's."""
        with suppress(ClientClosedError, ForkedHandleError):
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


class DetachedReader(Handle[client.DetachedReader]):
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

    def read_all(
        self, wanted: Iterable[WantedRange], *, prefer: int = 0
    ) -> Generator[tuple[int, EntryBatch], None, None]:
        with closing(self._thread.iterate(self._inner.read_all(wanted, prefer=prefer))) as lists:
            for ready in lists:
                yield from ready

    def close(self) -> None:
        with suppress(ClientClosedError, ForkedHandleError):
            self._thread.call(self._inner.close())
        self._thread.stop()

    def __enter__(self) -> DetachedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
