# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial interop chaos``: rounds of faults on two bookies of ours and two of Apache's with the same ledgers.

In each round our client and Apache's write a ledger each. Meanwhile bookies are killed (``kill -9``) or stopped
(SIGSTOP) and come back. Clients of both kinds recover the ledgers, some at the same time. Then all faults end, and both
kinds open every ledger. :func:`judge` compares the entries that they find with the results of all clients.

Apache's client does two things on its own bookies too, which are counted and are no problem (docs/compatibility.md).
Its recovery shows readers a LAC above the ledger's later end, and its writer may never report that it was fenced.

All random choices follow from the seed and the round's number. With ``--secure`` all bookies require certificates, and
ours, of mode mixed, also roles. All clients have both. ZooKeeper stays open.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from bk_core.client import ClientConfig
from bk_core.errors import BookKeeperError
from bk_core.metadata import open_store
from tests.interop.cells import DIGESTS
from tests.interop.jars import MAIN, SECOND, KitError
from tests.interop.java_process import PeerError
from tests.interop.parties import (
    FENCED,
    Adding,
    Ended,
    JavaParty,
    OurParty,
    Party,
    Sizes,
    Writer,
    refusal,
    said,
)
from tests.interop.pattern import Pattern
from tests.interop.peer_client import Read
from tests.interop.worlds import MixedCluster, mixed_cluster
from tests.kit.waiting import until
from tests.trials.harness import Figures, Rounds, Trial

T = TypeVar("T")
OURS, APACHE = 2, (MAIN, SECOND)
SHAPES: tuple[Sizes, ...] = ((3, 3, 2), (4, 3, 2))
ENTRIES_MAX = 1_000_000
CALL_S, HEAL_S = 120.0, 30.0
FIRST_ENTRIES = 20
"""The number of entries that are confirmed in each ledger before the first fault."""
TOLD = "what a client was told meanwhile"

JAVA_CONF: Mapping[str, object] = {
    "addEntryTimeoutSec": 2,
    "readEntryTimeoutSec": 2,
    "clientConnectTimeoutMillis": 2000,
}
TOOK_OVER = frozenset({FENCED, "LedgerClosed"})
"""The errors that Apache's writer gets when another client recovers its ledger. It gets the second one if the ledger is
closed already."""


# --- what happens in a round ---


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client library and its settings. ``goes_on`` says whether it continues with too few bookies for an ensemble."""

    kind: str  # "ours", or a version of Apache's
    wire: str
    goes_on: bool

    def __str__(self) -> str:
        return f"{self.kind}/{self.wire}{'/goes on' if self.goes_on else ''}"


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """The writer of a ledger, and the clients that recover the ledger, with their times. If the writer closes it, no
    client recovers it."""

    writer: ClientPlan
    sizes: Sizes
    digest: str
    window: int
    recoverers: tuple[tuple[float, ClientPlan], ...]
    peeks: tuple[tuple[float, ClientPlan], ...]  # clients that open it without recovery, with their times


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: str  # "kill" or "stop"
    bookie: int
    for_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a round."""

    ledgers: tuple[LedgerPlan, ...]
    faults: tuple[Fault, ...]
    length_s: float

    @property
    def clients(self) -> list[ClientPlan]:
        others = [client for each in self.ledgers for _, client in (*each.recoverers, *each.peeks)]
        return [*(each.writer for each in self.ledgers), *others]


def plan_of(seed: int, number: int) -> Plan:
    """Return the plan of the round with this number. It is the same each time."""
    rng = random.Random(f"{seed}/{number}")
    bookies = rng.sample(range(OURS + len(APACHE)), rng.choice([1, 1, 1, 2, 2, 3]))
    faults = tuple(
        Fault(rng.uniform(0.2, 1.6), rng.choice(["kill", "kill", "stop"]), bookie, rng.uniform(0.2, 3.0))
        for bookie in bookies
    )
    ledgers = tuple(_ledger_plan(rng, ours) for ours in (True, False))
    return Plan(ledgers, faults, rng.uniform(2.0, 3.0))


def _ledger_plan(rng: random.Random, ours: bool) -> LedgerPlan:
    first = rng.uniform(0.5, 2.0)
    recoverers = [(first, _client_plan(rng, not ours if rng.random() < 0.7 else ours))]
    if rng.random() < 0.4:
        recoverers.append((first + rng.uniform(0, 0.5), _client_plan(rng, rng.random() < 0.5)))
    return LedgerPlan(
        writer=_client_plan(rng, ours),
        sizes=rng.choice(SHAPES),
        digest=rng.choice(DIGESTS),
        window=rng.choice([2, 10, 50]),
        recoverers=tuple(recoverers) if rng.random() < 0.8 else (),
        peeks=tuple((rng.uniform(0.3, 2.0), _client_plan(rng, each)) for each in (True, False)),
    )


def _client_plan(rng: random.Random, ours: bool) -> ClientPlan:
    if ours:
        return ClientPlan("ours", rng.choice(["grpc", "v3"]), rng.random() < 0.7)
    return ClientPlan(rng.choice(APACHE), rng.choice(["v3", "v2"]), rng.random() < 0.7)


# --- what clients were told, and what that must be ---


@dataclass(slots=True)
class Told:
    """The results that clients got for one ledger: the errors of calls, and the ends and LACs that calls returned."""

    plan: LedgerPlan
    ledger_id: int
    pattern: Pattern
    ended: Ended | None = None  # the writer's end; None if the writer hangs
    hangs_at: int = -1  # the LAC of a writer that hangs
    taken_over: bool = False  # a recovery ended while the writer was writing
    closed_by_writer: bool = False
    late: str = ""  # the writer's answer to an append after the recovery
    ends: list[tuple[str, int]] = field(default_factory=list)  # the ends from recoveries, in the order of their answers
    lacs: list[tuple[str, int]] = field(default_factory=list)  # the LACs from handles opened without recovery
    reads: list[tuple[str, Read]] = field(default_factory=list)  # the last reads of the whole ledger, by both kinds
    errors: list[str] = field(default_factory=list)  # calls that a fault explains
    problems: list[str] = field(default_factory=list)  # calls that no fault explains


def judge(told: Told) -> list[str]:
    """Return every promise that was broken."""
    found = list(told.problems)
    ends = {end for _, end in told.ends}
    if len(ends) != 1:
        found.append(f"END MOVED: {told.ends}")
    if not ends:
        return found
    end = max(ends)
    if told.ended is None and not apaches_writer_hangs(told):
        found.append("HANG: the writer waits, though everything was healed")
    acked = told.hangs_at + 1 if told.ended is None else told.ended.acked
    if acked > end + 1:
        found.append(f"LOST: {acked} entries were acknowledged, the ledger ends at {end}")
    if not apache_recovers(told):
        found += [f"LOST: {who} was told of LAC {lac}, the ledger ends at {end}" for who, lac in told.lacs if lac > end]
    wanted = (end + 1, told.pattern.checksum(0, end))
    for who, read in told.reads:
        if (read.count, read.checksum) != wanted:
            found.append(f"CHANGED: {who} read {read.count} entries of {end + 1}, or other bytes than were written")
    if len(told.reads) < 2:
        found.append("UNREADABLE: not both kinds of client could read the ledger")
    return found + _judge_fence(told)


def apaches_writer_hangs(told: Told) -> bool:
    """Return whether the hang is Apache's. If an ensemble change of Apache's writer meets a recovery, the writer fails
    the adds in flight, stays open, and answers no later add (LedgerHandle.ensembleChangeLoop: the change never counts
    as over)."""
    return told.ended is None and told.taken_over and told.plan.writer.kind != "ours"


def apache_recovers(told: Told) -> bool:
    """Return whether a client of Apache's recovers the ledger. Its recovery writes entries back with an advancing LAC
    before the ledger is closed. If another recoverer closes the ledger lower, or its fenced writer closes it at its own
    LAC, readers got too high a LAC. This breaks the property NoDirtyReads, which Apache took out of its TLA+
    specification."""
    return any(client.kind != "ours" for _, client in told.plan.recoverers)


def _judge_fence(told: Told) -> list[str]:
    """Return a problem if a writer that lost its ledger to a recoverer did not get an error that says so."""
    if told.ended is None or told.closed_by_writer:
        return []
    found = []
    fenced = {FENCED} if told.plan.writer.kind == "ours" else TOOK_OVER
    if told.late == "nothing":
        found.append("NOT FENCED: the writer could append after the recovery")
    elif not told.ended.said and told.late not in fenced:
        found.append(f"NOT FENCED: the writer was told {told.late!r} after the recovery")
    return found


# --- a round ---


class Arena:
    """The cluster of many rounds, and clients of Apache's, which are expensive to make."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self._java: dict[ClientPlan, JavaParty] = {}

    def party(self, plan: ClientPlan) -> Party:
        """Return a client. Ours is a new one each time, because a new process would also know nothing about the
        bookies."""
        if plan.kind != "ours":
            if plan not in self._java:
                conf = {**JAVA_CONF, **self.cluster.their_client, "delayEnsembleChange": str(plan.goes_on).lower()}
                self._java[plan] = JavaParty(self.cluster.peer(plan.kind), self.cluster.uri, plan.wire, conf)
            return self._java[plan]
        return OurParty(
            self.cluster.uri,
            plan.wire,
            ClientConfig(
                add_timeout_ms=2_000,
                reconnect_budget_ms=500,
                read_timeout_ms=4_000,
                lac_stall_ms=500,
                delay_ensemble_change=plan.goes_on,
                allow_degraded_writes=plan.goes_on,
                **self.cluster.our_client,
            ),
        )


class Round:
    """One round on a running cluster. Its figures have no problems if every promise was kept."""

    def __init__(self, arena: Arena, seed: int, number: int) -> None:
        self._arena, self._cluster, self._number = arena, arena.cluster, number
        self._plan = plan_of(seed, number)
        self._report = Figures(rounds=1)
        self._threads = ThreadPoolExecutor(max_workers=24, thread_name_prefix=f"round-{number}")
        self._ours: list[OurParty] = []
        self._away: dict[int, str] = {}  # bookie → how it went away
        self._left: set[int] = set()  # bookies that do not serve
        self._absences: list[tuple[int, float]] = []  # bookie, and the time until which it did not serve
        self._returns: list[Future[None]] = []

    def run(self) -> Figures:
        try:
            told = self._go_through()
        finally:
            self._heal()
            self._threads.shutdown(wait=False, cancel_futures=True)
            for party in self._ours:
                party.close()
        self._report.counts["acknowledged"] = 0
        for each in told:
            problems = judge(each)
            self._report.problems += [f"ledger {each.ledger_id} of {each.plan.writer}: {text}" for text in problems]
            self._count(each)
        return self._report

    def _party(self, plan: ClientPlan) -> Party:
        party = self._arena.party(plan)
        if isinstance(party, OurParty):
            self._ours.append(party)
        return party

    # --- its parts ---

    def _go_through(self) -> list[Told]:
        told: list[Told] = []
        writers: list[Writer] = []
        for client in self._plan.clients:  # JVMs start before the first fault
            if client.kind != "ours":
                self._arena.party(client)
        for index, ledger in enumerate(self._plan.ledgers):
            create = partial(self._party(ledger.writer).create, (), ledger.sizes, ledger.digest)
            writer = _again(create, CALL_S)
            writers.append(writer)
            told.append(Told(ledger, writer.ledger_id, Pattern(seed=self._number * 2 + index, size_max=400)))
        addings = [
            writer.begin(ENTRIES_MAX, each.pattern, first=0, window=each.plan.window, pause_ms=1)
            for writer, each in zip(writers, told, strict=True)
        ]
        until(
            lambda: all(writer.lac() >= FIRST_ENTRIES for writer in writers),
            CALL_S,
            "nothing was written, though nothing fails yet",
        )
        calls = self._carry_out(told)
        self._heal()
        for adding in addings:
            adding.halt()
        for call in calls:
            call.result(2 * CALL_S)
        for writer, adding, each in zip(writers, addings, told, strict=True):
            self._end_writer(writer, adding, each)
            self._end_ledger(each)
            if each.ended is not None:
                each.late = refusal(partial(writer.append, b"late"))
        return told

    def _carry_out(self, told: list[Told]) -> list[Future[None]]:
        """Begin the faults and the other clients, each at its time. The clients run in threads of their own, whose
        futures are returned."""
        agenda: list[tuple[float, int, Callable[[], Future[None] | None]]] = []

        def at(when_s: float, act: Callable[[], Future[None] | None]) -> None:
            agenda.append((when_s, len(agenda), act))

        for fault in self._plan.faults:
            at(fault.at_s, partial(self._begin, fault))
            at(fault.at_s + fault.for_s, partial(self._end, fault.bookie))
        for each in told:
            for when, client in each.plan.recoverers:
                at(when, partial(self._threads.submit, self._recover, each, client))
            for when, client in each.plan.peeks:
                at(when, partial(self._threads.submit, self._peek, each, client))
        at(self._plan.length_s, lambda: None)
        began, calls = time.monotonic(), []
        for when, _, act in sorted(agenda, key=lambda item: item[:2]):
            time.sleep(max(0.0, began + when - time.monotonic()))
            call = act()
            if call is not None:
                calls.append(call)
        return calls

    def _recover(self, told: Told, client: ClientPlan) -> None:
        with self._listening(told, f"recover {client.kind}"):
            reader = self._party(client).open(told.ledger_id, told.plan.digest, recover=True)
            told.ends.append((str(client), reader.lac))
            told.taken_over = True
            if not reader.closed:
                told.problems.append(f"NOT CLOSED: after the recovery by {client}")

    def _peek(self, told: Told, client: ClientPlan) -> None:
        with self._listening(told, f"open {client.kind}"):
            reader = self._party(client).open(told.ledger_id, told.plan.digest, recover=False)
            told.lacs.append((str(client), reader.lac))
            if reader.lac >= 0 and reader.read(0, reader.lac).checksum != told.pattern.checksum(0, reader.lac):
                told.problems.append(f"CHANGED: {client} read other bytes than were written, up to LAC {reader.lac}")

    @contextmanager
    def _listening(self, told: Told, what: str) -> Iterator[None]:
        """Note a refusal in this block as an error, because faults explain it, and silence as a problem."""
        began = time.monotonic()
        try:
            yield
        except (PeerError, BookKeeperError) as error:
            away = self._left | {bookie for bookie, until in self._absences if until > began}
            told.errors.append(f"{what} with {len(away)} bookies away: {said(error)}")
        except (KitError, TimeoutError) as error:
            told.problems.append(f"HANG: {what}: {error}")

    def _end_writer(self, writer: Writer, adding: Adding, told: Told) -> None:
        try:
            told.ended = adding.ended(CALL_S)
        except TimeoutError:
            told.hangs_at = writer.lac()
            return
        if told.ended.said:
            told.errors.append(f"append {told.plan.writer.kind}: {told.ended.said}")
        elif not told.plan.recoverers:
            words = refusal(writer.close)
            told.closed_by_writer = words == "nothing"
            if words != "nothing":
                told.errors.append(f"close {told.plan.writer.kind}: {words}")

    def _end_ledger(self, told: Told) -> None:
        """Let both kinds recover the ledger, if that has not happened yet, and read it to its end."""
        order = [ClientPlan("ours", "grpc", True), ClientPlan(APACHE[self._number % 2], "v3", True)]
        for client in order if self._number % 4 < 2 else reversed(order):
            party = self._party(client)
            try:
                reader = _again(partial(party.open, told.ledger_id, told.plan.digest, recover=True), CALL_S)
                told.ends.append((str(client), reader.lac))
                told.reads.append((str(client), reader.read(0, reader.lac)))
            except (PeerError, BookKeeperError) as error:
                told.problems.append(
                    f"HANG: {client} cannot open the ledger, though everything was healed: {said(error)}"
                )
            except (KitError, TimeoutError) as error:
                told.problems.append(f"HANG: {client} does not come to the end of the ledger: {error}")

    # --- bookies ---

    def _begin(self, fault: Fault) -> None:
        bookie = self._cluster.bookies[fault.bookie]
        if fault.kind == "kill":
            bookie.kill()
        else:
            bookie.pause()
        self._away[fault.bookie] = fault.kind
        self._left.add(fault.bookie)
        self._report.counts[f"{fault.kind} of {'ours' if bookie.is_ours else 'Apache'}"] += 1

    def _end(self, index: int) -> None:
        how = self._away.pop(index, None)
        bookie = self._cluster.bookies[index]
        if how == "kill":
            self._returns.append(self._threads.submit(self._start, index))
        elif how == "stop":
            bookie.resume()
            self._is_back(index)

    def _start(self, index: int) -> None:
        self._cluster.bookies[index].start()
        self._is_back(index)

    def _is_back(self, index: int) -> None:
        self._absences.append((index, time.monotonic()))
        self._left.discard(index)

    def _heal(self) -> None:
        """End all faults, and wait until all bookies serve. A bookie whose session ended while it was stopped may have
        ended too; it is started again."""
        for index in list(self._away):
            self._end(index)
        for start in self._returns:
            start.result(CALL_S)
        self._returns.clear()
        with closing(open_store(self._cluster.uri)) as store:
            missing = self._cluster.bookies
            deadline = time.monotonic() + HEAL_S
            while missing and time.monotonic() < deadline:
                registered = store.writable_bookies()
                missing = [bookie for bookie in missing if bookie.bookie_id not in registered]
                time.sleep(0.05 if missing else 0)
        for bookie in missing:
            self._report.table(TOLD)[
                f"{'ours' if bookie.is_ours else 'Apache'}: a bookie did not come back by itself"
            ] += 1
            bookie.kill()
            bookie.start()

    # --- figures ---

    def _count(self, told: Told) -> None:
        counts = self._report.counts
        counts["ledgers"] += 1
        counts["acknowledged"] += told.ended.acked if told.ended else 0
        counts["read"] += sum(read.count for _, read in told.reads)
        counts["recoveries"] += len(told.ends)
        counts["opened without recovery"] += len(told.lacs)
        counts["writers that heard that they are fenced"] += bool(
            told.late in TOOK_OVER or (told.ended and told.ended.said in TOOK_OVER)
        )
        counts["ledgers closed by their writer"] += told.closed_by_writer
        counts["writers of Apache's that hang after a recovery"] += apaches_writer_hangs(told)
        counts["LACs beyond the end after a recovery by Apache's client"] += sum(
            lac > told.ends[0][1] for _, lac in told.lacs if told.ends
        )
        self._report.table(TOLD).update(": ".join(text.split(": ")[:2]) for text in told.errors)


def _again(call: Callable[[], T], within_s: float) -> T:
    """Return the answer. Repeat the call while bookies or their registrations come back."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except (PeerError, BookKeeperError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# --- many rounds ---


def one_round(arena: Arena, seed: int, number: int) -> Figures:
    figures = Round(arena, seed, number).run()
    if figures.problems:
        figures.problems.append(f"the plan: {plan_of(seed, number)}")
    return figures


class ChaosTrial(Trial):
    name = "interop chaos"
    about = (
        "Bookies of both kinds are killed and stopped under clients of both kinds, which take each other's ledgers "
        "over. What all were told is compared with what both read in the end."
    )
    world_rounds = 50
    wanted = ("acknowledged",)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--secure", action="store_true", help="certificates for all, roles on our bookies")

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Rounds]:
        with mixed_cluster(path, ours=OURS, apache=APACHE, secure=self.ask.secure) as cluster:
            yield Rounds(partial(one_round, Arena(cluster), self.ask.seed))
