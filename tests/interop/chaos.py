# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial interop chaos``: rounds of faults on two bookies of ours and two of Apache's with the same ledgers.

In each round our client and Apache's write a ledger each. Bookies are killed (``kill -9``) or stopped (SIGSTOP) under
them and come back; clients of both kinds recover the ledgers, some at the same time. Then everything is healed, both
kinds open every ledger, and what they find is compared with what all clients were told: :func:`judge` says how.

Two things that Apache's client does on its own bookies too are counted and no problem (docs/compatibility.md): its
recovery tells readers a LAC that the ledger may end below, and its writer may never say that it was fenced.

All that is random comes from the seed and the round's number. With ``--secure`` all bookies want
certificates and ours, of mode mixed, roles; all clients have both. ZooKeeper stays open.
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
from tests.trials.harness import Figures, Trial

T = TypeVar("T")
OURS, APACHE = 2, (MAIN, SECOND)
SHAPES: tuple[Sizes, ...] = ((3, 3, 2), (4, 3, 2))
ENTRIES_MAX = 1_000_000
CALL_S, HEAL_S = 120.0, 30.0
FIRST_ENTRIES = 20
"""Confirmed in each ledger before the first fault."""
TOLD = "what a client was told meanwhile"

JAVA_CONF: Mapping[str, object] = {
    "addEntryTimeoutSec": 2,
    "readEntryTimeoutSec": 2,
    "clientConnectTimeoutMillis": 2000,
}
TOOK_OVER = frozenset({FENCED, "LedgerClosed"})
"""What Apache's writer is told when another client recovers its ledger: the second if it is closed already."""


# --- what happens in a round ---


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client library and how it is set: ``goes_on`` with too few bookies for an ensemble, or ends."""

    kind: str  # "ours", or a version of Apache's
    wire: str
    goes_on: bool

    def __str__(self) -> str:
        return f"{self.kind}/{self.wire}{'/goes on' if self.goes_on else ''}"


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """A ledger's writer, and who recovers it when; nobody if the writer closes it."""

    writer: ClientPlan
    sizes: Sizes
    digest: str
    window: int
    recoverers: tuple[tuple[float, ClientPlan], ...]
    peeks: tuple[tuple[float, ClientPlan], ...]  # who opens it without recovery, when


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: str  # "kill" or "stop"
    bookie: int
    for_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A round."""

    ledgers: tuple[LedgerPlan, ...]
    faults: tuple[Fault, ...]
    length_s: float

    @property
    def clients(self) -> list[ClientPlan]:
        others = [client for each in self.ledgers for _, client in (*each.recoverers, *each.peeks)]
        return [*(each.writer for each in self.ledgers), *others]


def plan_of(seed: int, number: int) -> Plan:
    """The round of this number; the same each time."""
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
    """Of one ledger, all that clients were told. ``error`` of a call, or the end or LAC that it gave."""

    plan: LedgerPlan
    ledger_id: int
    pattern: Pattern
    ended: Ended | None = None  # of the writer; None if it hangs
    hangs_at: int = -1  # the LAC of a writer that hangs
    taken_over: bool = False  # a recovery ended while the writer was at work
    closed_by_writer: bool = False
    late: str = ""  # what the writer said to an append when all was over
    ends: list[tuple[str, int]] = field(default_factory=list)  # of recoveries, in the order of their answers
    lacs: list[tuple[str, int]] = field(default_factory=list)  # of handles opened without recovery
    reads: list[tuple[str, Read]] = field(default_factory=list)  # of the whole ledger, by both kinds, at last
    errors: list[str] = field(default_factory=list)  # calls that a fault explains
    problems: list[str] = field(default_factory=list)  # calls that no fault explains


def judge(told: Told) -> list[str]:
    """Every promise that was broken."""
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
    """Apache's writer whose ensemble change meets a recovery fails what is in flight, stays open, and answers no later
    add (LedgerHandle.ensembleChangeLoop: the change never counts as over)."""
    return told.ended is None and told.taken_over and told.plan.writer.kind != "ours"


def apache_recovers(told: Told) -> bool:
    """Apache's recovery writes entries back with a LAC that moves on, before the ledger is closed. If another recoverer
    closes it lower, or its fenced writer does at what was confirmed to it, then readers were told too much: that is the
    property NoDirtyReads, which Apache took out of its TLA+ specification."""
    return any(client.kind != "ours" for _, client in told.plan.recoverers)


def _judge_fence(told: Told) -> list[str]:
    """Whoever lost a ledger to another must hear so."""
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
    """The cluster of many rounds, and clients of Apache's, which are dear to make."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self._java: dict[ClientPlan, JavaParty] = {}

    def party(self, plan: ClientPlan) -> Party:
        """Ours are new ones each time: what one learnt of bookies would be forgotten by a new process too."""
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
    """One round on a running cluster. Problems of its figures are empty when every promise was kept."""

    def __init__(self, arena: Arena, seed: int, number: int) -> None:
        self._arena, self._cluster, self._number = arena, arena.cluster, number
        self._plan = plan_of(seed, number)
        self._report = Figures(rounds=1)
        self._threads = ThreadPoolExecutor(max_workers=24, thread_name_prefix=f"round-{number}")
        self._ours: list[OurParty] = []
        self._away: dict[int, str] = {}  # bookie → how
        self._left: set[int] = set()  # bookies that do not serve
        self._absences: list[tuple[int, float]] = []  # bookie, and until when it did not serve
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
        for client in self._plan.clients:  # a JVM starts before anything happens
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
        """Faults and other clients, each at its time; these work in threads of their own."""
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
        """A refusal is what faults explain; silence is not."""
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
        """Both kinds recover the ledger, if that is still to be done, and read it to its end."""
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
        """Everything serves again. A bookie whose session ended while it was stopped may have ended itself."""
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
    """The answer, asked for again while bookies or their registrations come back."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except (PeerError, BookKeeperError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# --- many rounds ---


class ChaosWorld:
    def __init__(self, arena: Arena, seed: int) -> None:
        self._arena, self._seed = arena, seed

    def round(self, number: int) -> Figures:
        figures = Round(self._arena, self._seed, number).run()
        if figures.problems:
            figures.problems.append(f"the plan: {plan_of(self._seed, number)}")
        return figures

    def finish(self) -> Figures:
        return Figures()


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
    def world(self, path: Path, figures: Figures) -> Iterator[ChaosWorld]:
        with mixed_cluster(path, ours=OURS, apache=APACHE, secure=self.ask.secure) as cluster:
            yield ChaosWorld(Arena(cluster), self.ask.seed)
