# SPDX-License-Identifier: Apache-2.0
"""The thread that finds deleted ledgers. It carries out the effects of the collector (RULES S9, M2).

Every look and comparison begins with ``sync()`` and is made in one session. Before and after it, the thread checks that
the store is the one with which this bookie started: it reads the INSTANCEID and the record of this start at
``<root>-bookies/<id>``, and both must be the same. Otherwise the result does not count. So nothing is deleted if the
root is gone, if another cluster has the same address, or if the store was restored from a backup older than this start.
Any error ends the look, and the collector tries again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from bk_core.errors import (
    BookieIdentityError,
    BookKeeperError,
    LocalProtocolError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
)
from bk_core.metadata.port import MetadataStore, SessionState
from bk_core.model import BookieId, LedgerId, LedgerMetadata
from bookie_server.garbage import collector as gc
from bookie_server.garbage.collector import Collector, CollectorConfig
from bookie_server.machine.events import CopiesUnwanted, Event, LedgersDeleted
from bookie_server.storage.disk.cookie import Identity

logger = logging.getLogger(__name__)

LOCK_HOLDS_S = 2.0
"""The seconds for which our session, and with it a lock, surely lasts after a call to the store. This is well below the
shortest session timeout that ZooKeeper grants by default, 4 s."""

_LOOK_IDS = 1_000  # records that a comparison reads in one look
_CHUNK = 1 << 16  # listed ledgers compared at a time
_LOOP_TIMEOUT_S = 30.0
"""The seconds for which the thread waits for an answer of the loop."""


class StoreEvidence:
    """Reads evidence about ledgers from the store, and raises an error where nothing is certain. Its calls block, and
    only one thread may use it at a time.

    ``incarnation`` and ``boot_count`` are those of this start, as the bookie recorded them in the store.
    """

    def __init__(self, store: MetadataStore, bookie_id: BookieId, incarnation: str, boot_count: int) -> None:
        self._store, self._bookie_id = store, bookie_id
        self._start = (incarnation, boot_count)
        self._locked: set[LedgerId] = set()  # ledgers whose lock we hold, or may hold

    def look(self, ledger_ids: Sequence[LedgerId], look: int = 0) -> gc.Looked:
        """Look up each ledger by its id. Raises BookKeeperError, after which nothing is known about any of them."""
        session = self._begin()
        gone: set[LedgerId] = set()
        found: dict[LedgerId, int] = {}
        elsewhere: set[LedgerId] = set()
        for ledger_id in ledger_ids:
            try:
                record = self._store.read_ledger(ledger_id)
                found[ledger_id] = record.version
                if self._is_elsewhere(record.value):
                    elsewhere.add(ledger_id)
            except NoSuchLedgerError:
                gone.add(ledger_id)
            except MetadataCorruptError:
                found[ledger_id] = -1  # an unreadable record exists, too
        self._end(session)
        return gc.Looked(look, session, frozenset(gone), found, frozenset(elsewhere))

    def _is_elsewhere(self, record: LedgerMetadata) -> bool:
        """Return whether no entry of the ledger belongs here. A ledger that is not closed may get any bookie later."""
        return record.is_closed and not any(self._bookie_id in each.ensemble for each in record.fragments)

    def give_up(self, ledger_id: LedgerId, drop: Callable[[LedgerId, float], None]) -> bool:
        """Call ``drop`` if only other bookies store the ledger by its record, and return whether it was called. It is
        called under the lock for repairs of the ledger, because a worker that copies the ledger here holds this lock
        until the record names this bookie, and writes the record only while it holds the lock.

        The arguments of ``drop`` are the ledger's id and the time of the monotonic clock up to which our lock is surely
        held (``LOCK_HOLDS_S``). Raises BookKeeperError. Then nothing was dropped, unless only the unlocking failed; the
        next call of this method or of :meth:`compare` unlocks the ledger."""
        self._unlock()
        self._locked.add(ledger_id)
        try:
            if not self._store.lock_underreplicated(ledger_id, self._bookie_id):
                return False
            looked_at = time.monotonic()
            if ledger_id not in self.look((ledger_id,)).elsewhere:
                return False
            drop(ledger_id, looked_at + LOCK_HOLDS_S)
            return True
        finally:
            self._unlock()

    def _unlock(self) -> None:
        """Unlock all ledgers that we have locked. Otherwise no worker could repair them while our session lasts."""
        for ledger_id in tuple(self._locked):
            self._store.unlock_underreplicated(ledger_id)
            self._locked.discard(ledger_id)

    def compare(self, held: npt.NDArray[np.int64], *, records: bool = False) -> gc.Compared:
        """Find out which of the ``held`` ledgers the store does not list, and with ``records`` also which live
        elsewhere. ``held`` is ascending and was taken before this call. Raises BookKeeperError if the list could not be
        read in full."""
        self._unlock()
        session = self._begin()
        met = np.zeros(len(held), bool)
        listed = 0
        ledgers = iter(self._store.list_ledgers())
        while chunk := list(islice(ledgers, _CHUNK)):
            listed += len(chunk)
            at = np.searchsorted(held, np.array(chunk, np.int64))
            at[at == len(held)] = 0  # ids above the last held one; comparing them with the first one finds them unequal
            met[at[held[at] == np.array(chunk, np.int64)]] = True
        strays: list[LedgerId] = []
        if records and listed:
            for part in np.array_split(held[met], len(held) // _LOOK_IDS + 1):
                strays += sorted(self.look(part.tolist()).elsewhere)
        self._end(session)
        return gc.Compared(tuple(held[~met].tolist()), listed, tuple(strays))

    def _begin(self) -> int:
        session = self._store.session_id
        self._store.sync()
        self._check_store()
        return session

    def _end(self, session: int) -> None:
        """Check that the store and the session are still those with which the look began. Raises BookKeeperError
        otherwise; then the data that was read does not count."""
        self._check_store()
        if self._store.session_id != session:
            raise MetadataUnavailableError(
                "The session with the metadata store ended meanwhile", outcome=Outcome.NOT_APPLIED
            )

    def _check_store(self) -> None:
        self._store.confirm_cluster()
        record = self._store.read_bookie_state(self._bookie_id)
        if record is None or _start_in(record.value) != self._start:
            raise BookieIdentityError(
                "the metadata store has no record of this bookie's last start: it is another store, or another "
                "process runs as this bookie",
                value=self._bookie_id,
                remedy="no ledger is forgotten meanwhile; if the store was restored on purpose, start the bookie again",
            )


def _start_in(state: bytes) -> tuple[str, int] | None:
    try:
        known = json.loads(state)
        return str(known["incarnation"]), int(known["boot_count"])
    except (ValueError, KeyError, TypeError):
        return None


class GarbageThread:
    """Runs a collector on a thread. It may be made on any thread; ``hint`` may be called on any thread and does not
    block.

    ``held`` returns the ids of all ledgers that are held and not deleted, in any order. ``forget`` is called with
    ledgers that are deleted. ``drop`` is called with a ledger whose copy may go, and the time up to which that holds;
    it returns once the machine has the event. ``failed`` is called with a bug that ends the thread. All of them are
    called on this thread.
    """

    def __init__(
        self,
        store: MetadataStore,
        evidence: StoreEvidence,
        *,
        held: Callable[[], Iterable[LedgerId]],
        forget: Callable[[Sequence[LedgerId]], None],
        config: CollectorConfig,
        drop: Callable[[LedgerId, float], None] = lambda *_: None,
        failed: Callable[[BookKeeperError], None] = lambda _: None,
    ) -> None:
        self._bug, self._drop = failed, drop
        self._evidence, self._held, self._forget, self._config = evidence, held, forget, config
        self._collector = Collector(config)
        self._wake = threading.Condition()
        self._hinted: dict[LedgerId, None] = {}  # at most ``candidates_max``; the next comparison finds the rest
        self._lost = False
        self._stopping = False
        self.forgotten = self.given_up = 0  # ledgers, since the start
        self._events: deque[gc.Event] = deque()  # used on this thread only
        self._timers: list[tuple[float, int]] = []
        self._cancel = store.on_session(self._session_changed)
        self._thread = threading.Thread(target=self._run, name="bookie-garbage", daemon=True)

    def start(self) -> None:
        # bookies that start together list the store at different times
        spread_ms = self._config.interval_ms // 10
        self._events.append(gc.Started(max(1, random.randint(spread_ms // 2, spread_ms * 3 // 2))))
        self._thread.start()

    def hint(self, ledger_ids: Sequence[LedgerId]) -> None:
        """Pass on a client's report that these ledgers were deleted."""
        with self._wake:
            room = self._config.candidates_max - len(self._hinted)
            self._hinted.update(dict.fromkeys(ledger_ids[: max(0, room)]))
            self._wake.notify()

    def stop(self) -> None:
        """Stop beginning looks and forgetting ledgers. A call to the store that is under way still ends; see
        ``join``."""
        self._cancel()
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout_s: float = 10.0) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            with self._wake:
                self._lost = True
                self._wake.notify()

    # --- the thread ---

    def _run(self) -> None:
        try:
            while (event := self._next()) is not None:
                for effect in self._collector.step(event):
                    self._carry_out(effect)
        except BaseException as error:  # from here on no ledger is forgotten, so no space is freed
            if self._stopping:
                return
            logger.exception("garbage collection failed")
            self._bug(LocalProtocolError("garbage collection failed", value=repr(error)))

    def _next(self) -> gc.Event | None:
        with self._wake:
            while not self._stopping:
                if self._lost:
                    self._lost = False
                    return gc.SessionLost()
                if self._events:
                    return self._events.popleft()
                if self._hinted:
                    hinted, self._hinted = self._hinted, {}
                    return gc.Hinted(tuple(hinted))
                wait_s = self._timers[0][0] - time.monotonic() if self._timers else None
                if wait_s is not None and wait_s <= 0:
                    return gc.TimerFired(heapq.heappop(self._timers)[1])
                self._wake.wait(wait_s)
            return None

    def _carry_out(self, effect: gc.Effect) -> None:
        match effect:
            case gc.SetTimer(timer, delay_ms):
                heapq.heappush(self._timers, (time.monotonic() + delay_ms / 1000, timer))
            case gc.GarbageLook(look, ledger_ids):
                self._events.append(self._look(look, ledger_ids))
            case gc.Compare(records):
                self._events.append(self._compare(records))
            case gc.GiveUp(ledger_ids):
                for ledger_id in ledger_ids:
                    self._give_up(ledger_id)
            case gc.Forget(ledger_ids):
                if not self._stopping:
                    logger.info("%d deleted ledgers are forgotten, the first is %d", len(ledger_ids), ledger_ids[0])
                    self._forget(ledger_ids)
                    self.forgotten += len(ledger_ids)

    def _look(self, look: int, ledger_ids: Sequence[LedgerId]) -> gc.Event:
        try:
            return self._evidence.look(ledger_ids, look)
        except BookKeeperError as error:
            self._failed("ledgers that may be deleted could not be looked up", error)
        except Exception:
            logger.exception("ledgers that may be deleted could not be looked up")
        return gc.LookFailed(look)

    def _give_up(self, ledger_id: LedgerId) -> None:
        if self._stopping:
            return
        try:
            self.given_up += self._evidence.give_up(ledger_id, self._drop)
        except BookKeeperError as error:
            self._failed("a ledger that lives elsewhere could not be looked up", error)
        except Exception:
            logger.exception("the copy of a ledger that lives elsewhere could not be given up")

    def _compare(self, records: bool) -> gc.Event:
        try:
            # taken before the list: a ledger that arrives later is new
            held = np.unique(np.fromiter(self._held(), np.int64))
            found = self._evidence.compare(held, records=records) if held.size else gc.Compared((), 0)
        except BookKeeperError as error:
            self._failed("the ledgers held could not be compared with those listed", error)
        except Exception:
            logger.exception("the ledgers held could not be compared with those listed")
        else:
            if found.missing and not found.listed:
                logger.warning("the metadata store lists no ledger; %d are held, and kept", len(found.missing))
            return found
        return gc.CompareFailed()

    def _failed(self, what: str, error: BookKeeperError) -> None:
        if not self._stopping:
            logger.warning("%s; nothing is forgotten: %s", what, error)


def garbage_thread(
    store: MetadataStore,
    identity: Identity,
    ledger_ids: Callable[[], Sequence[LedgerId]],
    feed: Callable[[Event], None],
    config: CollectorConfig,
    failed: Callable[[BookKeeperError], None],
) -> GarbageThread:
    """Make the garbage thread of a bookie that runs on this loop.

    ``ledger_ids`` returns all held ledgers, ``feed`` passes an event to the machine, and ``failed`` takes an error that
    must end the bookie; all are called on the loop. ``identity`` has the boot count that the store has.
    """
    loop = asyncio.get_running_loop()

    async def ask() -> Sequence[LedgerId]:
        return ledger_ids()

    def held() -> Iterable[LedgerId]:
        return asyncio.run_coroutine_threadsafe(ask(), loop).result(_LOOP_TIMEOUT_S)

    def forget(ledger_ids: Sequence[LedgerId]) -> None:
        loop.call_soon_threadsafe(feed, LedgersDeleted(ledger_ids))

    async def tell(ledger_id: LedgerId, until: float) -> None:
        if time.monotonic() < until:
            feed(CopiesUnwanted((ledger_id,)))

    def drop(ledger_id: LedgerId, until: float) -> None:
        asyncio.run_coroutine_threadsafe(tell(ledger_id, until), loop).result(_LOOP_TIMEOUT_S)

    def end(error: BookKeeperError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the bookie has ended
            loop.call_soon_threadsafe(failed, error)

    return GarbageThread(
        store,
        StoreEvidence(store, identity.bookie_id, identity.incarnation, identity.boot_count),
        held=held,
        forget=forget,
        config=config,
        drop=drop,
        failed=end,
    )
