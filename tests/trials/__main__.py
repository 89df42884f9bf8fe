# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial``: rounds of faults on a cluster of real processes, and what became of every entry.

Exit code 0 only if rounds were run and no promise was broken. With ``--resume FILE`` the figures so far are kept there
after every round, and the next call goes on from it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.seeded_figures import SeededFigures
from tests.trials.bookie.rounds import Round, RoundReport
from tests.trials.kit.cluster import TrialCluster
from tests.trials.kit.network import enter_own_network, networks_work

BOOKIES = 7
CLUSTER_ROUNDS = 100
"""Then a new one: nothing is deleted from a cluster in between."""
PROBLEMS_KEPT = 20
"""Of one round: what is broken once is often broken for many entries."""


@dataclass(slots=True)
class Figures(SeededFigures):
    """Sums over the rounds of all runs of one seed."""

    rounds: int = 0
    ledgers: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    changed: int = 0
    hangs: int = 0
    takeovers_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, report: RoundReport) -> None:
        self.rounds += 1
        self.ledgers += report.ledgers
        self.seconds += report.seconds
        for mine, its in ((self.counts, report.counts), (self.faults, report.faults), (self.errors, report.errors)):
            mine.update(its)
        self.lost += report.lost
        self.changed += report.changed
        self.hangs += report.hangs
        self.takeovers_s += report.takeovers_s
        self.problems += [f"round {report.number}: {problem}" for problem in report.problems[:PROBLEMS_KEPT]]

    @property
    def passed(self) -> bool:
        """Something ran, something was acknowledged, and nothing is wrong."""
        return self.rounds > 0 and self.counts["acknowledged"] > 0 and not self.problems

    def text(self) -> str:
        """The report, in Markdown."""
        rows: list[tuple[str, int | str]] = [
            ("rounds", self.rounds),
            ("ledgers", self.ledgers),
            ("operations", self.counts["operations"]),
            ("entries acknowledged", self.counts["acknowledged"]),
            ("entries of unknown outcome", self.counts["unknown"]),
            ("entries refused", self.counts["refused"]),
            ("entries read", self.counts["read"]),
            ("faults", sum(self.faults.values())),
            ("**lost**", self.lost),
            ("**changed or out of order**", self.changed),
            ("**hangs**", self.hangs),
            ("takeovers, faults among them", len(self.takeovers_s)),
            ("takeover, median / 99 % / slowest", self._takeovers()),
            ("time", f"{self.seconds:.0f} s, {self.seconds / max(self.rounds, 1):.1f} s a round"),
        ]
        lines = ["| | |", "|---|---:|", *(f"| {name} | {_number(value)} |" for name, value in rows), ""]
        lines += ["| fault | times |", "|---|---:|", *(f"| {kind} | {n} |" for kind, n in sorted(self.faults.items()))]
        lines += ["", "| error that a client was given | times |", "|---|---:|"]
        lines += [f"| {kind} | {n} |" for kind, n in self.errors.most_common(20)]
        lines += ["", *(f"- {problem}" for problem in self.problems)]
        return "\n".join(lines).rstrip() + "\n"

    def _takeovers(self) -> str:
        """From the call to the closed ledger, while faults went on."""
        ordered = sorted(self.takeovers_s) or [0.0]
        return " / ".join(f"{ordered[int(part * (len(ordered) - 1))]:.2f}" for part in (0.5, 0.99, 1)) + " s"


def _number(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def main() -> int:
    arguments = _arguments()
    if arguments.networks:
        enter_own_network()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up then too
    try:
        figures = Figures.load(arguments.resume, arguments.seed, secure=arguments.secure)
    except ValueError as error:
        print(f"trial: {error}", file=sys.stderr)
        return 2
    try:
        while figures.rounds < arguments.rounds:
            _one_cluster(figures, arguments)
    except KeyboardInterrupt:
        print("trial: interrupted", file=sys.stderr)
    print(figures.text())
    if arguments.report:
        arguments.report.write_text(_page(figures, arguments), encoding="utf-8")
    return 0 if figures.passed and figures.rounds >= arguments.rounds else 1


def _one_cluster(figures: Figures, arguments: argparse.Namespace) -> None:
    """Rounds on one cluster, as many as it is used for. Its data are kept only if something is wrong."""
    if arguments.work is not None:
        Path(arguments.work).mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="trial-", dir=arguments.work))
    problems = len(figures.problems)
    try:
        with TrialCluster(
            path,
            bookies=BOOKIES,
            network=arguments.networks,
            zookeepers=arguments.zookeepers,
            secure=arguments.secure,
        ) as cluster:
            for _ in range(min(CLUSTER_ROUNDS, arguments.rounds - figures.rounds)):
                _one_round(cluster, path, figures, arguments.quiet)
                if arguments.resume:
                    figures.save(arguments.resume)
    finally:
        if len(figures.problems) == problems:
            shutil.rmtree(path, ignore_errors=True)
        else:
            print(f"trial: journals and logs are kept in {path}", file=sys.stderr)


def _one_round(cluster: TrialCluster, path: Path, figures: Figures, quiet: bool) -> None:
    number = figures.rounds
    journals = path / f"round-{number}"
    report = Round(cluster, journals, figures.seed, number).run()
    figures.add(report)
    if not report.problems:
        shutil.rmtree(journals)
    if not quiet:
        acked = report.counts.get("acknowledged", 0)
        print(
            f"round {number}: {report.seconds:.1f} s, {report.ledgers} ledgers, {acked} acknowledged, "
            f"{report.counts.get('unknown', 0)} unknown; {', '.join(report.faults)}",
            flush=True,
        )
    for problem in report.problems[:PROBLEMS_KEPT]:
        print(f"  {problem}", flush=True)


def _page(figures: Figures, arguments: argparse.Namespace) -> str:
    count = arguments.zookeepers
    servers = "a ZooKeeper server" if count == 1 else f"{count} ZooKeeper servers"
    where = "each bookie in a network namespace" if arguments.networks else "all on one loopback"
    command = f"scripts/trial --rounds {figures.rounds} --seed {figures.seed}{' --secure' if figures.secure else ''}"
    head = (
        "# Trials on real processes\n\n"
        f"`{command}`, {time.strftime('%Y-%m-%d', time.gmtime())}: "
        f"{servers} and {BOOKIES} bookies as processes behind proxies that fail ({where}); writers, tails and "
        "recoverers as processes that are killed and stopped. Every history was checked by `tests/sim/history.py`.\n\n"
    )
    return head + figures.text()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/trial", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20, help="how many in all, those of the resumed file included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    parser.add_argument("--report", type=Path, metavar="PATH", help="write the report there as well")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the cluster's data go while it runs")
    parser.add_argument(
        "--networks",
        action=argparse.BooleanOptionalAction,
        default=networks_work(),
        help="a network namespace for each bookie, whose cable can be taken out [default: if possible]",
    )
    parser.add_argument("--zookeepers", type=int, choices=(1, 3), default=3, help="servers of the metadata store")
    parser.add_argument("--secure", action="store_true", help="bookies and clients of mode secure")
    parser.add_argument("--quiet", action="store_true", help="no line for each round")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
