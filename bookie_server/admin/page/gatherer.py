# SPDX-License-Identifier: Apache-2.0
"""Reads the state of the cluster every few seconds, on a thread, while a page is open. Every request gets the result of
the last read (a *look*), so many open pages cost the cluster no more than one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bk_core.cluster import bookies, replication
from bk_core.cluster.samples import History, ScrapedBookie, facts_of, sample_of
from bk_core.cluster.verdict import unavailable, verdict
from bk_core.errors import BookKeeperError, MetadataUnavailableError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, BookieServiceInfo, LedgerId
from bk_core.transport.caller import Caller

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""The seconds between two looks at the cluster while a page is open."""
IDLE_S = 60.0
"""The seconds for which the looks continue after the last request of a page."""
FIRST_S = 4.0
"""The longest time, in seconds, that a request waits for a fresh look. It is less than the deadline of an answer."""
STALE_S = 3 * PERIOD_S
"""The age, in seconds, at which a look is too old for a request, which then waits for the next one."""

AskBookies = Callable[[Sequence[BookieServiceInfo]], Mapping[BookieId, ScrapedBookie | str]]
"""A function that asks registered bookies for their numbers. For each bookie it returns the numbers, or the reason why
there are none."""

CallerOf = Callable[[str], Caller]
"""A function that makes the caller for connections to bookies, from the cluster's instance id."""


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The result of one look at the cluster, made at ``at_s``. ``bookies`` and ``replication`` were read at ``seen_s``,
    which is older if the metadata store does not answer now. ``locks`` has the ledgers under repair, with the owner of
    each lock."""

    at_s: float
    seen_s: float = 0.0
    bookies: Sequence[Mapping[str, Any]] = ()
    replication: Mapping[str, Any] = field(default_factory=dict)
    verdict: Mapping[str, Any] = field(default_factory=dict)
    marks: Mapping[LedgerId, tuple[BookieId, ...]] = field(default_factory=dict)
    locks: Mapping[LedgerId, str] = field(default_factory=dict)
    infos: Sequence[BookieServiceInfo] = ()

    @property
    def states(self) -> dict[BookieId, str]:
        """The state of each bookie. A registered bookie that did not answer is ``silent``; one that leaves is
        ``draining``."""
        return {each["bookieId"]: _state(each) for each in self.bookies}


def _state(bookie: Mapping[str, Any]) -> str:
    if bookie["error"]:
        return "silent"
    is_there = bookie["state"] in ("writable", "read-only")
    return "draining" if is_there and bookie["order"] == "drain" else str(bookie["state"])


class SharedStore:
    """The page's own session with the metadata store. It is opened when it is needed. Any thread may call."""

    def __init__(self, open_it: Callable[[], MetadataStore]) -> None:
        self._open_it, self._lock = open_it, threading.Lock()
        self._store: MetadataStore | None = None
        self._is_ended = False

    def get(self) -> MetadataStore:
        """Return the store, and open it if it is closed. Raises the errors of opening a store."""
        with self._lock:
            if self._is_ended:
                raise MetadataUnavailableError("this port is closed", remedy="ask again when it is open")
            if self._store is None:
                self._store = self._open_it()
            return self._store

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def close(self) -> None:
        """Close the store. It opens again when it is needed."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def end(self) -> None:
        """Close it for good."""
        self._is_ended = True
        self.close()


class Gatherer:
    """Makes looks on a thread and keeps the last one. ``caller`` makes the caller with which bookies are asked; without
    it they are not asked. With ``always`` it makes looks even while no page is open."""

    def __init__(
        self, store: SharedStore, tell: AskBookies, *, caller: CallerOf | None = None, always: bool = False
    ) -> None:
        self.store, self._tell, self._caller, self._always = store, tell, caller, always
        self._histories: dict[BookieId, History] = {}
        self._look: ClusterLook | None = None
        self._changed = threading.Condition()
        self._asked_s = float("-inf")
        self._stops = False
        self._thread = threading.Thread(target=self._run, name="page-gatherer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop. This waits at most ``FIRST_S`` for the look that is under way."""
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(FIRST_S)
        with suppress(BookKeeperError):
            self.store.end()

    def watch(self) -> None:
        """Note that a page is open, so that looks go on."""
        with self._changed:
            self._asked_s = time.monotonic()
            self._changed.notify_all()

    def look(self) -> ClusterLook:
        """Return the last look, or the next one if the last is too old. Raises MetadataUnavailableError if there is
        none in time."""
        self.watch()
        with self._changed:
            if not self._changed.wait_for(self._is_fresh, FIRST_S) or self._look is None:
                raise MetadataUnavailableError("the first look at the cluster is not over", remedy="look again")
            return self._look

    def _is_fresh(self) -> bool:
        return self._look is not None and time.monotonic() - self._look.at_s < STALE_S

    def _is_watched(self) -> bool:
        return self._always or time.monotonic() - self._asked_s < IDLE_S

    def _run(self) -> None:
        while not self._stops:
            if not self._is_watched():
                self._rest()
                continue
            found = self._take()
            with self._changed:
                self._look = found
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stops, max(0.1, PERIOD_S - (time.monotonic() - found.at_s)))

    def _rest(self) -> None:
        """Close the store and wait until a page is open."""
        with suppress(BookKeeperError):
            self.store.close()
        self._histories.clear()
        with self._changed:
            self._changed.wait_for(lambda: self._stops or self._is_watched())

    def _take(self) -> ClusterLook:
        before = self._look or ClusterLook(0.0)
        try:
            read = self._read()
        except BookKeeperError as error:
            said = " ".join(str(error).split())
            read = replace(before, at_s=time.monotonic(), verdict=unavailable(said))
        except Exception as error:  # a bug must not end the page; it is in the log
            logger.exception("the page could not look at the cluster")
            read = replace(before, at_s=time.monotonic(), verdict=unavailable(f"{type(error).__name__}, see the log"))
        objects = self._with_numbers(read.bookies, read.infos)
        if read.seen_s == read.at_s:
            return replace(read, bookies=objects, verdict=verdict(objects, read.replication))
        return replace(read, bookies=objects)

    def _read(self) -> ClusterLook:
        store, now = self.store.get(), time.monotonic()
        rows, marks = bookies.look(store, self._caller(store.instance_id()) if self._caller is not None else None)
        locks = store.underreplication_locks()
        facts = {
            **replication.status(store),
            "underReplicated": marks.count,
            "underRepair": len(locks),
            "allMarksCounted": marks.is_all,
            **replication.unreadable(store),
        }
        objects = [bookies.as_object(row, marks) for row in rows]
        infos = [row.info for row in rows if row.info is not None]
        return ClusterLook(now, now, objects, facts, {}, dict(sorted(marks.ledgers.items())), locks, infos)

    def _with_numbers(
        self, objects: Sequence[Mapping[str, Any]], infos: Sequence[BookieServiceInfo]
    ) -> list[dict[str, Any]]:
        """Add ``numbers`` to each bookie that reported its numbers, and ``numbersWhy``, the reason, to every other
        bookie."""
        told = self._tell(infos)
        known = {each["bookieId"] for each in objects}
        more = [bookies.BookieRow(each, "unknown", None, None, 0) for each in told if each not in known]
        everyone = [*objects, *(bookies.as_object(row, bookies.NO_MARKS) for row in more)]
        self._histories = {
            bookie: each for bookie, each in self._histories.items() if bookie in known or bookie in told
        }
        return [self._with_told(dict(each), told.get(each["bookieId"])) for each in everyone]

    def _with_told(self, found: dict[str, Any], told: ScrapedBookie | str | None) -> dict[str, Any]:
        if not isinstance(told, ScrapedBookie):
            return {**found, "numbers": None, "numbersWhy": told}
        history = self._histories.setdefault(found["bookieId"], History())
        history.add(sample_of(told.numbers, time.monotonic()))
        now = facts_of(told.numbers)
        numbers = {**now, "notReady": told.not_ready, "readOnlyWhy": told.read_only, "series": history.series()}
        directories: list[dict[str, Any]] = now["directories"]
        if found["totalBytes"] is None and directories:
            found["totalBytes"] = sum(each.get("totalBytes", 0) for each in directories)
            found["freeBytes"] = sum(each.get("usableBytes", 0) for each in directories)
        version = found["version"] or told.numbers.label("bookie_info", "version")
        return {**found, "version": version, "numbers": numbers, "numbersWhy": None}
