# SPDX-License-Identifier: Apache-2.0
"""``bk bookie read-only``, ``drain`` and ``remove``: take a bookie out of a cluster without losing anything.

An order is a record in the metadata store (decision 0051). The bookie, the auditor and the workers obey it even if this
command has ended. A command that is run again continues where it was.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from bk_cli import exit_codes, output
from bk_cli.access import Access
from bk_core.cluster.bookies import states_of
from bk_core.errors import (
    BookieNeededError,
    InvalidArgumentError,
    MetadataCorruptError,
    NoSuchBookieError,
    NoSuchLedgerError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.metadata.scan import Found, names, scan_ledgers
from bk_core.model import INCARNATION_PROPERTY, BookieId, LedgerId
from bk_core.protocol.replication.copies import Blocked, CopiesLeft, copies_left
from bk_core.protocol.replication.events import ClusterRead

POLL_S = 2.0
"""The seconds between two looks at the remaining ledgers."""
REPORT_S = 10.0
"""The longest time, in seconds, between two lines of progress while nothing new blocks the command."""
TAKEN_WITHIN_S = 60.0
"""How long, in seconds, the command waits for the bookie to obey. A bookie reads its order as often as it checks its
disk, by default every 10 s."""
LOOKS_MAX = 2_000
"""The maximum number of remaining ledgers that one poll examines."""
WRITERS = 16
"""The number of threads that read and mark ledgers, because each call to the metadata store waits for its answer."""
LEDGERS_NAMED = 10
"""The maximum number of ledgers that a message names one by one."""
BLOCKED_TOLD = 100
"""The maximum number of blocked ledgers of each kind that ``--json`` lists at each poll."""
STUCK = (Blocked.NO_BOOKIE, Blocked.LAST_COPY)


def _check_known(store: MetadataStore, bookie_id: BookieId) -> None:
    known = sorted({*store.known_bookies(), *store.writable_bookies(), *store.read_only_bookies()})
    if bookie_id not in known:
        raise NoSuchBookieError(
            "There is no such bookie in this cluster",
            value=bookie_id,
            remedy=f"known are: {', '.join(known) or 'none'} (bk bookie list)",
        )


def _check_obeys(store: MetadataStore, bookie_id: BookieId) -> None:
    """Check that the bookie reads our orders. Raises InvalidArgumentError for a writable bookie of Apache's, which does
    not."""
    info = store.writable_bookies().get(bookie_id)
    if info is not None and INCARNATION_PROPERTY not in info.properties:
        raise InvalidArgumentError(
            "this is a bookie of Apache's, which does not read orders from the metadata store",
            value=bookie_id,
            remedy='tell it over its own admin port: PUT /api/v1/bookie/state/readonly {"readOnly": true}',
        )


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- read-only -------------------------------------------------------------------------------------------------------


def set_read_only(access: Access, bookie_id: BookieId, *, is_on: bool, as_json: bool) -> int:
    with access.store() as store:
        store.sync()
        _check_known(store, bookie_id)
        before = _order(store, bookie_id)
        if is_on:
            _check_obeys(store, bookie_id)
            if before is None or before.order is not Order.DRAIN:
                store.write_bookie_order(bookie_id, BookieOrder(Order.READ_ONLY, _now_ms()))
        else:
            store.write_bookie_order(bookie_id, None)
        state = _await_state(store, bookie_id, "read-only" if is_on else "writable")
    ended = " The drain is cancelled: the other copies stay." if before and before.order is Order.DRAIN else ""
    order = "it has the order to be read-only" if is_on else "it has no order"
    text = f"bookie {bookie_id} is {state}: {order}.{ended if not is_on else ''}"
    if state == "writable" and is_on:
        text += " It has not obeyed the order yet: does it run this version?"
    elif state == "read-only" and not is_on:
        text += " It has no room, or has not read the change yet (bk bookie list)."
    output.print_result(as_json, {"bookieId": bookie_id, "state": state, "readOnlyByOrder": is_on}, text)
    return 0 if state != "writable" or not is_on else exit_codes.UNAVAILABLE


def _order(store: MetadataStore, bookie_id: BookieId) -> BookieOrder | None:
    """Return the order of a bookie, or None. An order that cannot be read counts as no order, because a new order
    replaces it."""
    return store.bookie_orders().get(bookie_id)


def _state(store: MetadataStore, bookie_id: BookieId) -> str:
    return states_of(store, store.writable_bookies(), store.read_only_bookies(), ()).get(bookie_id, "away")


def _await_state(store: MetadataStore, bookie_id: BookieId, wanted: str) -> str:
    """Wait until the bookie's state is ``wanted`` or away, or for a limited time. Return its state."""
    until = time.monotonic() + (TAKEN_WITHIN_S if wanted == "read-only" else TAKEN_WITHIN_S / 4)
    while (state := _state(store, bookie_id)) not in (wanted, "away") and time.monotonic() < until:
        time.sleep(min(POLL_S, 0.2))
    return state


# --- drain -----------------------------------------------------------------------------------------------------------


def may_leave(access: Access, bookie_id: BookieId, *, as_json: bool) -> None:
    """Print what a drain would move. Raises BookieNeededError if the drain could not end. Changes nothing."""
    with access.store() as store:
        store.sync()
        _check_known(store, bookie_id)
        watch = DrainWatch(store, bookie_id)
        watch.survey()
        _refuse_stuck(bookie_id, watch.left.values())
        found = {**_progress(watch, is_ordered=False), "mayLeave": True}
        what = f"{len(watch.left):,} ledgers, {output.in_words(watch.size)}, would move to other bookies"
        how = f"then it may be stopped: bk bookie drain {bookie_id}"
        if not watch.left:
            what, how = "no ledger names it", "it may be stopped now"
        notes = _blocked_in_words(watch, is_ordered=False)
    output.print_result(as_json, found, f"bookie {bookie_id} may leave: {what}; {how}{notes}")


def drain(access: Access, bookie_id: BookieId, *, fences: bool, wait_s: float | None, as_json: bool) -> int:
    with access.store() as store:
        store.sync()
        _check_known(store, bookie_id)
        watch = DrainWatch(store, bookie_id)
        watch.survey()
        order = _order(store, bookie_id)
        if order is None or order.order is not Order.DRAIN:
            _check_obeys(store, bookie_id)
            _refuse_stuck(bookie_id, watch.left.values())
            order = None
        if order is None or (fences and not order.fences):
            since_ms = _now_ms() if order is None else order.since_ms
            store.write_bookie_order(bookie_id, BookieOrder(Order.DRAIN, since_ms, fences))
        try:
            return _watch(watch, wait_s, as_json)
        except KeyboardInterrupt:
            _say_how_to_go_on(bookie_id)
            return exit_codes.INTERRUPTED


def _refuse_stuck(bookie_id: BookieId, left: Iterable[CopiesLeft]) -> None:
    """Refuse a drain that could never end, before anything is changed. Raises BookieNeededError."""
    stuck = [each for each in left if each.blocked in STUCK]
    if not stuck:
        return
    named = "; ".join(f"ledger {each.ledger_id}: {each.why}" for each in stuck[:LEDGERS_NAMED])
    more = f"; and {len(stuck) - LEDGERS_NAMED:,} more" if len(stuck) > LEDGERS_NAMED else ""
    last = any(each.blocked is Blocked.LAST_COPY for each in stuck)
    raise BookieNeededError(
        f"Bookie {bookie_id} cannot be drained: {len(stuck):,} ledgers would "
        f"{'lose their last copy' if last else 'not find another bookie'}",
        value=named + more,
        remedy="start the bookie" if last else "start more bookies (bk bookie run), or wait for those that are away",
    )


class DrainWatch:
    """The remaining work of a drain. ``left`` maps each ledger to its remaining copies. It marks the ledgers that are
    not marked."""

    def __init__(self, store: MetadataStore, bookie_id: BookieId) -> None:
        self._store, self._bookie_id = store, bookie_id
        self._random = random.Random(0)
        self._turn: list[LedgerId] = []
        self._samples: list[tuple[float, int]] = []  # the time and the size of the last polls
        self._cluster = ClusterRead(())
        self.left: dict[LedgerId, CopiesLeft] = {}
        self.begun = 0  # the largest number of ledgers in a survey

    @property
    def bookie_id(self) -> BookieId:
        return self._bookie_id

    @property
    def size(self) -> int:
        return sum(each.size for each in self.left.values())

    def survey(self) -> None:
        """Read the records of all ledgers."""
        self._read_cluster()
        found = ((ledger_id, self._judge(ledger_id, record)) for ledger_id, record in scan_ledgers(self._store))
        self.left = {ledger_id: left for ledger_id, left in found if left is not None}
        self.begun = max(self.begun, len(self.left))
        self._note()

    def look(self) -> bool:
        """Examine the next remaining ledgers, and mark them. Return whether the bookie is drained."""
        store = self._store
        store.sync()
        self._read_cluster()
        if not self._turn:
            self._turn = sorted(self.left)
        some, self._turn = self._turn[:LOOKS_MAX], self._turn[LOOKS_MAX:]
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="drain") as threads:
            for ledger_id, left in threads.map(self._look_at, some):
                if left is None:
                    del self.left[ledger_id]
                else:
                    self.left[ledger_id] = left
        self._note()
        if self.left or _state(store, self._bookie_id) == "writable":
            return False
        self.survey()  # finds ledgers that were made while the bookie was writable
        return not self.left

    def _look_at(self, ledger_id: LedgerId) -> tuple[LedgerId, CopiesLeft | None]:
        """Return what is left of a ledger, and mark it if it has no mark for this bookie."""
        try:
            left = self._judge(ledger_id, self._store.read_ledger(ledger_id))
        except NoSuchLedgerError:
            return ledger_id, None
        except MetadataCorruptError as error:
            return ledger_id, self._judge(ledger_id, error)
        if left is None:
            return ledger_id, None
        try:
            mark = self._store.read_underreplicated(ledger_id)
            if mark is None or self._bookie_id not in mark.value.missing:
                self._store.mark_underreplicated(ledger_id, (self._bookie_id,))
        except MetadataCorruptError as error:
            return ledger_id, CopiesLeft(ledger_id, left.size, Blocked.UNREADABLE, f"{error.what} ({error.value})")
        return ledger_id, left

    def _judge(self, ledger_id: LedgerId, found: Found) -> CopiesLeft | None:
        if isinstance(found, MetadataCorruptError):
            return CopiesLeft(ledger_id, 0, Blocked.UNREADABLE, found.value)
        return copies_left(ledger_id, found.value, self._bookie_id, self._cluster, self._random)

    def _read_cluster(self) -> None:
        store = self._store
        orders = store.bookie_orders()
        leaving = [name for name, order in orders.items() if order.order is Order.DRAIN]
        writable = tuple(name for name in store.writable_bookies() if name not in orders or name == self._bookie_id)
        ordered = [name for name in store.writable_bookies() if name in orders]
        read_only = (*store.read_only_bookies(), *ordered)
        self._cluster = ClusterRead(writable, read_only, leaving=tuple({*leaving, self._bookie_id}))

    # --- progress ---

    def _note(self) -> None:
        self._samples = [*self._samples[-29:], (time.monotonic(), self.size)]

    @property
    def rate(self) -> float:
        """The bytes per second that left the bookie during the last polls."""
        (began_s, before), (ended_s, after) = self._samples[0], self._samples[-1]
        took_s = ended_s - began_s
        return max(0.0, (before - after) / took_s) if took_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        return self.size / self.rate if self.rate else None

    def obstacles(self, *, is_ordered: bool = True) -> list[str]:
        """Return what blocks the whole drain. ``is_ordered`` means that the bookie should obey by now."""
        store, found = self._store, list[str]()
        if not store.replication_enabled():
            found.append("replication is paused (bk replication resume)")
        if store.current_auditor() is None:
            found.append("no auto-recovery runs (bk autorecovery), so no worker moves copies")
        if is_ordered and _state(store, self._bookie_id) == "writable":
            found.append("the bookie has not obeyed its order yet, and still takes new entries")
        return found

    def blocked(self) -> Mapping[Blocked, Sequence[CopiesLeft]]:
        found: dict[Blocked, list[CopiesLeft]] = {}
        for each in self.left.values():
            if each.blocked is not Blocked.NOTHING:
                found.setdefault(each.blocked, []).append(each)
        return found


def _watch(watch: DrainWatch, wait_s: float | None, as_json: bool) -> int:
    until = None if wait_s is None else time.monotonic() + wait_s
    reported, said = float("-inf"), ""
    while not watch.look():
        is_over = until is not None and time.monotonic() >= until
        if as_json:
            output.print_json({**_progress(watch), "drained": False})
        elif (summary := _blocked_in_words(watch)) != said or time.monotonic() - reported >= REPORT_S or is_over:
            reported, said = time.monotonic(), summary
            output.print_note(_in_words(watch) + summary)
        if is_over:
            _say_how_to_go_on(watch.bookie_id)
            return exit_codes.UNAVAILABLE
        time.sleep(POLL_S if until is None else max(0.0, min(POLL_S, until - time.monotonic())))
    output.print_result(
        as_json,
        {**_progress(watch), "drained": True},
        f"bookie {watch.bookie_id} is drained: no ledger names it. Stop it, then: bk bookie remove {watch.bookie_id}",
    )
    return 0


def _progress(watch: DrainWatch, *, is_ordered: bool = True) -> dict[str, object]:
    return {
        "bookieId": watch.bookie_id,
        "ledgersLeft": len(watch.left),
        "bytesLeft": watch.size,
        "bytesPerS": round(watch.rate),
        "etaS": None if watch.eta_s is None else round(watch.eta_s),
        "obstacles": watch.obstacles(is_ordered=is_ordered),
        "blockedCount": sum(map(len, watch.blocked().values())),
        "blocked": [
            {"ledgerId": each.ledger_id, "why": each.why}
            for kind in watch.blocked().values()
            for each in kind[:BLOCKED_TOLD]
        ],
    }


def _in_words(watch: DrainWatch) -> str:
    eta = "" if watch.eta_s is None else f", about {watch.eta_s:,.0f} s to go"
    rate = f"{output.in_words(watch.rate)}/s{eta}"
    return f"{len(watch.left):,} of {watch.begun:,} ledgers left, {output.in_words(watch.size)}, {rate}"


def _blocked_in_words(watch: DrainWatch, *, is_ordered: bool = True) -> str:
    lines = [f"\n  {each}" for each in watch.obstacles(is_ordered=is_ordered)]
    for kind, found in watch.blocked().items():
        some = ", ".join(str(each.ledger_id) for each in islice(found, LEDGERS_NAMED))
        more = " …" if len(found) > LEDGERS_NAMED else ""
        hint = ", or bk bookie drain --fence recovers it" if kind is Blocked.WRITER else ""
        lines.append(f"\n  {len(found):,} wait ({some}{more}): {found[0].why}{hint}")
    return "".join(lines)


def _say_how_to_go_on(bookie_id: BookieId) -> None:
    output.print_note(
        f"the drain goes on without this command. To watch it again: bk bookie drain {bookie_id}. "
        f"To cancel it: bk bookie read-only {bookie_id} off"
    )


# --- remove ----------------------------------------------------------------------------------------------------------


def remove(access: Access, bookie_id: BookieId, *, as_json: bool) -> None:
    with access.store() as store:
        store.sync()
        order = _order(store, bookie_id)
        if order is None or order.order is not Order.REMOVED:
            _check_known(store, bookie_id)
            _check_stopped(store, bookie_id)
            _check_unnamed(store, bookie_id)
            store.sync()
            _check_stopped(store, bookie_id)
            _forget(store, bookie_id)
    text = f"bookie {bookie_id} is removed: no ledger names it, and its cookie is gone. Its directory may be deleted."
    output.print_result(as_json, {"bookieId": bookie_id, "removed": True}, text)


def _check_stopped(store: MetadataStore, bookie_id: BookieId) -> None:
    state = _state(store, bookie_id)
    if state != "away":
        raise BookieNeededError(
            f"Bookie {bookie_id} is running, and only a bookie that is stopped can be removed",
            value=state,
            remedy=f"drain it (bk bookie drain {bookie_id}), stop it, and wait until its session is over",
        )


def _check_unnamed(store: MetadataStore, bookie_id: BookieId) -> None:
    naming = [(ledger_id, found) for ledger_id, found in scan_ledgers(store) if names(found, bookie_id)]
    if not naming:
        return
    unreadable = sum(isinstance(found, MetadataCorruptError) for _, found in naming)
    some = ", ".join(str(ledger_id) for ledger_id, _ in naming[:LEDGERS_NAMED])
    raise BookieNeededError(
        f"Bookie {bookie_id} cannot be removed: {len(naming):,} ledgers name it"
        + (f", or may ({unreadable:,} have records that cannot be read)" if unreadable else ""),
        value=f"ledgers {some}{' …' if len(naming) > LEDGERS_NAMED else ''}",
        remedy=f"start it and drain it: bk bookie drain {bookie_id}; if its data is lost: bk replication status",
    )


def _forget(store: MetadataStore, bookie_id: BookieId) -> None:
    """Delete the cookie. A bookie of ours keeps its state record, by which its directory is recognised if it comes
    back. The order says that it is not part of the cluster until then."""
    store.delete_cookie(bookie_id)
    is_ours = store.read_bookie_state(bookie_id) is not None
    store.write_bookie_order(bookie_id, BookieOrder(Order.REMOVED, _now_ms()) if is_ours else None)
