# SPDX-License-Identifier: Apache-2.0
"""A client of one cluster, which creates, opens and deletes ledgers. It contains no rule of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from difflib import get_close_matches
from types import TracebackType
from typing import TypeVar

from bk_core.access.roles import OPEN, Right
from bk_core.after_fork import check_can_connect
from bk_core.client.config import ClientConfig
from bk_core.client.deletion import Hints, delete_record
from bk_core.client.reading.quorum_lac import quorum_lac
from bk_core.client.reading.ranges import Quarantine
from bk_core.client.reading.reader import LedgerReader
from bk_core.client.reading.recovery import RecoveryDriver
from bk_core.client.running.fork import ForkGuard
from bk_core.client.running.metrics import ClientMetrics, Observer
from bk_core.client.running.refused import Refused
from bk_core.client.running.surveyor import Surveyor
from bk_core.client.writing.lone_appends import LoneAppends
from bk_core.client.writing.process_budget import process_budget
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.digest import Digester
from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    InvalidArgumentError,
    NoSuchLedgerError,
    Outcome,
    PermissionDeniedError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.memory.slots import Slots
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.model import (
    BookieId,
    BookieServiceInfo,
    DigestType,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Versioned,
)
from bk_core.observe.audit import audited
from bk_core.observe.traces import note, traced
from bk_core.placement import Landscape, choose_ensemble
from bk_core.protocol import writer as machine
from bk_core.protocol.events import BookiesRead
from bk_core.protocol.recovery import LedgerRecovery
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import RefusedError, Transport
from bk_core.wire.lane.reasons import Reason

H = TypeVar("H", LedgerWriter, LedgerReader)
NEAREST_LEDGERS = 3  # similar ids that the error for an unknown ledger names
PERMIT_S = 1.0
"""The number of seconds that a client waits for one bookie to say whether it may write to a new ledger."""
SPARES_ASKED_MAX = 16
"""The maximum number of bookies outside a new ledger's ensemble that a client asks if the whole ensemble refuses it."""
logger = logging.getLogger(__name__)
_Bookies = Mapping[BookieId, BookieServiceInfo]


class BookKeeper:
    """A client of one cluster. It belongs to the loop on which it was made. As an async context manager it closes
    itself at the end."""

    store: MetadataStore
    """The metadata store of the cluster. Its calls block."""
    instance_id: str
    """The id of the cluster."""
    config: ClientConfig

    def __init__(
        self, store: MetadataStore, transport: Transport, *, instance_id: str, config: ClientConfig | None = None
    ) -> None:
        self.store, self.transport, self.instance_id = store, transport, instance_id
        self.config = config or ClientConfig()
        self._random, self._slots = random.Random(), Slots(self.config.slow_bookie_bytes_max)
        self._sessions = itertools.count(1)
        self._failed = Quarantine()  # bookies that new ensembles avoid
        self._slow = Quarantine()  # bookies that reads ask last
        self._surveyor = Surveyor(transport, self.config)
        self._observer = Observer(self.config.slow_operation_ms)
        self._lone_appends: dict[tuple[int, int], LoneAppends] = {}  # by write and ack quorum
        timeout_s, pause_s = self.config.delete_hint_timeout_ms / 1000, self.config.quarantine_ms / 1000
        self._hints = Hints(transport, self.refresh_bookies, timeout_s=timeout_s, pause_s=pause_s)
        self._loop = asyncio.get_running_loop()
        self._guard = ForkGuard()
        self._is_closed = False
        self._handles: weakref.WeakSet[LedgerWriter | LedgerReader] = weakref.WeakSet()  # closing the client ends them
        self._recoveries: set[RecoveryDriver] = set()
        self._at_close: set[Callable[[], None]] = set()
        self._leave_budget = weakref.finalize(self, process_budget().client(self.config.process_window_bytes_max))
        self._leave_budget.atexit = False

    # --- ledgers -----------------------------------------------------------------------------------------------------

    @traced("create_ledger")
    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
    ) -> LedgerWriter:
        """Create a ledger and open it for appending.

        ``ledger_id`` is 0 to 2^63 − 2; with None the store chooses an id. With ``explicit_ids`` the caller gives each
        entry its id, in any order (``append(payload, entry_id)``), and entries are confirmed in the order of their ids.
        With ``deferred_sync`` bookies may ack entries before they sync them; ``force`` makes the appended entries
        durable and moves the LAC.

        Raises InvalidArgumentError unless E ≥ Qw ≥ Qa ≥ 1, NotEnoughBookiesError if fewer than E bookies are writable,
        LedgerExistsError if the id is taken, PermissionDeniedError if no role lets this client write to the ledger, and
        AuthenticationError or InsecureBookieError if this client can use no bookie. After each of these errors no new
        ledger remains. If its record could not be deleted again, a warning in the log names the ledger.
        """
        self.check_open()
        check_arguments(password, digest_type, 0 if ledger_id is None else ledger_id)
        check_sizes(ensemble_size, write_quorum_size, ack_quorum_size)
        ensemble = await self.choose_bookies(ensemble_size, write_quorum_size)
        metadata = LedgerMetadata(
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            fragments=(Fragment(0, ensemble),),
            digest_type=DigestType(digest_type),
            password=bytes(password),
            ctime_ms=int(time.time() * 1000),  # without it readers see only when the store made the record
            custom_metadata=dict(custom_metadata or {}),
        )
        made, created = await asyncio.to_thread(self.store.create_ledger, metadata, ledger_id)
        note(ledger=made, bookies=ensemble)
        if self.config.security != OPEN or self.config.tls_ca_path:
            await self._take_back_unless_permitted(made, created)
        protocol = machine.LedgerWrite(
            made,
            created,
            Digester(digest_type, password, made),
            config=self.config.writer(),
            new_session=self.new_session,
            random=self._random,
            deferred_sync=deferred_sync,
            join=self._slots.join,
        )
        writer = LedgerWriter(
            protocol,
            store=self.store,
            transport=self.transport,
            config=self.config,
            bookies=self._bookies_without,
            explicit_ids=explicit_ids,
            observer=self._observer,
            table=self._table(write_quorum_size, ack_quorum_size),
        )
        self._observer.counts.ledgers_created += 1
        return self._keep(writer)

    def _table(self, write_quorum: int, ack_quorum: int) -> LoneAppends:
        """Return the table of writers with these quorums."""
        found = self._lone_appends.get((write_quorum, ack_quorum))
        if found is None:
            found = LoneAppends(write_quorum, ack_quorum, self.config, self._observer)
            self._lone_appends[write_quorum, ack_quorum] = found
        return found

    async def _take_back_unless_permitted(self, ledger_id: LedgerId, created: Versioned[LedgerMetadata]) -> None:
        """Delete the record of a new ledger if this client may not write to the ledger.

        Bookies decide by the record, so the client cannot ask them before the record exists. The delete names the
        version of the new record, so a record that another client has changed remains. Raises the errors of
        :meth:`_check_permitted`.
        """
        try:
            await self._check_permitted(ledger_id, created.value.last_fragment.ensemble)
        except BookKeeperError:
            try:
                await asyncio.to_thread(self.store.delete_ledger, ledger_id, created.version)
            except BookKeeperError as left:
                logger.warning("the new, empty ledger %d could not be deleted again: %s", ledger_id, left)
            raise

    async def _check_permitted(self, ledger_id: LedgerId, ensemble: tuple[BookieId, ...]) -> None:
        """Ask the bookies whether this client may write to the ledger. The first bookie that answers decides.

        Raises PermissionDeniedError if it may not. Raises AuthenticationError or InsecureBookieError if this client can
        use no bookie of the ensemble and none of up to SPARES_ASKED_MAX other bookies.
        """
        refused = Refused()
        for bookie in ensemble:
            if await self._permits(bookie, ledger_id, refused):
                return
        if refused.by_all is not None:
            spares = [each for each in await self.refresh_bookies() if each not in ensemble][:SPARES_ASKED_MAX]
            await asyncio.gather(*(self._permits(each, ledger_id, refused) for each in spares))
            if refused.by_all is not None:
                raise refused.by_all

    async def _permits(self, bookie: BookieId, ledger_id: LedgerId, refused: Refused) -> bool:
        """Return True if the bookie allows this client to write to the ledger, and False if it gives no answer. Raises
        PermissionDeniedError if the bookie forbids the write."""
        try:
            async with asyncio.timeout(PERMIT_S):
                await self.transport.link(bookie).permit(ledger_id, Right.WRITE)
            refused.heard(bookie)
            return True
        except RefusedError as error:
            if error.reason is Reason.PERMISSION_DENIED:
                raise PermissionDeniedError.told(error.what) from error
            refused.heard(error)
        except (BookKeeperError, TimeoutError) as error:
            logger.debug("bookie %s did not say whether this client may write to the ledger: %s", bookie, error)
            refused.heard(error)
        return False  # if the bookie forbids it, the writer's first append fails

    def _keep(self, handle: H) -> H:
        """Register a handle, so that it ends when this client closes. If the client is closed already, end the handle
        now."""
        self._handles.add(handle)
        if self._is_closed:
            handle.end(_closed_error())
        return handle

    @traced("open_ledger")
    async def open_ledger(
        self, ledger_id: LedgerId, *, recover: bool, password: bytes = b"", digest_type: DigestType | None = None
    ) -> LedgerReader:
        """Open a ledger for reading.

        With ``recover=False`` the writer is never disturbed: the client asks a quorum of bookies for the LAC, and the
        reader reads up to it. With ``recover=True`` the client fences the writer, finds the end and closes the ledger,
        and the reader reads up to the last entry. If ``digest_type`` is given, it must be the digest type of the
        metadata. Raises NoSuchLedgerError, WrongPasswordError, WrongDigestTypeError, QuorumTimeoutError,
        RecoveryInconclusiveError, and AuthenticationError if every bookie that answered refuses this client.
        """
        note(ledger=ledger_id, recover=recover)
        self.check_open()
        check_arguments(password, digest_type, ledger_id)
        found = await self.read_metadata(ledger_id)
        digester = self.digester_of(ledger_id, found.value, password, digest_type)
        if found.value.is_closed:  # a reader that fails to reach a bookie reads the registrations again
            await self._known_bookies()
        else:
            await self.refresh_bookies()
        if recover and not found.value.is_closed:
            found, _ = await self.recover_ledger(digester, password)
        if found.value.is_closed:
            lac = found.value.last_entry_id
        else:
            lac = await quorum_lac(self.transport, found.value, digester, config=self.config)
        reader = LedgerReader(
            found,
            lac,
            digester,
            store=self.store,
            transport=self.transport,
            config=self.config,
            prefer=self._random.randrange(found.value.ensemble_size),
            refresh=self.refresh_bookies,
            slow=self._slow,
            observer=self._observer,
        )
        self._observer.counts.ledgers_opened += 1
        return self._keep(reader)

    @traced("recover_ledger")
    async def recover_ledger(self, digester: Digester, password: bytes) -> tuple[Versioned[LedgerMetadata], int]:
        """Fence, recover and close one ledger. Returns the result of :meth:`RecoveryDriver.run` and raises its
        errors."""
        note(ledger=digester.ledger_id)
        recovery = LedgerRecovery(
            digester, config=self.config.recovery(), new_session=self.new_session, random=self._random
        )
        driver = RecoveryDriver(
            recovery,
            password,
            store=self.store,
            transport=self.transport,
            config=self.config,
            bookies=self._bookies_without,
        )
        self._recoveries.add(driver)
        try:
            with (
                audited("recover-ledger", ledger=digester.ledger_id),
                self._observer.recovery(digester.ledger_id) as count,
            ):
                found, written = await driver.run()
                count(written)
                note(written_back=written)
            return found, written
        finally:
            self._recoveries.discard(driver)

    @traced("delete_ledger")
    async def delete_ledger(self, ledger_id: LedgerId, *, version: int | None = None) -> None:
        """Delete the ledger's metadata, and send its bookies a hint, so that they free the space soon.

        With ``version``, delete the metadata only if it has this version. A hint that fails does not fail the call.
        Raises NoSuchLedgerError, MetadataConflictError for another version, and MetadataUnavailableError.
        """
        note(ledger=ledger_id)
        self.check_open()
        try:
            metadata = await asyncio.to_thread(delete_record, self.store, ledger_id, version)
        except NoSuchLedgerError as error:
            raise await self._no_such_ledger(ledger_id) from error
        self._observer.counts.ledgers_deleted += 1
        await self._hints.send({ledger_id: metadata})

    def tell_deleted(self, deleted: Mapping[LedgerId, LedgerMetadata | None]) -> None:
        """Send the bookies hints about ledgers that :func:`~bk_core.client.deletion.delete_record` deleted. The caller
        must not be on the loop's thread. The call waits at most ``delete_hint_timeout_ms`` + 1 s."""
        if deleted and not self._loop.is_closed():
            sending = asyncio.run_coroutine_threadsafe(self._hints.send(deleted), self._loop)
            with contextlib.suppress(FutureTimeoutError, CancelledError):
                sending.result(self.config.delete_hint_timeout_ms / 1000 + 1.0)

    async def read_metadata(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Return the ledger's record. The record of a ledger that is not closed is as new as this call. Raises
        NoSuchLedgerError, which names similar ids."""
        try:
            return await asyncio.to_thread(self.store.read_ledger, ledger_id, fresh=True)
        except NoSuchLedgerError as error:
            raise await self._no_such_ledger(ledger_id) from error

    async def list_ledgers(self) -> list[LedgerId]:
        """Return the ids of all ledgers in ascending order."""
        return await asyncio.to_thread(lambda: list(self.store.list_ledgers()))

    def metrics(self) -> ClientMetrics:
        """Return a copy of this client's counters. ``metrics().text()`` is the same in Prometheus' text format."""
        return self._observer.counts.snapshot()

    # --- bookies -----------------------------------------------------------------------------------------------------

    async def refresh_bookies(self, *, at_least: int = 0) -> tuple[BookieId, ...]:
        """Read the registered bookies, give the transport their addresses, and return the writable bookies. If fewer
        than ``at_least`` are writable, sync with the metadata store and read again (M5)."""
        self.check_open()
        return self._know(*await asyncio.to_thread(self._read_bookies, at_least))

    async def _known_bookies(self, *, at_least: int = 0) -> tuple[BookieId, ...]:
        """Do the same as :meth:`refresh_bookies`, but send no request if no watch has reported a change since the
        bookies were last read, and at least ``at_least`` were writable then."""
        seen = self.store.seen_bookies()
        if seen is None or len(seen[0]) < at_least:
            return await self.refresh_bookies(at_least=at_least)
        return self._know(*seen)

    def _know(self, writable: _Bookies, read_only: _Bookies) -> tuple[BookieId, ...]:
        self.transport.update_bookies([*read_only.values(), *writable.values()])
        self._surveyor.know(writable)
        return tuple(sorted(writable))

    def _read_bookies(self, at_least: int) -> tuple[_Bookies, _Bookies]:
        writable = self.store.writable_bookies()
        if len(writable) < at_least:
            self.store.sync()
            writable = self.store.writable_bookies()
        return writable, self.store.read_only_bookies()

    async def _bookies_without(self, failed: tuple[BookieId, ...]) -> BookiesRead:
        """Put the bookies ``failed`` into quarantine. Return the writable bookies, the bookies in quarantine, which are
        chosen last, and the racks and free space of bookies."""
        for bookies in (self._failed, self._slow):
            bookies.note(failed, self.config.quarantine_ms / 1000)
        await asyncio.to_thread(self.store.sync)  # rarely needed; a bookie that just came back is a spare
        writable = await self.refresh_bookies()
        return BookiesRead(writable, self._failed.now(), await self._surveyor.landscape())

    async def bookies_for_repair(self) -> BookiesRead:
        """Give the transport all addresses of bookies. Return the writable bookies, the bookies that failed lately, and
        the racks and free space of bookies."""
        return await self._bookies_without(())

    async def choose_bookies(self, size: int, write_quorum: int) -> tuple[BookieId, ...]:
        """Choose the bookies of a new ledger. Raises NotEnoughBookiesError."""
        writable = await self._known_bookies(at_least=size)
        landscape = await self._surveyor.landscape()
        chosen = self._choose(writable, size, write_quorum, landscape)
        self._surveyor.warn_of_few_racks(landscape, chosen, write_quorum)
        return chosen

    def _choose(
        self, writable: tuple[BookieId, ...], size: int, write_quorum: int, landscape: Landscape
    ) -> tuple[BookieId, ...]:
        return choose_ensemble(
            writable, size, self._random, avoid=self._failed.now(), write_quorum=write_quorum, landscape=landscape
        )

    def new_session(self) -> int:
        """Return a session number that this client has not used yet."""
        return next(self._sessions)

    def digester_of(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes, digest_type: DigestType | None
    ) -> Digester:
        """Make the ledger's digester. Raises WrongPasswordError or WrongDigestTypeError if the metadata has another
        password or digest type."""
        if metadata.password is not None and not hmac.compare_digest(metadata.password, bytes(password)):
            raise WrongPasswordError(
                f"the password given for ledger {ledger_id} is wrong",
                remedy="give the password it was created with (password=, --password, ledgerPassword)",
            )
        check_digest_type(f"ledger {ledger_id}", metadata.digest_type, digest_type)
        return Digester(digest_type or metadata.entry_digest_type, password, ledger_id)

    async def _no_such_ledger(self, ledger_id: LedgerId) -> NoSuchLedgerError:
        near = await self._nearest(ledger_id)
        return NoSuchLedgerError(
            f"there is no ledger {ledger_id} in this cluster",
            value=self.store.uri,
            remedy=f"nearest ids: {near}" if near else "the cluster has no ledgers yet",
        )

    async def _nearest(self, ledger_id: LedgerId) -> str:
        names = [str(known) for known in await self.list_ledgers()]
        near = get_close_matches(str(ledger_id), names, n=NEAREST_LEDGERS, cutoff=0.0) if len(names) < 10_000 else []
        return ", ".join(near)

    async def close(self) -> None:
        """End the session with the metadata store and all connections. Calls that wait raise ClientClosedError. Ledgers
        that are being written stay OPEN until a client recovers them."""
        self._is_closed = True
        try:
            for ending in [*self._handles, *self._recoveries]:
                ending.end(_closed_error())
            for table in self._lone_appends.values():
                table.close()
            for act in list(self._at_close):
                act()
            self._leave_budget()
            await self.transport.close()
        finally:  # even if this call is cancelled: otherwise the session would renew itself for ever
            await asyncio.to_thread(self.store.close)

    def check_open(self) -> None:
        """Raise ClientClosedError if this client is closed, and ForkedHandleError in a forked child."""
        self._guard.check("this client")
        if self._is_closed:
            raise _closed_error(Outcome.NOT_APPLIED)

    def at_close(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` when this client closes. Return a function that cancels this call."""
        self._at_close.add(act)
        return lambda: self._at_close.discard(act)

    async def __aenter__(self) -> BookKeeper:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _closed_error(outcome: Outcome | None = None) -> ClientClosedError:
    return ClientClosedError("this client is closed", remedy="connect again", outcome=outcome)


def check_arguments(password: object, digest_type: object, ledger_id: object = 0) -> None:
    """Raise InvalidArgumentError for an argument of a wrong type, for callers without a type checker."""
    if not isinstance(password, bytes | bytearray | memoryview):
        raise InvalidArgumentError(
            "a password is bytes",
            value=f"password is of type {type(password).__name__}",
            remedy='encode text first: password.encode("utf-8")',
        )
    if digest_type is not None and digest_type not in tuple(DigestType):
        raise InvalidArgumentError(
            "no such digest type",
            value=f"digest_type={digest_type!r}",
            remedy="use bk_core.model.DigestType." + " or ".join(kind.name for kind in DigestType),
        )
    if not isinstance(ledger_id, int):
        raise InvalidArgumentError("a ledger id is a number", value=f"ledger_id={ledger_id!r}", remedy="give an int")


def check_sizes(ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
    """Raise InvalidArgumentError for sizes that no ledger can have."""
    sizes = ensemble_size, write_quorum_size, ack_quorum_size
    if not all(isinstance(size, int) for size in sizes):
        raise InvalidArgumentError(
            "ensemble_size, write_quorum_size and ack_quorum_size are numbers", value=f"{sizes}", remedy="give ints"
        )
    if not ensemble_size >= write_quorum_size >= ack_quorum_size >= 1:
        raise InvalidArgumentError(
            "a ledger needs ensemble size ≥ write quorum ≥ ack quorum ≥ 1",
            value=f"ensemble_size={ensemble_size}, write_quorum_size={write_quorum_size}, "
            f"ack_quorum_size={ack_quorum_size}",
            remedy="for three copies of which two must be on disk: 3, 3, 2",
        )


def check_digest_type(of: str, found: DigestType | None, wanted: DigestType | None) -> None:
    """Raise WrongDigestTypeError if ``wanted`` and ``found`` are both given and differ. ``found`` is the digest type of
    the ledger or log that ``of`` names."""
    if wanted is not None and found is not None and wanted != found:
        raise WrongDigestTypeError(
            f"{of} has digest type {found.name}",
            value=f"digest_type={DigestType(wanted).name}",
            remedy=f"leave digest_type out to take the {of.partition(' ')[0]}'s own",
        )


async def connect(uri: str, *, config: ClientConfig | None = None) -> BookKeeper:
    """Connect to the cluster whose metadata service is at ``uri`` (``zk://host:2181/ledgers``).

    Raises InvalidArgumentError for an unusable URI, MetadataUnavailableError if the service does not answer within
    ``metadata_timeout_s``, NoClusterError if there is no cluster under that root, and ForkedHandleError in a forked
    child of a process that had connected before the fork.
    """
    check_can_connect()
    settings = config or ClientConfig()
    opening = _Opening(uri, settings)
    try:
        store = await asyncio.to_thread(opening.run)
    except BaseException:
        opening.give_up()
        raise
    try:
        instance_id = await asyncio.to_thread(store.instance_id)
        transport = LaneTransport(settings.caller(instance_id), look_up=store.bookie_info)
    except BaseException:
        await asyncio.to_thread(store.close)
        raise
    return BookKeeper(store, transport, instance_id=instance_id, config=settings)


class _Opening:
    """Opens a metadata store in a thread. If the caller is cancelled, the thread closes the store once it is open.
    Otherwise the session would renew itself for as long as the process lives."""

    def __init__(self, uri: str, settings: ClientConfig) -> None:
        self._uri, self._settings = uri, settings
        self._lock = threading.Lock()
        self._given_up = False
        self._store: MetadataStore | None = None

    def run(self) -> MetadataStore:
        store = open_store(self._uri, **self._settings.store_settings())
        with self._lock:
            self._store, given_up = store, self._given_up
        if given_up:
            store.close()
        return store

    def give_up(self) -> None:
        with self._lock:
            self._given_up, store = True, self._store
        if store is not None:  # the store was opened just before; a close blocks, so a thread makes the call
            threading.Thread(target=store.close, name="bookkeeper-close", daemon=True).start()
