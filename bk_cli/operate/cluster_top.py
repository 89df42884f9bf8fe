# SPDX-License-Identifier: Apache-2.0
"""``bk cluster top``: prints the current figures of all bookies of a cluster, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bk_cli import output
from bk_cli.access import Access
from bk_core.cluster.admin_ports import AdminPorts, Numbers, quantile_since
from bk_core.cluster.bookie_answers import refused_by_all
from bk_core.cluster.bookies import Marks, count_marks, state_in_words, states_of
from bk_core.errors import BookKeeperError
from bk_core.metadata.records import BookieOrder
from bk_core.model import BookieId
from bk_core.units import roughly_in_words

if TYPE_CHECKING:
    from bk_core.metadata.port import MetadataStore

DEADLINE_S = 1.5
"""The time, in seconds, that an admin port has to answer."""
ONCE_S = 1.0
"""The seconds over which ``--once`` measures rates."""

ROOM, RATES = ("used ", "free ", "full in "), ("appends/s ", "in/s ", "out/s ", "commit p99 ")
COLUMNS = ("bookie", "state", *ROOM, *RATES, "limbo ", "lacks ")

Answers = dict[BookieId, Numbers | BookKeeperError]


@dataclass(frozen=True, slots=True)
class TopLook:
    """The state of a cluster at one moment, which is ``at_s`` by the clock of this process."""

    at_s: float
    states: dict[BookieId, str]
    answers: Answers
    marks: Marks
    orders: Mapping[BookieId, BookieOrder] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopRow:
    """The figures of one bookie. Unknown ones are None. ``why`` is the reason if its admin port gives no answer. Rates
    are those between two looks."""

    bookie_id: BookieId
    state: str
    lacks: int
    why: str = ""
    ready: bool | None = None
    total_bytes: float | None = None
    usable_bytes: float | None = None
    appends_per_s: float | None = None
    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None
    commit_p99_s: float | None = None
    in_limbo: float | None = None
    order: BookieOrder | None = None

    @property
    def full_in_s(self) -> float | None:
        """The seconds until its disks are full, if writing continues at this rate and nothing is deleted."""
        if self.usable_bytes is None or not self.in_bytes_per_s:
            return None
        return self.usable_bytes / self.in_bytes_per_s


def top(access: Access, *, every_s: float, once: bool, as_json: bool) -> None:
    """Print the bookies, once or again and again. ``once`` raises the error of one bookie if all that could be asked
    refuse this client."""
    ports = access.admin_ports(DEADLINE_S)
    with access.store() as store:
        if once:
            before = look(store, ports)
            time.sleep(ONCE_S)
            now = look(store, ports)
            _print(before, now, as_json)
            refused = refused_by_all(now.answers.values())
            if refused is not None:
                raise refused
            return
        if as_json:
            for before, now in looks(store, ports, every_s):
                _print(before, now, as_json)
            return
        with output.live_table() as show:
            for before, now in looks(store, ports, every_s):
                found = rows(before, now)
                show(COLUMNS, [_cells(row, now.marks) for row in found], notes(found, now.marks, every_s))


def looks(store: MetadataStore, ports: AdminPorts, every_s: float) -> Iterator[tuple[TopLook, TopLook]]:
    """Yield each look together with the look before it, and the first look together with itself. An error of the
    metadata store ends the iteration."""
    before = look(store, ports)
    yield before, before
    while True:
        time.sleep(every_s)
        now = look(store, ports)
        yield before, now
        before = now


def look(store: MetadataStore, ports: AdminPorts) -> TopLook:
    """Look at the cluster once. It takes as long as the slowest admin port, at most DEADLINE_S for each 64 bookies."""
    with ThreadPoolExecutor(1) as beside:
        counting = beside.submit(count_marks, store)
        writable, read_only, known = store.writable_bookies(), store.read_only_bookies(), store.known_bookies()
        registered, orders = {**read_only, **writable}, store.bookie_orders()
        answers = ports.scrape(registered.values())
        marks = counting.result()
    states = dict.fromkeys(marks.of, "gone") | states_of(store, writable, read_only, known)
    return TopLook(time.monotonic(), dict(sorted(states.items())), answers, marks, orders)


def rows(before: TopLook, now: TopLook) -> list[TopRow]:
    return [_row(bookie_id, state, before, now) for bookie_id, state in now.states.items()]


def _row(bookie_id: BookieId, state: str, before: TopLook, now: TopLook) -> TopRow:
    lacks, numbers, old = now.marks.of[bookie_id], now.answers.get(bookie_id), before.answers.get(bookie_id)
    order = now.orders.get(bookie_id)
    if not isinstance(numbers, Numbers):
        return TopRow(
            bookie_id, state, lacks, " ".join(str(numbers).split()) if numbers is not None else "", order=order
        )
    known = old if isinstance(old, Numbers) and _same_process(old, numbers) else None
    passed_s = now.at_s - before.at_s

    def rate(name: str) -> float | None:
        first, last = known.total(name) if known else None, numbers.total(name)
        return None if first is None or last is None or passed_s <= 0 else max(0.0, last - first) / passed_s

    return TopRow(
        bookie_id,
        state,
        lacks,
        ready=numbers.total("bookie_ready") == 1,
        total_bytes=numbers.total("bookie_directory_total_bytes"),
        usable_bytes=numbers.total("bookie_directory_usable_bytes"),
        appends_per_s=rate("bookkeeper_server_ADD_ENTRY_REQUEST_count"),
        in_bytes_per_s=rate("bookie_WRITE_BYTES"),
        out_bytes_per_s=rate("bookie_READ_BYTES"),
        commit_p99_s=quantile_since(known, numbers, "bookie_commit_seconds", 0.99),
        in_limbo=numbers.total("bookie_ledgers_in_limbo"),
        order=order,
    )


def _same_process(old: Numbers, now: Numbers) -> bool:
    """Return whether both answers come from the same process. A restarted bookie counts from 0."""
    return old.total("process_start_time_seconds") == now.total("process_start_time_seconds")


def notes(found: list[TopRow], marks: Marks, every_s: float) -> list[str]:
    """Return the lines below the table: bookies without an answer, and the sums."""
    mute = [f"{row.bookie_id}: {row.why}" for row in found if row.why]
    appends = sum(row.appends_per_s or 0 for row in found)
    lacks = f"{sum(marks.of.values())}{'' if marks.is_all else '+'}"
    sums = f"{len(found)} bookies, {appends:,.0f} appended copies/s, {lacks} copies missing"
    return [*mute, f"{sums}; every {every_s:g} s, Ctrl-C ends"]


def _print(before: TopLook, now: TopLook, as_json: bool) -> None:
    found = rows(before, now)
    if as_json:
        for row in found:
            output.print_json(_object(row, now.marks))
        return
    output.print_table(COLUMNS, [_cells(row, now.marks) for row in found])
    for row in found:
        if row.why:
            output.print_note(f"{row.bookie_id}: {row.why}")


def _cells(row: TopRow, marks: Marks) -> tuple[object, ...]:
    lacks = f"{row.lacks}{'' if marks.is_all else '+'}"
    ordered = state_in_words(row.state, row.order)
    state = ordered if row.ready is None or row.ready else f"{ordered}, not ready"
    if row.why:
        return row.bookie_id, f"{ordered}, no answer", *("-",) * 8, lacks
    used = f"{1 - (row.usable_bytes or 0) / row.total_bytes:.0%}" if row.total_bytes else "-"
    return (
        row.bookie_id,
        state,
        used,
        _or_dash(row.usable_bytes, output.in_words),
        _or_dash(row.full_in_s, roughly_in_words),
        _or_dash(row.appends_per_s, lambda value: f"{value:,.0f}"),
        _or_dash(row.in_bytes_per_s, output.in_words),
        _or_dash(row.out_bytes_per_s, output.in_words),
        _or_dash(row.commit_p99_s, lambda value: f"{value * 1000:.1f} ms"),
        _or_dash(row.in_limbo, lambda value: f"{value:,.0f}"),
        lacks,
    )


def _or_dash(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def _object(row: TopRow, marks: Marks) -> dict[str, object]:
    p99 = row.commit_p99_s
    return {
        "bookieId": row.bookie_id,
        "state": row.state,
        "order": row.order.order.value if row.order else None,
        "ready": row.ready,
        "error": row.why or None,
        "totalBytes": row.total_bytes,
        "usableBytes": row.usable_bytes,
        "fullInS": row.full_in_s,
        "appendsPerS": row.appends_per_s,
        "inBytesPerS": row.in_bytes_per_s,
        "outBytesPerS": row.out_bytes_per_s,
        "commitP99Ms": None if p99 is None or p99 == float("inf") else p99 * 1000,
        "inLimbo": row.in_limbo,
        "underReplicated": row.lacks,
        "allMarksCounted": marks.is_all,
    }
