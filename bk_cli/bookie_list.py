# SPDX-License-Identifier: Apache-2.0
"""``bk bookie list``: every bookie of a cluster, whether it answers, its room, and what it lacks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter

from bk_cli import output
from bk_cli.access import Access
from bk_cli.asking import Said, ask_bookies
from bk_core.errors import BookKeeperError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BookieId, BookieServiceInfo

REACH_TIMEOUT_S = 1.0
COUNT_TIMEOUT_S = 1.0
"""Marks are counted for so long; a cluster may have a million."""

COLUMNS = ("bookie", "state", "answers", "used ", "free ", "lacks ", "limbo ", "damaged ", "lanes", "version")


@dataclass(frozen=True, slots=True)
class Row:
    """A bookie. ``state``: ``writable``, ``read-only``, ``away`` (known by its cookie, not registered), or ``gone``
    (neither, but marks of ledgers name it). ``lacks``: ledgers marked as lacking its copy. ``order``: what an operator
    ordered; without one a bookie that is read-only has no room."""

    bookie_id: BookieId
    state: str
    info: BookieServiceInfo | None
    said: Said | BookKeeperError | None
    lacks: int
    order: BookieOrder | None = None

    @property
    def state_in_words(self) -> str:
        words = {Order.READ_ONLY: ", set by hand", Order.DRAIN: ", drains"}
        return self.state + (words.get(self.order.order, "") if self.order is not None else "")


@dataclass(frozen=True, slots=True)
class Marks:
    """For each bookie the ledgers that are marked as lacking its copy. ``is_all``: none is left uncounted."""

    of: Counter[BookieId]
    is_all: bool


def list_bookies(access: Access, *, as_json: bool) -> None:
    rows, marks = look(access)
    if as_json:
        for row in rows:
            output.print_json(_object(row, marks))
        return
    output.print_table(COLUMNS, [_cells(row, marks) for row in rows])
    for row in rows:
        if isinstance(row.said, BookKeeperError):
            output.print_note(" ".join(str(row.said).split()))
    states = Counter(row.state for row in rows)
    output.print_note(f"{len(rows)} bookies: {', '.join(f'{count} {state}' for state, count in states.items())}")


def look(access: Access) -> tuple[list[Row], Marks]:
    """All bookies by id. Those registered are asked, all at once."""
    with access.store() as store, ThreadPoolExecutor(1) as beside:
        counting = beside.submit(count_marks, store)
        instance = store.instance_id()
        writable, read_only, known = store.writable_bookies(), store.read_only_bookies(), store.known_bookies()
        orders = store.bookie_orders()
        registered = {**read_only, **writable}  # a bookie that changes may be met twice
        asked = list(registered.values())
        said = ask_bookies(asked, instance, client="bk bookie list", timeout_s=REACH_TIMEOUT_S)
        marks = counting.result()
    states = dict.fromkeys(marks.of, "gone") | dict.fromkeys(known, "away")
    states |= dict.fromkeys(read_only, "read-only") | dict.fromkeys(writable, "writable")
    rows = [
        Row(each, state, registered.get(each), said.get(each), marks.of[each], orders.get(each))
        for each, state in states.items()
    ]
    return sorted(rows, key=attrgetter("bookie_id")), marks


def count_marks(store: MetadataStore, timeout_s: float = COUNT_TIMEOUT_S) -> Marks:
    until, of = time.monotonic() + timeout_s, Counter[BookieId]()
    for _, missing in store.list_underreplicated():
        of.update(missing)
        if time.monotonic() > until:
            return Marks(of, is_all=False)
    return Marks(of, is_all=True)


def _lanes(row: Row) -> Iterator[str]:
    return (
        (endpoint.protocol for endpoint in row.info.endpoints if endpoint.protocol != "http") if row.info else iter(())
    )


def _cells(row: Row, marks: Marks) -> tuple[object, ...]:
    lacks = f"{row.lacks}{'' if marks.is_all else '+'}"
    if not isinstance(row.said, Said):
        answers = "no" if row.info is not None else "-"
        lanes = ", ".join(_lanes(row)) or "-"
        return row.bookie_id, row.state_in_words, answers, "-", "-", lacks, "-", "-", lanes, "-"
    info = row.said.info
    used = f"{1 - info.free_bytes / info.total_bytes:.0%}" if info.total_bytes else "-"
    room = used, output.in_words(info.free_bytes)
    copies = lacks, info.limbo_ledgers, info.damaged_ledgers
    rest = ", ".join(_lanes(row)), info.version or "-"
    return row.bookie_id, row.state_in_words, f"{row.said.took_ms:.0f} ms", *room, *copies, *rest


def _object(row: Row, marks: Marks) -> dict[str, object]:
    said = row.said if isinstance(row.said, Said) else None
    admin = row.info.endpoint("http") if row.info else None
    return {
        "bookieId": row.bookie_id,
        "state": row.state,
        "order": row.order.order.value if row.order else None,
        "answerMs": round(said.took_ms, 1) if said else None,
        "error": str(row.said) if isinstance(row.said, BookKeeperError) else None,
        "totalBytes": said.info.total_bytes if said else None,
        "freeBytes": said.info.free_bytes if said else None,
        "lanes": list(_lanes(row)),
        "admin": f"http://{admin.host}:{admin.port}" if admin else None,
        "version": said.info.version if said else None,
        "underReplicated": row.lacks,
        "limboLedgers": said.info.limbo_ledgers if said else None,
        "damagedLedgers": said.info.damaged_ledgers if said else None,
        "allMarksCounted": marks.is_all,
    }
