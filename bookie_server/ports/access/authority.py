# SPDX-License-Identifier: Apache-2.0
"""Mode ``secure``: decides the rights of clients at this bookie. It reads the table of roles and the metadata of
ledgers, signs grants, and verifies the grants that clients show (docs/security.md §6, decision 0064).

It reads the metadata store only to make a grant, never to verify one. It caches the data for ``KEPT_S``, and for
``STALE_S`` while the store does not answer, so that writers continue through an outage of the store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from bk_core.access.grants import NO_LEDGER, Grant, Keys, parse_keys
from bk_core.access.needs import Need, allowed
from bk_core.access.roles import LOG_KEY, Anywhere, LedgerFacts, Right, RolesTable
from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerId, LedgerMetadata
from bk_core.wire.lane.reasons import Reason
from bookie_server.ports.access.key_files import read_key_file, stamp_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRANT_LIFE_MS = 600_000
"""The default of the time for which a grant is valid, in milliseconds."""
KEPT_S = 5.0
"""The default of the time, in seconds, for which data of the metadata store are cached."""
STALE_S = 3_600.0
"""The time, in seconds, for which cached data are used while the metadata store does not answer."""
CLOCKS_MS = 60_000
"""A grant is valid from this many milliseconds before it is made, because the clocks of bookies differ."""
LEDGERS_KEPT = 10_000
"""The maximum number of ledgers whose facts are cached."""
VALUE_BYTES_KEPT = 1_024
"""The maximum size, in bytes, of a key and value of custom metadata that is cached. It keeps the cache small."""
MAKING_MAX = 512
"""The maximum number of grants that are made at the same time. One identity may have half of them. Further requests are
refused as OVERLOADED."""
THREADS = 4
"""The number of threads that make grants, because making one may wait for the metadata store."""


class Denied(Exception):
    """The error for a grant that is not made, because of ``reason``. Its text may be sent to the client."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Made(NamedTuple):
    grant: bytes
    rights: Right
    life_ms: int


class GrantKeys:
    """The keys in the file of grant keys. Each use checks whether the file has changed, and then reads it again. The
    constructor raises InvalidArgumentError for a file that cannot be used; later, the old keys stay in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp, self._keys = _read_keys(path)
        self._failed: object = None

    def now(self) -> Keys:
        stamp = stamp_of(self._path)
        if stamp not in (self._stamp, self._failed):
            try:
                self._stamp, self._keys = _read_keys(self._path)
                logger.info("the changed file of grant keys is in use")
            except InvalidArgumentError as error:
                self._failed = stamp
                logger.warning("the changed file of grant keys cannot be used, so the old keys stay in use: %s", error)
        return self._keys


def _read_keys(path: Path) -> tuple[object, Keys]:
    stamp = stamp_of(path)
    try:
        text = read_key_file(path, secret=True).decode("ascii")
    except (OSError, ValueError) as error:  # the text must not show any part of a key
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise InvalidArgumentError(
            "the file of grant keys cannot be used",
            value=f"{path}: {why}",
            remedy="check grant_keys_path and the file's permissions",
        ) from (None if isinstance(error, UnicodeDecodeError) else error)
    try:
        return stamp, parse_keys(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(error.what, value=f"{path}: {error.value}", remedy=error.remedy) from error


class Authority:
    """Decides the rights of the clients of one bookie. Any thread may call it. ``now_ms`` returns the time since 1970,
    ``clock_s`` a time that never goes back."""

    def __init__(
        self,
        store: MetadataStore,
        keys: GrantKeys,
        instance_id: str,
        *,
        life_ms: int = GRANT_LIFE_MS,
        kept_s: float = KEPT_S,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._keys, self._instance_id = store, keys, instance_id
        self._life_ms, self._kept_s, self.now_ms, self._clock_s = life_ms, kept_s, now_ms, clock_s
        self._lock = threading.Lock()
        self._table: tuple[float, RolesTable] | None = None
        self._ledgers: OrderedDict[LedgerId, tuple[float, LedgerFacts]] = OrderedDict()
        self._making: Counter[str] = Counter()  # grants being made, by identity
        self._away: tuple[float, MetadataUnavailableError] | None = None
        self._threads = ThreadPoolExecutor(THREADS, "bookie-grants")
        self.on_roles: Callable[[RolesTable], object] = lambda table: None
        """Called, on any thread, with a table of roles that differs from the last one."""

    def close(self) -> None:
        """Make no more grants."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- grants ---

    def verify(self, grant: bytes, identity: str) -> Grant:
        """Verify a grant of this identity, and return its contents. Raises GrantRefused."""
        return self._keys.now().verify(grant, instance_id=self._instance_id, identity=identity, now_ms=self.now_ms())

    async def grant(self, identity: str, ledger_id: LedgerId, wanted: Right) -> Made:
        """Make a grant with all rights of this identity on a ledger, or on NO_LEDGER. Raises Denied unless these rights
        include those in ``wanted``."""
        making = self._making
        if making.total() >= MAKING_MAX or making[identity] >= MAKING_MAX // 2:
            raise Denied(Reason.OVERLOADED, "too many grants are asked for at once")
        making[identity] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._make, identity, ledger_id, wanted)
        finally:
            making[identity] -= 1
            if not making[identity]:
                del making[identity]

    def _make(self, identity: str, ledger_id: LedgerId, wanted: Right) -> Made:
        facts = LedgerFacts(ledger_id)
        try:
            table = self.table()
            if ledger_id == NO_LEDGER:
                rights = table.rights(identity, Anywhere.ANYWHERE)
            else:
                rights = table.rights(identity, Anywhere.CLUSTER)
                if wanted not in rights:  # only then the ledger must be looked up
                    facts = self._facts(ledger_id)
                    rights = table.rights(identity, facts)
        except BookKeeperError as error:
            logger.warning("no grant can be made for %s: %s", identity, error)
            raise Denied(Reason.OVERLOADED, "this bookie cannot read the table of roles now") from error
        if not wanted or wanted not in rights:
            raise Denied(Reason.PERMISSION_DENIED, denial(identity, wanted, ledger_id, facts))
        now_ms = self.now_ms()
        until_ms = now_ms + self._life_ms
        grant = Grant(self._instance_id, identity, ledger_id, rights, now_ms - CLOCKS_MS, until_ms)
        return Made(self._keys.now().sign(grant), rights, self._life_ms)

    # --- roles on the cluster ---

    def allows(self, identity: str | None, need: Need) -> bool:
        """Return whether an identity may make a request that has this need on the cluster. May block. Raises
        BookKeeperError if the table of roles cannot be read."""
        return allowed(RolesTable(), identity or "", need) or allowed(self.table(), identity or "", need)

    def cluster_rights(self, identity: str | None) -> Right:
        """Return all rights of an identity on the cluster. If the table of roles cannot be read, return no rights. May
        block."""
        try:
            return self.table().rights(identity or "", Anywhere.CLUSTER)
        except BookKeeperError as error:
            logger.warning("the rights of %s cannot be determined: %s", identity, error)
            return Right.NONE

    async def rights(self, identity: str | None) -> Right:
        """Call :meth:`cluster_rights` on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.cluster_rights, identity)

    def table(self) -> RolesTable:
        """Return the table of roles, at most ``kept_s`` old, or ``STALE_S`` while the store does not answer. Blocks.
        Raises BookKeeperError."""
        with self._lock:
            kept, now = self._table, self._clock_s()
            if kept is not None and now - kept[0] < self._kept_s:
                return kept[1]
            try:
                found = self._ask(self._store.read_roles)
            except MetadataUnavailableError:
                if kept is None or now - kept[0] >= STALE_S:
                    raise
                return kept[1]
            table = RolesTable() if found is None else found.value
            self._table = now, table
        if kept is not None and kept[1] != table:
            self.on_roles(table)
        return table

    def _ask(self, read: Callable[[], T]) -> T:
        """Read from the store. If the store did not answer a read, later reads fail immediately for ``kept_s`` seconds,
        because each of them would take seconds."""
        away = self._away
        if away is not None and self._clock_s() - away[0] < self._kept_s:
            raise away[1]
        try:
            return read()
        except MetadataUnavailableError as error:
            self._away = self._clock_s(), error
            raise

    def _facts(self, ledger_id: LedgerId) -> LedgerFacts:
        """Return the facts about a ledger that roles depend on. For a ledger that does not exist they are empty and not
        cached: otherwise a client that asks for a future ledger could get that ledger's writer denied. Raises
        BookKeeperError."""
        now = self._clock_s()
        with self._lock:
            kept = self._ledgers.get(ledger_id)
        if kept is not None and now - kept[0] < self._kept_s:
            return kept[1]
        try:
            found = self._ask(lambda: self._read_ledger(ledger_id)).custom_metadata
        except (NoSuchLedgerError, MetadataCorruptError, InvalidArgumentError):
            with self._lock:
                self._ledgers.pop(ledger_id, None)
            return LedgerFacts(ledger_id)
        except MetadataUnavailableError:
            if kept is None or now - kept[0] >= STALE_S:
                raise
            return kept[1]
        short = {key: value for key, value in found.items() if len(key) + len(value) <= VALUE_BYTES_KEPT}
        facts = LedgerFacts(ledger_id, short)
        with self._lock:
            self._ledgers[ledger_id] = now, facts
            self._ledgers.move_to_end(ledger_id)
            if len(self._ledgers) > LEDGERS_KEPT:
                self._ledgers.popitem(last=False)
        return facts

    def _read_ledger(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Read a ledger's record. A server that lags may not have a new ledger yet, so after a "no" this syncs and
        reads again (M5)."""
        try:
            return self._store.read_ledger(ledger_id).value
        except NoSuchLedgerError:
            self._store.sync()
            return self._store.read_ledger(ledger_id).value


_VERBS = {
    Right.LOOK: "look at bookies",
    Right.READ: "read",
    Right.WRITE: "write to",
    Right.RECOVER: "recover",
    Right.HINT: "report deleted ledgers",
    Right.OPERATE: "change how bookies run",
}
_ROLES = {Right.LOOK: "reader", Right.READ: "reader", Right.OPERATE: "operator"}


def denial(identity: str, wanted: Right, ledger_id: LedgerId = NO_LEDGER, facts: LedgerFacts | None = None) -> str:
    """Return a text with the missing right and, after ``; ``, the command that an administrator types."""
    log = facts.text(LOG_KEY) if facts is not None else None
    verb, role = _VERBS.get(wanted, "do that with"), _ROLES.get(wanted, "writer")
    command = f"bk role grant {role} '{identity}'"
    if ledger_id == NO_LEDGER:
        return f"{identity} may not {verb}; an administrator can allow it: {command}"
    of = f"ledger {ledger_id} of log {log}" if log else f"ledger {ledger_id}"
    return f"{identity} may not {verb} {of}; an administrator can allow it: {command}{f' --log {log}' if log else ''}"
