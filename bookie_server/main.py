# SPDX-License-Identifier: Apache-2.0
"""Runs a bookie as a process: makes its parts, serves until SIGTERM, and stops cleanly.

A start checks everything that can fail before it writes anything. It binds the ports before it touches the data
directory, and it registers the bookie only when the bookie can answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import heapq
import logging
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import bk_core
from bk_core.errors import BookieIdentityError, BookKeeperError, MetadataUnavailableError, StorageFailedError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, Endpoint, LedgerId
from bk_core.observe.audit import REFUSED, AuditFile
from bk_core.observe.slow_log import SlowLog
from bookie_server.admin.bookie_view import BookieView, HealingCounts, UpkeepCounts
from bookie_server.admin.endpoints import AdminPort
from bookie_server.audit import AuditLog
from bookie_server.autorecovery.own_copies import OwnCopies, SuspectsOfIndexes
from bookie_server.config import BookieConfig
from bookie_server.engine.engine import BookieEngine
from bookie_server.engine.holdings import IndexHoldings
from bookie_server.engine.log_driver import OpenLog
from bookie_server.engine.loop import new_loop
from bookie_server.engine.maintenance_thread import maintained
from bookie_server.engine.own_reads import OwnReads
from bookie_server.engine.several_directories import SpreadHoldings
from bookie_server.garbage.garbage_thread import GarbageThread, garbage_thread
from bookie_server.identity.availability import Availability
from bookie_server.identity.directories import find_cluster
from bookie_server.identity.known_state import noted_boot
from bookie_server.identity.opening import OpenStorage, open_storage
from bookie_server.identity.registration import advertised_address, service_info
from bookie_server.machine.events import CopiesUnwanted, Event, LedgersDeleted, ReadOnlyChanged
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import Holdings
from bookie_server.ports.access.authority import Authority
from bookie_server.ports.access.tls import PortTls
from bookie_server.ports.bounds.clients import Clients
from bookie_server.ports.bounds.memory_bounds import raise_files_max
from bookie_server.ports.lane.streams import BookieFacts
from bookie_server.ports.service import Service, authority_of, listen, port_tls
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.space import SpaceWatch, Usage, choose_directory

if TYPE_CHECKING:
    from bk_core.client.bookkeeper import BookKeeper

logger = logging.getLogger(__name__)

EXIT_STORAGE_FAILED = 74
"""The exit code after a failed sync (RULES S6). It is EX_IOERR of sysexits.h."""

EXIT_BUG = 70
"""The exit code after a bug in this program. It is EX_SOFTWARE of sysexits.h."""

_START_AGAIN_S = 1.0
"""The seconds between two attempts to start while the metadata store does not answer."""

_COLLECTION_OBJECTS = 200_000
"""The number of new objects after which Python's garbage collector looks for cycles. A burst of frames makes tens of
thousands of objects, none of them in a cycle. With Python's default, 700, a third of the loop's time with ten thousand
ledgers went into looking, and with 50,000 an eighth. Cycles that are not found yet take some tens of megabytes."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def run(
    config: BookieConfig,
    on_ready: Callable[[BookieId, int], None] | None = None,
    *,
    accept_loss: bool = False,
    init_cluster: bool = False,
) -> int:
    """Serve until SIGTERM or SIGINT, and return the process's exit code: 0, EXIT_STORAGE_FAILED or EXIT_BUG.

    Once registered, it prints ``ready <id> <port>``, or calls ``on_ready`` instead. ``accept_loss`` starts a wiped or
    older directory under a known id (``loss.py``). ``init_cluster`` makes the cluster if there is none
    (``find_cluster``). Neither is a setting, so that no operator leaves it on for good.

    Raises NoClusterError, InvalidArgumentError, MetadataUnavailableError (after ``start_wait_s``), PortInUseError,
    DataDirectoryError, BookieIdentityError; then nothing was registered. Also raises BookieIdentityError if another
    directory is registered under this bookie's id later.

    It tunes this process's allocator, its garbage collector and its limit of open files, so call it only in a process
    of its own (RULES K5).
    """
    tune_allocator()
    gc.set_threshold(_COLLECTION_OBJECTS)
    raise_files_max()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_run(config, on_ready or _print_ready, accept_loss, init_cluster))


def tune_allocator() -> None:
    """Make malloc keep message buffers in the heap, so that each new buffer does not cost page faults."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        mallopt(_M_TOP_PAD, 16 << 20)


def _print_ready(bookie_id: BookieId, port: int) -> None:
    print(f"ready {bookie_id} {port}", flush=True)


async def _run(
    config: BookieConfig, on_ready: Callable[[BookieId, int], None], accept_loss: bool, init_cluster: bool
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    bookie = await started(
        lambda: Bookie.start(config, accept_loss=accept_loss, init_cluster=init_cluster), config.start_wait_s, stop
    )
    if bookie is None:
        return 0
    try:
        on_ready(bookie.bookie_id, bookie.port)
        stopping = loop.create_task(stop.wait())
        failing = loop.create_task(bookie.failed.wait())
        await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        failing.cancel()
    finally:
        await bookie.stop()
    if bookie.error is None:
        return 0
    if isinstance(bookie.error, BookieIdentityError):
        raise bookie.error
    return EXIT_STORAGE_FAILED if isinstance(bookie.error, StorageFailedError) else EXIT_BUG


async def started(start: Callable[[], Awaitable[Bookie]], wait_s: float, stop: asyncio.Event) -> Bookie | None:
    """Start a bookie and return it; return None if ``stop`` is set while it waits for the metadata store.

    It waits up to ``wait_s`` for a metadata store that does not answer, because after a power cut all machines of a
    cluster start together.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return await start()
        except MetadataUnavailableError as error:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            logger.warning("the start is retried for up to %.0f s more: %s", left_s, error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_START_AGAIN_S, left_s)):
                await stop.wait()
        if stop.is_set():
            return None


class Bookie:
    """A bookie that runs on the current loop; tests start it in their own process. When ``error`` forces the bookie to
    end, ``failed`` is set."""

    def __init__(self, config: BookieConfig, store: MetadataStore, address: str) -> None:
        self._config, self._store, self._address = config, store, address
        self._clients = Clients(config.server_limits(), config.client_limits())
        self._services: list[Service] = []
        self._opened: tuple[OpenStorage, ...] = ()
        self._engine: BookieEngine | None = None
        self._garbage: GarbageThread | None = None
        self.bookie_id: BookieId = ""
        self.port = 0
        self._why_read_only = ""  # the reason that the audit log has last
        self.failed = asyncio.Event()
        self.error: BookKeeperError | None = None
        self._availability: Availability | None = None
        self._care = contextlib.AsyncExitStack()
        self.own_copies: OwnCopies | None = None
        self._view = BookieView(config, f"pyspark-bookkeeper {bk_core.__version__}", self._clients, lambda: self.error)
        self._view.unreadable.append(store.unreadable)
        self._admin: AdminPort | None = None
        self._tls: PortTls | None = None
        self._audit = self._clients.audit = AuditLog()
        self._authority: Authority | None = None

    @classmethod
    async def start(
        cls,
        config: BookieConfig,
        store: MetadataStore | None = None,
        *,
        accept_loss: bool = False,
        init_cluster: bool = False,
    ) -> Bookie:
        """Open the directories, replay the logs, serve clients, and register. Raises as :func:`run`; then nothing is
        left open, and ``store`` is closed too."""
        address = await asyncio.to_thread(advertised_address, config)
        if store is None:
            store = await asyncio.to_thread(open_store, config.metadata_service_uri, **config.store_settings())
        bookie = cls(config, store, address)
        try:
            bookie._open_audit()
            await asyncio.to_thread(find_cluster, config, store, make=init_cluster)
            bookie._tls = await asyncio.to_thread(port_tls, config, store)
            bookie._authority = await asyncio.to_thread(authority_of, config, store)
            bookie._tell_audit()
            for service in listen(config, bookie._clients, bookie._tls):
                bookie._services.append(service)
            bookie.port = bookie._services[0].port
            bookie._open_admin()
            await bookie._open(accept_loss)
        except BaseException:
            await bookie.stop()
            raise
        return bookie

    def _open_audit(self) -> None:
        """Open the audit file, if one is configured. Raises InvalidArgumentError if it cannot be written."""
        config = self._config
        if config.audit_path is not None:
            self._audit.file = AuditFile(config.audit_path, config.audit_file_bytes_max, config.audit_files_max)

    def _tell_audit(self) -> None:
        """Write refused TLS connections and changed roles to the audit log."""
        audit = self._audit
        if self._tls is not None:
            self._tls.on_refused = lambda peer, port, why: audit.say(
                "connect", REFUSED, address=peer, lane=port, why=why
            )
        if self._authority is not None:
            self._authority.on_roles = lambda table: audit.say("roles-changed", count=len(table.lines))

    def _open_admin(self) -> None:
        """Start the admin port, if it is configured. It answers from here on, at first that the bookie is starting."""
        if self._config.admin_port:
            self._admin = AdminPort(self._config, self._view, self._tls, self._authority, self._audit)
            self._admin.start()
            self._view.pulse.start()

    def _endpoints(self) -> list[Endpoint]:
        admin = [] if self._admin is None else [self._admin.endpoint(self._address)]
        return [*(each.endpoint(self._address) for each in self._services), *admin]

    async def _open(self, accept_loss: bool) -> None:
        config, store = self._config, self._store
        opened = self._opened = await asyncio.to_thread(
            open_storage, config, store, self._address, self.port, accept_loss=accept_loss
        )
        for each in opened:
            for damage in each.report.damage:
                logger.error("damage: %s: %s", each.directory.path, damage)
        directories = [each.directory for each in opened]
        identity = directories[0].identity
        self.bookie_id = self._audit.bookie_id = identity.bookie_id
        if accept_loss:
            self._audit.say("accept-loss", ledgers_in_limbo=sum(len(each.report.ledgers_in_limbo) for each in opened))
        noted = replace(identity, boot_count=await asyncio.to_thread(noted_boot, store, directories[0]))

        def look() -> list[Usage]:
            return [each.directory.usage(each.log.pool.kept_bytes) for each in opened]

        limits = config.space_limits()
        watches = [SpaceWatch(limits, usage) for usage in await asyncio.to_thread(look)]
        loop = asyncio.get_running_loop()
        self._engine = BookieEngine(
            BookieMachine(_holdings(opened, watches), config.machine_limits(), len(opened)),
            [
                OpenLog(
                    each.log,
                    each.reader,
                    maintained(each, config.maintenance_limits(), loop, random.random()),
                    each.directory.path,
                )
                for each in opened
            ],
            group_bytes_max=config.group_bytes_max,
            group_frames_max=config.group_frames_max,
            on_failed=self._fail,
            on_hint=lambda ledger_ids: garbage.hint(ledger_ids),
            on_segment=lambda: availability.look_soon(),
            on_no_space=lambda number: availability.no_space(number),
            slow=SlowLog(logging.getLogger("bookie_server.slow"), config.slow_operation_ms / 1000),
        )
        engine = self._engine
        garbage = self._garbage = garbage_thread(
            store, noted, lambda: _ledgers_held(opened), self._collected, config.collector(), self._fail
        )
        availability = self._availability = Availability(
            look,
            watches,
            store,
            await asyncio.to_thread(service_info, directories, self._endpoints()),
            paths=[directory.path for directory in directories],
            interval_s=config.disk_check_interval_s,
            positions=lambda: {each.directory.identity.incarnation: each.log.position for each in opened},
            set_read_only=self._set_read_only,
            on_failed=self._fail,
        )
        own_copies = self.own_copies = OwnCopies(
            store,
            identity.bookie_id,
            OwnReads(engine).gaps,
            SuspectsOfIndexes([each.index for each in opened], store, identity.bookie_id),
        )
        self._view.own_copies = own_copies
        self._view.show(
            identity.bookie_id,
            [directory.path for directory in directories],
            lambda: [len(each.index) for each in opened],
            engine,
            availability,
            garbage,
        )
        facts = BookieFacts(
            bookie_id=identity.bookie_id,
            instance_id=identity.cluster,
            incarnation=identity.incarnation,
            in_flight_bytes_max=config.stream_bytes_max,
            read_only=lambda: availability.read_only,
            version=self._view.version,
            space=lambda: _space(directories),
            lacking=lambda: own_copies.counts(),
            authority=self._authority,
            port_tls=self._tls,
            limits=self._clients.limits,
            audit=self._audit,
        )
        for service in self._services:
            await service.start(engine, facts)
        ports = [service.port for service in self._services]
        self._clients.watch(ports, *([] if self._tls is None else [self._tls.outlived]))
        await availability.begin()
        garbage.start()
        own_copies.start()
        if config.auto_recovery or config.upkeep:
            await self._begin_care()
        logger.info("bookie %s serves on port %d", self.bookie_id, self.port)

    def _collected(self, event: Event) -> None:
        """Pass a decision of the garbage collector to the machine, and write it to the audit log."""
        assert self._engine is not None
        self._engine.feed(event)
        if isinstance(event, (LedgersDeleted, CopiesUnwanted)):
            self._audit.ledgers(
                "delete" if isinstance(event, LedgersDeleted) else "give-up-copy",
                list(event.ledger_ids),
                why="garbage collection",
            )

    def _set_read_only(self, number: int, read_only: bool) -> None:
        assert self._engine is not None
        assert self._availability is not None
        self._engine.feed(ReadOnlyChanged(read_only, number))
        why = self._availability.why_read_only
        if why != self._why_read_only:
            self._why_read_only = why
            self._audit.say("read-only" if why else "writable", why=why)

    async def _begin_care(self) -> None:
        """Start auto-recovery and upkeep. They share a client of their own, so that their work does not get in the way
        of the registration."""
        from bk_core.client import ClientConfig, connect  # most bookies need no client

        client = await connect(self._config.metadata_service_uri, config=ClientConfig(**self._config.client_settings()))
        self._care.push_async_callback(client.close)
        self._view.unreadable.append(client.store.unreadable)
        if self._config.auto_recovery:
            await self._begin_healing(client)
        if self._config.upkeep:
            await self._begin_upkeep(client)

    async def _begin_upkeep(self, client: BookKeeper) -> None:
        from bk_core.logs.model.upkeep_plan import UpkeepConfig
        from bk_core.logs.passwords import passwords_of
        from bk_core.logs.upkeep_worker import UpkeepWorker

        config = self._config
        settings = UpkeepConfig(
            copy_bytes_per_s=config.upkeep_bytes_per_s, copy_bytes_per_hour=config.upkeep_bytes_per_hour
        )
        passwords = await asyncio.to_thread(passwords_of, config.upkeep_passwords_file)
        worker = await self._care.enter_async_context(UpkeepWorker(client, self.bookie_id, settings, passwords))
        self._view.upkeep = lambda: UpkeepCounts(
            worker.elected, worker.done.deleted_ledgers, worker.done.copied_bytes, worker.done.failures
        )

    async def _begin_healing(self, client: BookKeeper) -> None:
        """Start auto-recovery: its auditor and its workers."""
        from bookie_server.autorecovery.main import AutoRecovery
        from bookie_server.autorecovery.settings import AutoRecoveryConfig

        config = self._config
        settings = AutoRecoveryConfig(
            replication_bytes_per_s=config.replication_bytes_per_s, lost_bookie_delay_s=config.lost_bookie_delay_s
        )
        healing = await self._care.enter_async_context(AutoRecovery(client, self.bookie_id, settings))
        workers, auditor = healing.workers, healing.auditor
        self._view.healing = lambda: HealingCounts(
            workers.repaired,
            workers.copied_entries,
            workers.copied_bytes,
            workers.running,
            len(workers.put_off),
            auditor.marked,
            auditor.elected,
        )

    def _fail(self, error: BookKeeperError) -> None:
        logger.critical("this bookie answers nothing more: %s", error)
        self.error = self.error or error
        self.failed.set()

    async def stop(self) -> None:
        """Leave the writable list, end the streams, make accepted frames durable, record the position, and close
        everything. The admin port closes last."""
        self._view.stops = True
        try:
            await self._stop_parts()
        finally:
            self._view.pulse.stop()
            if self._admin is not None:
                await asyncio.to_thread(self._admin.stop)
            await asyncio.to_thread(self._audit.close)

    async def _stop_parts(self) -> None:
        await self._care.aclose()
        if self.own_copies:
            await self.own_copies.stop()
        if self._availability:
            await self._availability.end()
        if self._garbage:
            self._garbage.stop()
        if self._engine:
            self._engine.end_streams("the bookie stops")
        self._clients.stop()
        await asyncio.gather(*(service.stop(self._config.stop_grace_s) for service in self._services))
        if self._engine:
            await self._engine.stop()
        for each in self._opened:
            each.directory.close()
        if self._authority:
            self._authority.close()
        await asyncio.to_thread(self._store.close)
        if self._garbage:
            await asyncio.to_thread(self._garbage.join)


def _holdings(opened: Sequence[OpenStorage], watches: Sequence[SpaceWatch]) -> Holdings:
    parts = [IndexHoldings(each.index, each.reader) for each in opened]
    if len(parts) == 1:
        return parts[0]
    return SpreadHoldings(parts, lambda ledger_id: choose_directory(ledger_id, watches))


def _ledgers_held(opened: Sequence[OpenStorage]) -> list[LedgerId]:
    """Return the ids of all ledgers of all directories, ascending. Each ledger is in one directory."""
    return list(heapq.merge(*(each.index.ledger_ids() for each in opened)))


def _space(directories: Sequence[DataDirectory]) -> tuple[int, int]:
    """Return the total and the free bytes. A file system counts once for each data directory on it."""
    usages = [each.usage() for each in directories]
    return sum(usage.total_bytes for usage in usages), sum(usage.free_bytes for usage in usages)


if __name__ == "__main__":
    sys.exit("run a bookie with: bk bookie run")
