# SPDX-License-Identifier: Apache-2.0
"""Runs the rounds of a long trial and keeps its figures. All of ``scripts/trial`` and ``scripts/prove`` use this
harness.

A :class:`Trial` names the next round, and makes *worlds*: clusters, pairs of bookies, pools of processes. A world runs
rounds. All random choices in a round follow from the seed and the round's number.

**States.** ``world starts → round → … → round → last checks → world ends``, again and again. A world serves
``world_rounds`` rounds, so that disks stay small and no round depends on what happened long before. The run ends when
the trial has no next round, when ``--minutes`` are over (of all runs together), when ``WORLDS_KEPT`` worlds met a
problem, or at SIGTERM or SIGINT. After the first signal the current round and the last checks are finished. The second
signal ends everything at once.

**Failure cases.** A broken promise, a round that raises and a world that does not start are problems. A problem ends
its world without the last checks, and the folder of the world is kept. Other folders are removed. The report names each
problem with the command that repeats its round. The exit code is 0 only if all requested rounds ran without a problem
and everything in ``wanted`` happened: a trial in which nothing was acknowledged proves nothing.

**Resuming.** With ``--resume FILE`` the figures are written to FILE after every round, as one JSON object. ``of`` is
the command with its seed and the options that change what a round is; the other members are the fields of
:class:`Figures`. The file is replaced, never changed, so ``kill -9`` loses one round at most. The next call begins with
the round after the last one. A file of another trial, seed or option is refused (exit code 2).
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from tests.trials.kit.network import enter_own_network, networks_work

PROBLEMS_KEPT = 20
"""The number of problems of one round that are kept. A defect often breaks many entries at once."""
WORLDS_KEPT = 5


@dataclass(slots=True)
class Figures:
    """The results of one round, or the sums over all rounds. ``tables`` has counters by heading, and ``times_s`` lists
    of durations by name. ``problems`` is empty if every promise was kept. ``note`` describes one round only."""

    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    tables: dict[str, Counter[str]] = field(default_factory=dict)
    times_s: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, other: Figures) -> None:
        self.rounds += other.rounds
        self.seconds += other.seconds
        self.counts.update(other.counts)
        for heading, counted in other.tables.items():
            self.table(heading).update(counted)
        for name, seconds in other.times_s.items():
            self.times_s.setdefault(name, []).extend(round(each, 3) for each in seconds)
        self.problems += other.problems

    def table(self, heading: str) -> Counter[str]:
        """Return the counter with this heading. It is made if it is missing."""
        return self.tables.setdefault(heading, Counter())

    def text(self, unit: str) -> str:
        """Return the report in Markdown."""
        counts = {f"{unit}s": self.rounds, **self.counts, "**broken promises**": len(self.problems)}
        lines = ["| | |", "|---|---:|", *_rows(counts)]
        lines += [f"| time | {self.seconds:.0f} s, {self.seconds / max(self.rounds, 1):.1f} s a {unit} |"]
        for heading, counted in self.tables.items():
            lines += ["", f"| {heading} | times |", "|---|---:|", *_rows(dict(counted.most_common()))]
        if self.times_s:
            lines += ["", "| s | number | median | 99 % | slowest |", "|---|---:|---:|---:|---:|"]
            lines += [_times_row(name, sorted(seconds)) for name, seconds in sorted(self.times_s.items())]
        return "\n".join([*lines, "", *(f"- {problem}" for problem in self.problems)]).rstrip() + "\n"

    def save(self, path: Path, of: str) -> None:
        new = path.with_name(path.name + ".new")
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        new.write_text(json.dumps({"of": of, **values}, indent=1) + "\n", encoding="utf-8")
        new.replace(path)

    @classmethod
    def load(cls, path: Path | None, of: str) -> Figures:
        """Return the figures in the file, or new ones without a file. Raises ValueError if the file is of another
        run."""
        if path is None or not path.exists():
            return cls()
        said = json.loads(path.read_text(encoding="utf-8"))
        if (found := said.pop("of", "something else")) != of:
            raise ValueError(f"{path} is of {found}, not of {of}: give another file")
        said["counts"] = Counter(said["counts"])
        said["tables"] = {heading: Counter(counted) for heading, counted in said["tables"].items()}
        return cls(**said)


def _rows(counted: Mapping[str, int]) -> list[str]:
    return [f"| {name} | {count:,} |" for name, count in counted.items()]


def _times_row(name: str, ordered: Sequence[float]) -> str:
    shown = (f"{ordered[int(part * (len(ordered) - 1))]:.2f}" for part in (0.5, 0.99, 1))
    return f"| {name} | {len(ordered):,} | {' | '.join(shown)} |"


class World(Protocol):
    """The processes and data on which rounds run."""

    def round(self, what: Any) -> Figures:
        """Run the round that :meth:`Trial.next` named."""

    def finish(self) -> Figures:
        """Make the last checks. It is called only if no round had a problem."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """A world of these functions. By default it makes no last checks."""

    round: Callable[[Any], Figures]
    finish: Callable[[], Figures] = Figures


class Trial:
    """A kind of rounds. A subclass sets the texts, and overrides what differs."""

    name = ""
    about = ""
    """One sentence that says what the trial does and what must hold."""
    unit = "round"
    rounds: int | None = 20
    """The number of rounds if neither ``--rounds`` nor ``--minutes`` is given."""
    minutes: float | None = None
    world_rounds = 100
    isolates = False
    """Whether the trial's processes may have network namespaces of their own."""
    wanted: Sequence[str] = ()
    """The counts that must not be zero."""

    def __init__(self, ask: argparse.Namespace) -> None:
        self.ask = ask

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options of this trial to those that every trial has."""

    @property
    def options(self) -> str:
        """The options on the command line that change what a round is, with a space before each."""
        return " --secure" if getattr(self.ask, "secure", False) else ""

    def next(self, figures: Figures) -> Any:
        """Return the round to run next, or None. ``figures`` are the sums so far."""
        return figures.rounds if self.ask.rounds is None or figures.rounds < self.ask.rounds else None

    def only(self, words: Sequence[str]) -> list[Any]:
        """Return the rounds that the words after ``--only`` name."""
        return [int(word) for word in words]

    def again(self, what: Any) -> str:
        """Return the words after the command that repeat a round."""
        return f"--only {what}"

    def world(self, path: Path, figures: Figures) -> AbstractContextManager[World]:
        raise NotImplementedError

    def failed(self, what: Any) -> Figures:
        """Return the figures of a round that raised an error."""
        return Figures(rounds=1)

    def missing(self, figures: Figures) -> list[str]:
        """Return what the trial is about and has not happened."""
        return [name for name in self.wanted if not figures.counts[name]]


def parser(command: str, trial: type[Trial]) -> argparse.ArgumentParser:
    """Return a parser for the options of every trial and those of this one."""
    made = argparse.ArgumentParser(prog=f"{command} {trial.name}", description=trial.about)
    made.add_argument("--rounds", type=int, help=f"{trial.unit}s in all, those of the resumed file included")
    made.add_argument("--minutes", type=float, help="how long in all, the resumed file included")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--only", nargs="+", metavar="WHAT", help=f"these {trial.unit}s alone, as a report names them")
    made.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    made.add_argument("--report", type=Path, metavar="PATH", help="write the report there as well")
    made.add_argument("--work", type=Path, metavar="DIR", help="where data and logs go meanwhile")
    if trial.isolates:
        made.add_argument(
            "--networks",
            action=argparse.BooleanOptionalAction,
            default=networks_work(),
            help="a network namespace for each bookie, whose cable can be taken out [default: if possible]",
        )
    trial.add_options(made)
    return made


class Interrupt:
    """A handler of signals. The first SIGTERM or SIGINT sets ``came``; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, *_: object) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


class Run:
    """One call of a trial."""

    def __init__(self, command: str, trial: Trial, interrupt: Interrupt) -> None:
        ask = trial.ask
        if ask.rounds is None and ask.minutes is None:
            ask.rounds, ask.minutes = trial.rounds, trial.minutes
        self._command, self._trial, self._ask, self._interrupt = command, trial, ask, interrupt
        self._again = f"{command} {trial.name} --seed {ask.seed}{trial.options}"
        self._of = self._again if ask.only is None else f"{self._again} --only {' '.join(ask.only)}"
        self._left = None if ask.only is None else trial.only(ask.only)
        self.figures = Figures.load(ask.resume, self._of)
        self._kept = 0
        self._since = time.monotonic()

    def go_on(self) -> None:
        """Run one world after the other, until the run ends."""
        if self._ask.work is not None:
            self._ask.work.mkdir(parents=True, exist_ok=True)
        while self._ahead() is not None and not self._interrupt.came and not self._is_late:
            if self._kept == WORLDS_KEPT:
                print(f"{self._trial.name}: {WORLDS_KEPT} worlds met a problem: no more are made", file=sys.stderr)
                return
            self._one_world()

    @property
    def passed(self) -> bool:
        is_done = self._ahead() is None or self._is_late
        ran = self.figures.rounds > 0 or self._left is not None
        return is_done and ran and not self.figures.problems and not self.missing

    @property
    def missing(self) -> list[str]:
        return [] if self._left is not None else self._trial.missing(self.figures)

    def text(self) -> str:
        return self.figures.text(self._trial.unit) + "".join(f"- NEVER: {each}\n" for each in self.missing)

    def page(self) -> str:
        figures, minutes = self.figures, self._ask.minutes
        length = f"--rounds {figures.rounds}" if minutes is None else f"--minutes {figures.seconds / 60:.0f}"
        run = f"`{self._command} {self._trial.name} {length} --seed {self._ask.seed}{self._trial.options}`"
        day = time.strftime("%Y-%m-%d", time.gmtime())
        return f"# Trial: {self._trial.name}\n\n{run}, {day}. {self._trial.about}\n\n{self.text()}"

    def _ahead(self) -> Any:
        if self._left is not None:
            return next(iter(self._left), None)
        return self._trial.next(self.figures)

    @property
    def _is_late(self) -> bool:
        minutes = self._ask.minutes
        return minutes is not None and self.figures.seconds + time.monotonic() - self._since >= 60 * minutes

    def _one_world(self) -> None:
        path = Path(tempfile.mkdtemp(prefix=f"{self._trial.name.replace(' ', '-')}-", dir=self._ask.work))
        problems, what, ran = len(self.figures.problems), None, 0
        try:
            with self._trial.world(path, self.figures) as world:
                while len(self.figures.problems) == problems and ran < self._trial.world_rounds:
                    what = self._ahead()
                    if what is None or self._interrupt.came or self._is_late:
                        break
                    self._add(what, world.round(what))
                    ran += 1
                what = None
                if len(self.figures.problems) == problems:
                    self._add("the end", world.finish())
        except Exception as error:
            traceback.print_exc()
            figures = Figures() if what is None else self._trial.failed(what)
            figures.problems.append(f"ENDED EARLY: {type(error).__name__}: {error}")
            self._add("the world" if what is None else what, figures)
        finally:
            if len(self.figures.problems) == problems:
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._kept += 1
                print(f"{self._trial.name}: data and logs are kept in {path}", file=sys.stderr)

    def _add(self, what: Any, figures: Figures) -> None:
        """Add the figures of a round to the sums, save the sums, and print the round."""
        now = time.monotonic()
        figures.seconds, self._since = now - self._since, now
        name = f"{self._trial.unit} {what}" if figures.rounds else f"{what}"
        again = self._trial.again(what) if figures.rounds else ""
        told = [f"{name}: {problem}" for problem in figures.problems[:PROBLEMS_KEPT]]
        if told and again:
            told[-1] += f"\n  again: {self._again} {again}"
        figures.problems = told
        if self._left and figures.rounds:
            self._left.pop(0)
        self.figures.add(figures)
        if self._ask.resume:
            self.figures.save(self._ask.resume, self._of)
        counts = ", ".join(f"{count:,} {each}" for each, count in figures.counts.items() if count)
        if figures.note or counts:
            print(f"{name}: {figures.seconds:.1f} s; {figures.note or counts}", flush=True)
        for problem in told:
            print(f"  {problem}", flush=True)


def run(command: str, trial: type[Trial], words: Sequence[str]) -> int:
    """Run a trial. ``words`` are its options. Return the exit code."""
    ask = parser(command, trial).parse_args(words)
    if trial.isolates and ask.networks:
        enter_own_network()
    try:
        running = Run(command, trial(ask), Interrupt())
    except ValueError as error:
        print(f"{trial.name}: {error}", file=sys.stderr)
        return 2
    try:
        running.go_on()
    except KeyboardInterrupt:
        print(f"{trial.name}: ended at once", file=sys.stderr)
    print(running.text())
    if ask.report:
        ask.report.write_text(running.page(), encoding="utf-8")
    return 0 if running.passed else 1
