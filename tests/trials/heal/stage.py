# SPDX-License-Identifier: Apache-2.0
"""One cluster of the trial. Its turns of disturbances run under traffic; each is healed and checked before the next
one. At the end every copy of every ledger is checked."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bk_core import blocking
from bk_core.metadata.port import Audit
from bk_core.model import BOOKIE_RPC, LedgerState
from bk_core.transport.lanes import LANES
from tests.interop.jars import toolchain
from tests.interop.peer_client import PeerClient
from tests.kit.lane_table import OURS
from tests.kit.uncertified import not_refusing
from tests.kit.waiting import until
from tests.trials.bookie.journal import Journal
from tests.trials.harness import Figures
from tests.trials.heal.check import Checked, check_copies, check_log, unhealed
from tests.trials.heal.disturbances import BrokenPromiseError, World, carry_out
from tests.trials.heal.nodes import HealCluster
from tests.trials.heal.oracle import Journals, pattern_of
from tests.trials.heal.schedule import BOOKIES, WIPE, Account, Act, Kind, Slot, Turn, turn_of
from tests.trials.heal.traffic import UNENDED, Traffic

HEALED_S = 120.0
LEDGERS_KEPT = 60
"""The number of closed ledgers that are kept. Of further ones, the oldest whose copies were all correct are deleted."""
WARM_LEDGERS, WARM_S = 4, 60.0
AUDITED_S = 90.0
QUIET_S = (0.5, 3.0)
ACT_S = 400.0
PEER_LEDGERS = 40
OUR_LANES = (*OURS, ",".join(LANES), BOOKIE_RPC)
ALL_LANES = (",".join(LANES), ",".join([*LANES][1:]))
SMALL = (1, 4)


def slots_of(apache: int, *, mounts: bool) -> list[Slot]:
    """Return the places. The last ``apache`` of them are for Apache's bookies; those whose disk can be filled are for
    ours."""
    return [
        Slot(number, ours=number <= BOOKIES - apache, small=mounts and number in SMALL)
        for number in range(1, BOOKIES + 1)
    ]


class Stage:
    """A cluster under traffic, on which turns are made; a context manager. All its random choices follow from
    ``seed``."""

    def __init__(
        self, path: Path, seed: str, kinds: Sequence[Kind], *, apache: int, isolated: bool, broken: str, secure: bool
    ) -> None:
        self._seed, self._rng, self._kinds = seed, random.Random(seed), kinds
        self._slots = slots_of(apache, mounts=isolated)
        self._apache = apache
        self._report, self._account = Figures(), Account()
        self._cluster = HealCluster(path, self._slots, network=isolated, broken=broken, secure=secure)
        self._folder = path / "journals"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(str(self._folder / "conductor.journal"))
        self._journals = Journals(self._folder)
        self._books = threading.Lock()
        self._settled: list[int] = []
        self._wiped: set[str] = set()
        self._closing = ExitStack()
        self._told: Counter[str] = Counter()
        self._errors_told: Counter[str] = Counter()

    def __enter__(self) -> Stage:
        with ExitStack() as undo:
            cluster = undo.enter_context(self._cluster)
            self._world = World(cluster, self._journals)
            lanes = ALL_LANES if self._apache else OUR_LANES
            self._traffic = Traffic(cluster, self._folder, random.Random(f"{self._seed}/traffic"), lanes)
            self._traffic.start()
            undo.callback(self._traffic.stop)
            self._warm_up()
            self._closing = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def round(self, turn: Turn) -> Figures:
        """Make one turn: disturb, wait until all is healed, and read the copies."""
        self._report.rounds = 1
        self._rng = random.Random(f"{self._seed}/{turn.number}")
        time.sleep(self._rng.uniform(*QUIET_S))
        self._turn(turn_of(self._rng, turn.kind, self._slots, [each for each in self._kinds if each.companion]))
        return self._take_report()

    def finish(self) -> Figures:
        """End the clients, read every copy of every ledger and the log, and compare with Apache's client."""
        traffic, report = self._traffic, self._report
        traffic.stop()
        if traffic.error is not None:
            report.problems.append(f"TRIAL: the clients' keeper ended: {traffic.error!r}")
        if traffic.counts[UNENDED]:
            report.problems.append(f"HANG: {traffic.counts[UNENDED]} {UNENDED}, though everything was healed")
        if not report.problems:
            self._end(traffic)
        report.counts["clusters"] += 1
        report.counts["clusters with bookies of Apache's"] += bool(self._apache)
        return self._take_report()

    def _take_report(self) -> Figures:
        """Return the figures since the last call."""
        report, self._report = self._report, Figures()
        totals = self._world.counts + self._traffic.counts + self._journals.counts
        totals["acknowledged"] = sum(known.acked + 1 for known in self._journals.ledgers.values())
        totals["log entries acknowledged"] = len(self._journals.log_acked)
        report.counts.update(totals - self._told)
        report.counts["lost"] += sum("LOST" in problem for problem in report.problems)
        report.table("error that a client was given").update(self._journals.errors - self._errors_told)
        self._told, self._errors_told = totals, self._journals.errors.copy()
        return report

    # --- turns ---

    def _warm_up(self) -> None:
        """Wait until the clients have written ledgers, so that the first disturbance can lose some."""

        def is_warm() -> bool:
            self._journals.read()
            return sum(known.is_settled for known in self._journals.alive()) >= WARM_LEDGERS

        until(is_warm, WARM_S, "the clients write nothing, though nothing fails yet")
        if self._cluster.security is not None:
            wrong = not_refusing(self._cluster.uri, self._cluster.security.settings())
            self._report.counts["bookies that refused a client without a certificate"] += len(self._slots) - len(wrong)
            self._report.problems += [f"NOT SECURE: {each} refuses no client: {said}" for each, said in wrong.items()]

    def _turn(self, acts: Sequence[Act]) -> None:
        report, began = self._report, time.monotonic()
        self._wiped = {self._cluster.node(act.slot).bookie_id for act in acts if act.kind is WIPE}
        with ThreadPoolExecutor(len(acts), thread_name_prefix="act") as threads:
            for act, said in zip(acts, threads.map(self._act, acts, timeout=ACT_S), strict=True):
                report.table("disturbance")[act.kind.name] += 1
                report.problems += [f"{act}: {text}" for text in said]
        acted, checked = time.monotonic(), Checked()
        if not report.problems:
            self._traffic.roll_log()
            report.problems += self._await_healed()
            report.times_s["healed after a turn"] = [time.monotonic() - acted]
        if not report.problems:
            checked = self._check(self._settled)
        if not report.problems:
            self._account.healed()
            self._clean_up(checked)
        report.note = (
            f"{', '.join(map(str, acts))}: {acted - began:.1f} s, healed and read in {time.monotonic() - acted:.1f} s, "
            f"{checked.counts['copies']} copies; {len(self._journals.alive())} ledgers"
        )

    def _act(self, act: Act) -> list[str]:
        time.sleep(act.after_s)
        with self._books:
            self._account.begin(act)
        try:
            carry_out(self._world, act)
        except (BrokenPromiseError, TimeoutError, RuntimeError) as error:
            return [f"{error}"]
        except Exception:  # the disturbance itself failed, which is a finding too
            return [f"TRIAL: {traceback.format_exc()[-2_000:]}"]
        finally:
            with self._books:
                self._account.back(act)
        return []

    def _await_healed(self) -> list[str]:
        """Wait until two looks in a row find nothing to heal. ``_settled`` becomes the ledgers that were closed before
        the first of them, about which no client can add anything."""
        said: list[str] = []
        quiet = 0

        def healed() -> bool:
            nonlocal said, quiet
            if not quiet:
                self._journals.read()
                self._settled = [known.ledger_id for known in self._journals.alive() if known.is_settled]
            said = unhealed(self._cluster, self._journals)
            quiet = 0 if said else quiet + 1
            return quiet == 2

        try:
            until(healed, HEALED_S, "not healed", 0.5)
            for act in self._world.afterwards:
                act()
            self._world.afterwards.clear()
        except (TimeoutError, BrokenPromiseError) as error:
            return [f"STUCK: {error}: {'; '.join(said)}"]
        return [*self._journals.problems, *self._journals.denied()]

    def _check(self, ledgers: Sequence[int]) -> Checked:
        """Check every copy of these ledgers, and add the problems to the report.

        If a writer dies, some of its bookies may lack entries that an ack quorum of others had confirmed. Only the
        auditor's check of all copies finds this. So for such ledgers alone the check is made due, once. It is not made
        due for a bookie that was wiped in this turn, because that bookie has marked all its ledgers.
        """
        report = self._report
        checked = check_copies(self._cluster, self._journals, ledgers)
        if checked.holes and not checked.problems and all(map(self._may_have_hole, checked.holes)):
            report.counts["holes after a writer's death, mended by the auditor's check"] += len(checked.holes)
            report.counts["checks by the auditor"] += 1
            self._audit()
            checked = check_copies(self._cluster, self._journals, ledgers)
        report.problems += [*checked.problems, *checked.holes.values()]
        report.counts.update({f"{name} checked": count for name, count in checked.counts.items()})
        return checked

    def _may_have_hole(self, where: tuple[int, str]) -> bool:
        ledger_id, bookie = where
        return not self._journals.ledgers[ledger_id].closed and bookie not in self._wiped

    def _audit(self) -> None:
        """Make the auditor's weekly check of all copies due, and wait for it."""
        store = self._cluster.store
        store.write_audit_time_ms(Audit.LEDGERS, 1)
        try:
            until(lambda: (store.audit_time_ms(Audit.LEDGERS) or 0) > 1, AUDITED_S, "the auditor checks no copies")
        except TimeoutError as error:
            self._report.problems.append(f"STUCK: {error}")

    def _clean_up(self, checked: Checked) -> None:
        """Delete the oldest ledgers of which every copy was correct."""
        surplus = self._settled[: max(0, len(self._settled) - LEDGERS_KEPT)]
        gone = [ledger_id for ledger_id in surplus if ledger_id in checked.verified]
        if not gone:
            return
        with blocking.connect(self._cluster.uri, config=self._cluster.config()) as client:
            for ledger_id in gone:
                self._journal.say("deleted", ledger=ledger_id)
                client.delete_ledger(ledger_id)
        self._report.counts["ledgers deleted"] += len(gone)
        self._journals.read()

    # --- the end ---

    def _end(self, traffic: Traffic) -> None:
        """Make the last checks: every copy of every ledger, the log, and the reads of Apache's client."""
        report = self._report
        traffic.recover_rest()
        report.problems += self._await_healed()
        self._journals.read()
        alive = [known.ledger_id for known in self._journals.alive()]
        checked = self._check(alive)
        log = check_log(self._cluster, self._journals)
        report.problems += log.problems
        report.counts.update({f"{name} checked at last": count for name, count in checked.counts.items()})
        report.counts.update(log.counts)
        report.problems += self._await_healed()
        self._count_stuck(alive)
        if self._apache:
            report.problems += self._ask_apache(alive)

    def _count_stuck(self, alive: Sequence[int]) -> None:
        store, report = self._cluster.store, self._report
        marked = len(list(store.list_underreplicated()))
        states = Counter[LedgerState]()
        for ledger_id in store.list_ledgers():
            state = store.read_ledger(ledger_id).value.state
            states[state] += 1
            if ledger_id in alive and state is not LedgerState.CLOSED:
                report.problems.append(f"STUCK: ledger {ledger_id} is {state.name}")
        in_recovery = states[LedgerState.IN_RECOVERY]
        report.counts.update({"under-replicated at the end": marked, "in recovery at the end": in_recovery})
        if marked or in_recovery:
            report.problems.append(f"STUCK: {marked} under-replicated, {in_recovery} in recovery")

    def _ask_apache(self, alive: Sequence[int]) -> list[str]:
        """Open and read some of the ledgers with Apache's client. Return the differences of ends and bytes."""
        found = []
        with PeerClient(toolchain(), self._cluster.path / "client.log") as peer:
            client = peer.client(self._cluster.uri, conf=self._cluster.told_apaches_client)
            for ledger_id in self._rng.sample(list(alive), min(len(alive), PEER_LEDGERS)):
                end = self._cluster.store.read_ledger(ledger_id).value.last_entry_id
                assert end is not None
                ledger = client.open(ledger_id, recover=False, password=b"")
                if (ledger.opened.lac, ledger.opened.closed) != (end, True):
                    found.append(f"CHANGED: ledger {ledger_id}: Apache's client says {ledger.opened}, ours {end}")
                elif end >= 0 and ledger.read(0, end).checksum != pattern_of(ledger_id).checksum(0, end):
                    found.append(f"CHANGED: ledger {ledger_id}: Apache's client reads other bytes")
                self._report.counts["ledgers read by Apache's client"] += 1
        return found
