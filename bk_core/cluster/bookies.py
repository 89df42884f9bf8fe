# SPDX-License-Identifier: Apache-2.0
"""Lists the bookies of a cluster. It has each bookie's state, its answer and its free space, and counts the ledgers
that lack its copy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter

from bk_core.cluster.bookie_answers import Said, ask_bookies
from bk_core.errors import BookKeeperError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.metadata.unreadable import NodeKind, UnreadableNode
from bk_core.model import HTTP, BookieId, BookieServiceInfo, LedgerId
from bk_core.transport.caller import Caller

REACH_TIMEOUT_S = 1.0
"""The seconds that each bookie has to report its free space and state."""
COUNT_TIMEOUT_S = 1.0
"""The maximum number of seconds for counting marks, because a cluster may have a million of them."""
MARKS_KEPT = 10_000
"""The maximum number of ledgers in ``Marks.ledgers``. ``Marks.of`` and ``Marks.count`` include further ledgers."""


@dataclass(frozen=True, slots=True)
class BookieRow:
    """The facts about a bookie. ``state`` is ``writable``, ``read-only``, ``unreadable`` (registered, but the
    registration cannot be read), ``away`` (it has a cookie and is not registered), or ``gone`` (it has neither, but
    marks of ledgers name it). ``said`` is its answer or error, or None if it was not called. ``lacks`` is the number of
    ledgers that are marked as lacking its copy. ``order`` is the operator's order. A read-only bookie without an order
    usually has a full disk."""

    bookie_id: BookieId
    state: str
    info: BookieServiceInfo | None
    said: Said | BookKeeperError | None
    lacks: int
    order: BookieOrder | None = None

    @property
    def state_in_words(self) -> str:
        return state_in_words(self.state, self.order)

    @property
    def lanes(self) -> Iterator[str]:
        endpoints = self.info.endpoints if self.info else ()
        return (endpoint.protocol for endpoint in endpoints if endpoint.protocol != HTTP)


@dataclass(frozen=True, slots=True)
class Marks:
    """The ledgers that are marked as lacking a copy. ``of`` has their number for each bookie that lacks a copy, and
    ``count`` the number of all. ``is_all`` says whether all marks were counted before the deadline. ``ledgers`` has the
    first MARKS_KEPT of these ledgers, with the bookies that lack a copy. ``unreadable`` are marks that cannot be read,
    which ``count`` leaves out."""

    of: Counter[BookieId]
    is_all: bool
    count: int = 0
    ledgers: dict[LedgerId, tuple[BookieId, ...]] = field(default_factory=dict)
    unreadable: tuple[UnreadableNode, ...] = ()


def state_in_words(state: str, order: BookieOrder | None) -> str:
    """Return a bookie's state in words, with the operator's order if there is one."""
    words = {Order.READ_ONLY: ", set by hand", Order.DRAIN: ", drains"}
    return state + (words.get(order.order, "") if order is not None else "")


NO_MARKS = Marks(Counter(), is_all=True)


def look(store: MetadataStore, caller: Caller | None) -> tuple[list[BookieRow], Marks]:
    """Return all bookies, sorted by id, and the marks. With a ``caller``, all registered bookies are called in
    parallel; without it, none is. Several threads read the store."""
    with ThreadPoolExecutor(4) as beside:
        counting, knowing = beside.submit(count_marks, store), beside.submit(store.known_bookies)
        ordering, reading = beside.submit(store.bookie_orders), beside.submit(store.read_only_bookies)
        writable, read_only = store.writable_bookies(), reading.result()
        registered = {**read_only, **writable}  # a bookie that changes its state meanwhile may be in both
        infos = list(registered.values())
        said = ask_bookies(infos, caller, timeout_s=REACH_TIMEOUT_S) if caller is not None else {}
        marks, known, orders = counting.result(), knowing.result(), ordering.result()
    states = dict.fromkeys(marks.of, "gone") | states_of(store, writable, read_only, known)
    rows = [
        BookieRow(each, state, registered.get(each), said.get(each), marks.of[each], orders.get(each))
        for each, state in states.items()
    ]
    return sorted(rows, key=attrgetter("bookie_id")), marks


def states_of(
    store: MetadataStore, writable: Iterable[BookieId], read_only: Iterable[BookieId], known: Iterable[BookieId]
) -> dict[BookieId, str]:
    """Return the state of every bookie that is registered or known, as in :class:`BookieRow`."""
    unreadable = (node.name for node in store.unreadable.of(NodeKind.REGISTRATION))
    states = dict.fromkeys(known, "away") | dict.fromkeys(unreadable, "unreadable")
    return states | dict.fromkeys(read_only, "read-only") | dict.fromkeys(writable, "writable")


def count_marks(store: MetadataStore, timeout_s: float = COUNT_TIMEOUT_S) -> Marks:
    until, of, count = time.monotonic() + timeout_s, Counter[BookieId](), 0
    ledgers = dict[LedgerId, tuple[BookieId, ...]]()
    for ledger_id, missing in store.list_underreplicated():
        of.update(missing)
        count += 1
        if len(ledgers) < MARKS_KEPT:
            ledgers[ledger_id] = missing
        if time.monotonic() > until:
            return Marks(of, False, count, ledgers, store.unreadable.of(NodeKind.MARK))
    return Marks(of, True, count, ledgers, store.unreadable.of(NodeKind.MARK))


def as_object(row: BookieRow, marks: Marks) -> dict[str, object]:
    """Return the object that ``bk bookie list --json`` prints for a bookie."""
    said = row.said if isinstance(row.said, Said) else None
    admin = row.info.endpoint(HTTP) if row.info else None
    return {
        "bookieId": row.bookie_id,
        "state": row.state,
        "order": row.order.order.value if row.order else None,
        "answerMs": round(said.took_ms, 1) if said else None,
        "error": str(row.said) if isinstance(row.said, BookKeeperError) else None,
        "totalBytes": said.info.total_bytes if said else None,
        "freeBytes": said.info.free_bytes if said else None,
        "lanes": list(row.lanes),
        "admin": admin.url if admin else None,
        "version": said.info.version if said else None,
        "underReplicated": row.lacks,
        "limboLedgers": said.info.limbo_ledgers if said else None,
        "damagedLedgers": said.info.damaged_ledgers if said else None,
        "allMarksCounted": marks.is_all,
        "unreadableMarks": len(marks.unreadable),
    }
