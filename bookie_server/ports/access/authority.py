# SPDX-License-Identifier: Apache-2.0
"""Mode ``secure``: the rights of clients at this bookie. It reads the table of roles and what ledgers are for, signs
grants, and checks those that clients show (docs/security.md §6, decision 0064).

The metadata store is read when a grant is made, never for what a client does with it. What was read is kept for
seconds; while the store does not answer, for an hour, so that writers outlive it.
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
KEPT_S = 5.0
STALE_S = 3_600.0
CLOCKS_MS = 60_000
"""A grant begins so much before it is made: the clocks of bookies differ."""
LEDGERS_KEPT = 10_000
VALUE_BYTES_KEPT = 1_024
MAKING_MAX = 512
"""Limits the grants that are made at once; one identity has half of them. More are refused as OVERLOADED."""
THREADS = 4


class Denied(Exception):
    """No grant is made, for ``reason``; the text is safe to tell the client."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Made(NamedTuple):
    grant: bytes
    rights: Right
    life_ms: int


class GrantKeys:
    """The file of keys. It is looked at for each use, and taken anew when it has changed. Raises InvalidArgumentError,
    when it is made, for a file that cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp, self._keys = _read_keys(path)
        self._failed: object = None

    def now(self) -> Keys:
        stamp = stamp_of(self._path)
        if stamp not in (self._stamp, self._failed):
            try:
                self._stamp, self._keys = _read_keys(self._path)
                logger.info("the file of grant keys has changed, and is taken")
            except InvalidArgumentError as error:
                self._failed = stamp
                logger.warning("the file of grant keys has changed and is not taken, the old keys serve: %s", error)
        return self._keys


def _read_keys(path: Path) -> tuple[object, Keys]:
    stamp = stamp_of(path)
    try:
        text = read_key_file(path, secret=True).decode("ascii")
    except (OSError, ValueError) as error:  # no part of a key is told
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
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
    """The authority of one bookie; any thread may call. ``now_ms`` is the time since 1970, ``clock_s`` one that never
    goes back."""

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
        self._making: Counter[str] = Counter()  # by identity
        self._away: tuple[float, MetadataUnavailableError] | None = None
        self._threads = ThreadPoolExecutor(THREADS, "bookie-grants")
        self.on_roles: Callable[[RolesTable], object] = lambda table: None
        """Called on any thread with a table of roles that is another one than before."""

    def close(self) -> None:
        """No more grants are made."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- grants ---

    def verify(self, grant: bytes, identity: str) -> Grant:
        """Raises GrantRefused."""
        return self._keys.now().verify(grant, instance_id=self._instance_id, identity=identity, now_ms=self.now_ms())

    async def grant(self, identity: str, ledger_id: LedgerId, wanted: Right) -> Made:
        """A grant with all that this identity may do with a ledger, or with NO_LEDGER. Raises Denied unless that has
        what is ``wanted``."""
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
                if wanted not in rights:  # else there is nothing to look up
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
        """Whether an identity may do what needs this on the cluster. May block. Raises BookKeeperError if nobody can
        say."""
        return allowed(RolesTable(), identity or "", need) or allowed(self.table(), identity or "", need)

    def cluster_rights(self, identity: str | None) -> Right:
        """All that an identity may on the cluster; nothing if nobody can say. May block."""
        try:
            return self.table().rights(identity or "", Anywhere.CLUSTER)
        except BookKeeperError as error:
            logger.warning("nobody can say what %s may: %s", identity, error)
            return Right.NONE

    async def rights(self, identity: str | None) -> Right:
        """As :meth:`cluster_rights`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.cluster_rights, identity)

    def table(self) -> RolesTable:
        """As it is in the store, or was seconds ago. Blocks. Raises BookKeeperError."""
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
        """What the store says. One that did not answer is left alone for a while: each question takes seconds."""
        away = self._away
        if away is not None and self._clock_s() - away[0] < self._kept_s:
            raise away[1]
        try:
            return read()
        except MetadataUnavailableError as error:
            self._away = self._clock_s(), error
            raise

    def _facts(self, ledger_id: LedgerId) -> LedgerFacts:
        """What a ledger is for; of one that is not there, nothing. That is not kept: otherwise a client that asks for a
        future ledger would have its writer denied. Raises BookKeeperError."""
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
        """A server that lags may not know a new ledger yet: its no is asked again (M5)."""
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
    Right.HINT: "tell of deleted ledgers",
    Right.OPERATE: "change how bookies run",
}
_ROLES = {Right.LOOK: "reader", Right.READ: "reader", Right.OPERATE: "operator"}


def denial(identity: str, wanted: Right, ledger_id: LedgerId = NO_LEDGER, facts: LedgerFacts | None = None) -> str:
    """The missing right and, after ``; ``, what an administrator types."""
    log = facts.text(LOG_KEY) if facts is not None else None
    verb, role = _VERBS.get(wanted, "do that with"), _ROLES.get(wanted, "writer")
    command = f"bk role grant {role} '{identity}'"
    if ledger_id == NO_LEDGER:
        return f"{identity} may not {verb}; an administrator can allow it: {command}"
    of = f"ledger {ledger_id} of log {log}" if log else f"ledger {ledger_id}"
    return f"{identity} may not {verb} {of}; an administrator can allow it: {command}{f' --log {log}' if log else ''}"
