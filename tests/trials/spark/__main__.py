# SPDX-License-Identifier: Apache-2.0
"""``scripts/spark-trial``: does the connector lose or double a row when everything around it fails?

Exit code 0 only if all rounds asked for were run, everything that they are about did happen, and no promise was broken.
With ``--resume FILE`` the figures so far are kept there after every block of rounds, and the next call goes on from
them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.spark import class_archive
from tests.trials.spark.rig import BlockReport, Rig
from tests.trials.spark.rounds.kinds import KINDS, Kind

PROBLEMS_KEPT = 20
"""Of one block: what is broken once is often broken for many rows."""
RIG_ROUNDS = 120
"""Then a new cluster and new drivers: it keeps the disk small, and nothing depends on what was before."""


@dataclass(slots=True)
class Figures:
    """Sums over the rounds of all runs of one seed, by kind."""

    seed: int
    rounds: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, kind: str, report: BlockReport) -> None:
        self.rounds[kind] += report.rounds
        self.seconds[kind] += round(report.seconds, 1)
        self.counts.setdefault(kind, Counter()).update(report.counts)
        for number, problem in report.problems[:PROBLEMS_KEPT]:
            self.problems.append(f"{kind} {number}: {problem}\n  again: {again(self.seed, kind, number)}")

    @classmethod
    def load(cls, path: Path, seed: int) -> Figures:
        """Those of the file, or new ones. ValueError if the file is of another seed."""
        if not path.exists():
            return cls(seed)
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["seed"] != seed:
            raise ValueError(f"{path} is of seed {said['seed']}: give --seed {said['seed']} or another file")
        counts = {kind: Counter(each) for kind, each in said["counts"].items()}
        rest = {name: Counter(said[name]) for name in ("rounds", "seconds")}
        return cls(**{**said, **rest, "counts": counts})

    def save(self, path: Path) -> None:
        new = path.with_name(path.name + ".new")
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        new.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)

    def missing(self, wanted: dict[str, int]) -> list[str]:
        """What a kind in its full number is about and never happened: of that the trial says nothing."""
        return [
            f"{kind.name}: {what}"
            for kind in KINDS
            if wanted.get(kind.name, 0) >= kind.long
            for what in kind.wanted
            if not self.counts.get(kind.name, Counter())[what]
        ]

    def passed(self, wanted: dict[str, int]) -> bool:
        """All rounds were run, and nothing is wrong."""
        done = all(self.rounds[kind] >= count for kind, count in wanted.items())
        return done and bool(wanted) and not self.problems and not self.missing(wanted)

    def text(self, wanted: dict[str, int]) -> str:
        """The report, in Markdown."""
        lines = ["| kind | rounds | faults | broken promises | seconds a round |", "|---|---:|---:|---:|---:|"]
        for kind in KINDS:
            rounds = self.rounds[kind.name]
            if rounds:
                broken = sum(1 for problem in self.problems if problem.startswith(f"{kind.name} "))
                faults = self.counts[kind.name]["faults"]
                lines.append(
                    f"| {kind.title} | {rounds} | {faults} | **{broken}** | {self.seconds[kind.name] / rounds:.1f} |"
                )
        total = sum(self.rounds.values())
        lines.append(f"| all | {total} | | **{len(self.problems)}** | {sum(self.seconds.values()):.0f} s in all |")
        for kind in KINDS:
            counts = self.counts.get(kind.name)
            if counts:
                lines += ["", f"{kind.title}: " + ", ".join(f"{what} {n:,}" for what, n in sorted(counts.items()))]
        lines += ["", *(f"- {problem}" for problem in self.problems)]
        lines += [f"- NEVER: {what}" for what in self.missing(wanted)]
        lines += [
            f"- NOT DONE: {kind}: {self.rounds[kind]} of {count}"
            for kind, count in wanted.items()
            if self.rounds[kind] < count
        ]
        return "\n".join(lines).rstrip() + "\n"


def again(seed: int, kind: str, number: int) -> str:
    """The command that repeats a round."""
    return f"scripts/spark-trial --seed {seed} --only {kind}:{number}"


class Trial:
    """Runs blocks of rounds until all are done or the time is over."""

    def __init__(self, figures: Figures, ask: argparse.Namespace, work: Path) -> None:
        self._figures, self._ask, self._work = figures, ask, work
        self._deadline = time.monotonic() + 60 * ask.minutes if ask.minutes else None
        self._rigs = 0

    def run(self, wanted: dict[str, int]) -> None:
        """Kind after kind, on a new cluster every so many rounds."""
        while self._next(wanted) is not None and not self._is_late:
            path = self._work / f"rig-{self._rigs}"
            self._rigs += 1
            problems = len(self._figures.problems)
            with Rig(path, self._figures.seed) as rig:
                ran = 0
                while ran < RIG_ROUNDS and (ahead := self._next(wanted)) is not None and not self._is_late:
                    ran += self.block(rig, *ahead)
            if len(self._figures.problems) == problems:
                shutil.rmtree(path, ignore_errors=True)
            else:
                print(f"spark-trial: logs are kept in {path}", file=sys.stderr)

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _next(self, wanted: dict[str, int]) -> tuple[Kind, int, int] | None:
        """Kind, first round and number of rounds of the block to run now."""
        for kind in KINDS:
            done, count = self._figures.rounds[kind.name], wanted.get(kind.name, 0)
            if done < count:
                return kind, done, min(kind.block - done % kind.block, count - done)
        return None

    def block(self, rig: Rig, kind: Kind, first: int, count: int) -> int:
        """Run these rounds and add their figures. What the trial itself cannot do is a problem too."""
        began = time.monotonic()
        try:
            report = kind.run(rig, first, count)
        except Exception as error:
            traceback.print_exc()
            report = BlockReport()
            report.broken(first, [f"the round could not be run: {type(error).__name__}: {error}"])
            rig.drivers.close()
            rig.spares.close()
        report.rounds = count
        report.seconds = time.monotonic() - began
        self._figures.add(kind.name, report)
        if self._ask.resume:
            self._figures.save(self._ask.resume)
        if not self._ask.quiet:
            counts = ", ".join(f"{what} {n}" for what, n in sorted(report.counts.items()))
            print(f"{kind.name} {first} to {first + count - 1}: {report.seconds:.1f} s; {counts}", flush=True)
        for number, problem in report.problems[:PROBLEMS_KEPT]:
            print(f"  {kind.name} {number}: {problem}", flush=True)
            print(f"  again: {again(self._figures.seed, kind.name, number)}", flush=True)
        return count


def rounds_wanted(kinds: Sequence[str], rounds: int | None) -> dict[str, int]:
    """How many rounds of each kind: those of the long form, or ``rounds`` in all, at least one each."""
    chosen = [kind for kind in KINDS if kind.name in kinds]
    total = sum(kind.long for kind in chosen)
    if rounds is None:
        return {kind.name: kind.long for kind in chosen}
    return {kind.name: max(1, kind.long * rounds // total) for kind in chosen}


def main() -> int:
    ask = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up then too
    try:
        figures = Figures.load(ask.resume, ask.seed) if ask.resume else Figures(ask.seed)
    except ValueError as error:
        print(f"spark-trial: {error}", file=sys.stderr)
        return 2
    if ask.work is not None:
        ask.work.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="spark-trial-", dir=ask.work))
    wanted = rounds_wanted(ask.kind or [kind.name for kind in KINDS], ask.rounds)
    class_archive.make()  # a hundred drivers are to start
    trial = Trial(figures, ask, work)
    try:
        if ask.only:
            return _only(trial, figures, ask, work)
        trial.run(wanted)
    except KeyboardInterrupt:
        print("spark-trial: interrupted", file=sys.stderr)
    if not figures.problems:
        shutil.rmtree(work, ignore_errors=True)
    print(figures.text(wanted))
    if ask.report:
        ask.report.write_text(_page(figures, wanted, ask), encoding="utf-8")
    return 0 if figures.passed(wanted) else 1


def _only(trial: Trial, figures: Figures, ask: argparse.Namespace, work: Path) -> int:
    """The block of one round, from its beginning."""
    name, _, number = ask.only.partition(":")
    kind = next(kind for kind in KINDS if kind.name == name)
    first = int(number) // kind.block * kind.block
    with Rig(work / "rig", figures.seed) as rig:
        trial.block(rig, kind, first, kind.block)
    if not figures.problems:
        shutil.rmtree(work, ignore_errors=True)
    else:
        print(f"spark-trial: logs are kept in {work}", file=sys.stderr)
    return 1 if figures.problems else 0


def _page(figures: Figures, wanted: dict[str, int], ask: argparse.Namespace) -> str:
    options = f"--seed {figures.seed}" + (f" --rounds {ask.rounds}" if ask.rounds else "")
    return (
        "# Exactly-once trials of the Spark connector\n\n"
        f"`scripts/spark-trial {options}`, {time.strftime('%Y-%m-%d', time.gmtime())}: a real ZooKeeper, five bookies "
        "as processes behind proxies, real Spark. Every row has an id of its own; after each round the log is read by "
        "another client and compared with what was written, then again after a vacuum of everything that the log does "
        "not list.\n\n" + figures.text(wanted)
    )


def _arguments() -> argparse.Namespace:
    names = [kind.name for kind in KINDS]
    parser = argparse.ArgumentParser(prog="scripts/spark-trial", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, help="how many in all kinds, in proportion [default: the long form]")
    parser.add_argument("--minutes", type=float, help="begin no new block of rounds after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=names, help="only this kind; may be given several times")
    parser.add_argument("--only", metavar="KIND:ROUND", help="repeat the block of this round")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report there as well")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the cluster's data go while it runs")
    parser.add_argument("--quiet", action="store_true", help="no line for each block of rounds")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
