# SPDX-License-Identifier: Apache-2.0
"""The handle of a ledger that is open for reading. A handle that was opened without recovery never disturbs the writer
and reads up to the LAC. An open with recovery closes the ledger, and the handle reads up to its last entry."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from types import TracebackType

from bk_core.client.config import ClientConfig
from bk_core.client.reading.batch_iterator import BatchIterator
from bk_core.client.reading.lone_read import LoneRead
from bk_core.client.reading.quorum_end import QuorumEndDriver
from bk_core.client.reading.quorum_lac import LacFollower
from bk_core.client.reading.ranges import Quarantine, read_range
from bk_core.client.running.fork import ForkGuard
from bk_core.client.running.metrics import Observer
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.parts import Parts
from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    EntryUnreadableError,
    InvalidArgumentError,
    NoSuchEntryError,
    Outcome,
)
from bk_core.metadata.port import MetadataStore
from bk_core.model import NO_ENTRY, EntryId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol.config import QUORUM_SETTLE_MS
from bk_core.transport.port import Transport

TAIL_WAIT_S = 30.0
"""The number of seconds that a tail waits for a new LAC before it checks again whether the ledger is closed."""


class LedgerReader:
    """A ledger that is open for reading, made by ``BookKeeper.open_ledger``. As an async context manager it closes
    itself at the end."""

    def __init__(
        self,
        metadata: Versioned[LedgerMetadata],
        lac: EntryId,
        digester: Digester,
        *,
        store: MetadataStore,
        transport: Transport,
        config: ClientConfig,
        prefer: int,
        refresh: Callable[[], Awaitable[object]],
        slow: Quarantine,
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer or Observer(config.slow_operation_ms)
        self._refresh = refresh  # gives the transport the bookies' current addresses
        self._transport, self._config, self._digester, self._prefer = transport, config, digester, prefer
        self._follower = LacFollower(metadata, lac, digester, store=store, transport=transport, config=config)
        self._slow = slow
        self._guard = ForkGuard()
        self._quorum_end: EntryId = NO_ENTRY  # the end that wait_quorum_end found; the LAC may be below it
        self._searches: set[QuorumEndDriver] = set()

    @property
    def ledger_id(self) -> LedgerId:
        return self._digester.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._follower.metadata.value

    @property
    def is_closed(self) -> bool:
        return self._follower.closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read. This is the last entry of a closed ledger, or the highest known LAC of an
        open ledger."""
        return self._follower.lac

    @property
    def length(self) -> int:
        """The number of payload bytes of a closed ledger. It is 0 while the ledger is open, because the record has no
        length yet."""
        return self.metadata.length

    async def length_to(self, last: EntryId) -> int:
        """Return the number of payload bytes of the entries 0 to ``last``, which must be readable. Unless the record
        holds this sum, read it from entry ``last``. Raises the errors of :meth:`read`."""
        if last < 0:
            return 0
        if self.is_closed and last == self.last_add_confirmed:
            return self.length
        async with aclosing(self.reading(last, last)) as batches:
            return sum([batch.length_before + batch.payload_bytes async for batch in batches])

    def read(self, first: EntryId, last: EntryId, *, unconfirmed: bool = False) -> BatchIterator[EntryBatch]:
        """Read the entries ``first`` to ``last``, both inclusive, in order, in batches. If last = first − 1, the range
        is empty.

        With ``unconfirmed`` also read entries above the LAC of an open ledger, if a bookie has them. Such an entry may
        never become part of the ledger. Raises InvalidArgumentError for entries above the LAC, NoSuchEntryError for a
        lost entry, which is never skipped, and EntryUnreadableError if no replica gives an entry now. NoSuchEntryError
        for an entry above the LAC says only that the entry is not there yet.
        """
        if first != last:
            return BatchIterator(self.reading(first, last, unconfirmed=unconfirmed))
        return BatchIterator(self._reading_range(first, last), only=partial(self._lone, first, unconfirmed=unconfirmed))

    async def reading(
        self, first: EntryId, last: EntryId, *, unconfirmed: bool = False, keep_heads: bool = False
    ) -> AsyncGenerator[EntryBatch, None]:
        """Read the same as :meth:`read`, for generators of this package. A cancelled step ends this generator. With
        ``keep_heads`` a batch may have the column ``heads``, so that no payload is copied."""
        if first == last:
            lone = self._lone(first, unconfirmed=unconfirmed)
            try:
                batch = await lone.result()
            finally:
                lone.cancel()
            if batch is not None:
                yield batch
                return
        else:
            self._check_readable(first, last, unconfirmed=unconfirmed)
        async with aclosing(self._reading_range(first, last, keep_heads=keep_heads)) as batches:
            async for batch in batches:
                yield batch

    def _check_readable(self, first: EntryId, last: EntryId, *, unconfirmed: bool) -> LedgerMetadata:
        """Return the record. Raise the errors of :meth:`read` for entries that cannot be asked for."""
        self._guard.check("this ledger")
        self._follower.check_running()
        record = self._follower.metadata.value
        closed = record.is_closed
        readable = record.last_entry_id if closed else max(self.last_add_confirmed, self._quorum_end)
        if not 0 <= first <= last + 1 or (last > readable and (closed or not unconfirmed)):
            raise InvalidArgumentError(
                f"entries {first} to {last} of ledger {self.ledger_id} cannot be read",
                value=f"readable: 0 to {readable}",
                remedy="refresh_lac() to see what was confirmed since, or open with recover=True for the end",
            )
        return record

    def _lone(self, entry_id: EntryId, *, unconfirmed: bool) -> LoneRead:
        return LoneRead(
            self._transport,
            self._check_readable(entry_id, entry_id, unconfirmed=unconfirmed),
            self._digester,
            entry_id,
            config=self._config,
            prefer=self._prefer,
            slow=self._slow,
            observer=self._observer,
        )

    async def _reading_range(
        self, first: EntryId, last: EntryId, *, keep_heads: bool = False
    ) -> AsyncGenerator[EntryBatch, None]:
        """Read the entries with the machine. If they cannot be read, read the record again and try once more."""
        position = first
        try:
            async with aclosing(self._range(first, last, keep_heads=keep_heads)) as batches:
                async for batch in batches:
                    yield batch
                    position = batch.last_entry_id + 1
        except (EntryUnreadableError, NoSuchEntryError):
            await self._follower.refresh_record()  # copies may have moved, so that the known bookies deny it
            await self._refresh()
        else:
            return
        try:
            async with aclosing(self._range(position, last, keep_heads=keep_heads)) as batches:
                async for batch in batches:
                    yield batch
                    position = batch.last_entry_id + 1
        except NoSuchEntryError as error:
            if position <= self.last_add_confirmed:
                raise
            raise NoSuchEntryError(
                f"entry {position} of ledger {self.ledger_id} is not there yet, and is not confirmed",
                value=error.value,
                remedy=f"confirmed: 0 to {self.last_add_confirmed}",
            ) from error

    def read_parts(self, first: EntryId, last: EntryId, parts: Parts) -> AsyncGenerator[EntryBatch, None]:
        """Read parts of readable entries, from the bookies that the known record names. Raises EntryUnreadableError
        also for an entry whose parts cannot be verified; :meth:`read` may still return this entry whole."""
        return self._range(first, last, parts)

    def _range(
        self, first: EntryId, last: EntryId, parts: Parts | None = None, *, keep_heads: bool = False
    ) -> AsyncGenerator[EntryBatch, None]:
        return read_range(
            self._transport,
            self.metadata,
            self._digester,
            first,
            last,
            config=self._config,
            prefer=self._prefer,
            slow=self._slow,
            parts=parts,
            keep_heads=keep_heads,
            observer=self._observer,
        )

    def tail(self, from_entry: EntryId = 0) -> BatchIterator[EntryBatch]:
        """Read every entry from ``from_entry`` on, as soon as it is confirmed, until the ledger is closed. A tail never
        fences.

        Raises the errors of ``read``, NoSuchLedgerError if the ledger is deleted, IntegrityError if it was closed below
        a confirmed entry (entries were lost), PermissionDeniedError if this client has lost the right to read it, and
        ClientClosedError if this reader or its client is closed.
        """
        return BatchIterator(self.tailing(from_entry))

    async def tailing(self, from_entry: EntryId) -> AsyncGenerator[EntryBatch, None]:
        """Read the same as :meth:`tail`, for generators of this package. A cancelled step ends this generator."""
        self._guard.check("this ledger")
        position = from_entry
        while True:
            last = self.last_add_confirmed
            if position <= last:
                async with aclosing(self.reading(position, last)) as batches:
                    async for batch in batches:
                        yield batch
                position = last + 1
            elif self.is_closed:
                self._follower.check()
                return
            else:
                await self._follower.wait(position - 1, TAIL_WAIT_S)

    async def refresh_lac(self) -> EntryId:
        """Ask the metadata store and a quorum of bookies how far the ledger is confirmed, and return the LAC. Raises
        QuorumTimeoutError, MetadataUnavailableError, and the errors that end a :meth:`tail`."""
        self._guard.check("this ledger")
        return await self._follower.refresh()

    async def wait_quorum_end(self, settle_ms: float = QUORUM_SETTLE_MS) -> EntryId:
        """Find entries above the LAC that may be shown, without fencing. Return the last such entry, or the LAC if
        there is none. :meth:`read` then reads up to the returned entry.

        An entry counts if Qa members of its write set return it, both now and after ``settle_ms``, if every entry below
        it counts, and if the ledger's record keeps its version meanwhile. It is not certain that such an entry stays: a
        writer that was paused for longer than ``settle_ms`` can still drop it. For a closed ledger the last entry is
        returned. Raises the errors of :meth:`refresh_lac`, and InvalidArgumentError for a negative time.
        """
        if settle_ms < 0:
            raise InvalidArgumentError("settle_ms must be at least 0", value=f"settle_ms={settle_ms:g}")
        lac = await self.refresh_lac()
        if self.is_closed:
            return lac
        await self._refresh()
        search = QuorumEndDriver(
            self._digester,
            lac,
            settle_ms=settle_ms,
            store=self._follower.store,
            transport=self._transport,
            config=self._config,
        )
        self._searches.add(search)
        try:
            found = await search.run()
        finally:
            self._searches.discard(search)
        self._follower.record_read(found.metadata)
        self._follower.check()
        if self.is_closed:
            return self.last_add_confirmed
        self._quorum_end = max(self._quorum_end, found.last)
        return max(self.last_add_confirmed, found.last)

    async def wait_lac(self, above: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC is above ``above``, the ledger is closed, or ``timeout_s`` is over. Return the LAC."""
        self._guard.check("this ledger")
        return await self._follower.wait(above, timeout_s)

    async def close(self) -> None:
        """End all watches of this reader. Calls that wait raise ClientClosedError. The ledger does not change."""
        self.end(ClientClosedError(f"the reader of ledger {self.ledger_id} is closed", outcome=Outcome.NOT_APPLIED))

    def end(self, error: BookKeeperError) -> None:
        """End all watches of this reader. Calls that wait raise ``error``."""
        self._follower.stop(error)
        for search in tuple(self._searches):
            search.end(error)

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
