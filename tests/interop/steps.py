# SPDX-License-Identifier: Apache-2.0
"""Runs a trial as a row of steps. Each is printed with its time and its finding. If a step fails, the exit code says
so."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Step:
    """A step: what was done, and what was found."""

    what: str
    found: str = ""
    seconds: float = 0.0
    failed: bool = False


class Steps:
    """The steps so far."""

    def __init__(self) -> None:
        self.done: list[Step] = []

    @contextmanager
    def step(self, what: str, *, go_on: bool = False) -> Iterator[Step]:
        """Run a step, whose block sets ``found``. An exception fails the step. With ``go_on`` the next steps still
        run."""
        step, began = Step(what), time.monotonic()
        self.done.append(step)
        try:
            yield step
        except Exception as error:
            step.failed, step.found = True, f"{type(error).__name__}: {error}"
            traceback.print_exc()
            if not go_on:
                raise
        finally:
            step.seconds = time.monotonic() - began
            verdict = "FAIL" if step.failed else "ok  "
            print(f"{verdict} {step.seconds:6.1f} s  {step.what}: {step.found}", flush=True)

    @property
    def passed(self) -> bool:
        return bool(self.done) and not any(step.failed for step in self.done)

    def table(self) -> str:
        """Return the steps as a table of Markdown."""
        lines = ["| step | s | found |", "|---|---:|---|"]
        for step in self.done:
            found = " ".join(step.found.split()).replace("|", "/")[:300]
            lines.append(f"| {step.what} | {step.seconds:.1f} | {'**FAILED** ' if step.failed else ''}{found} |")
        return "\n".join(lines)


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every trial. A trial may add its own."""
    made = argparse.ArgumentParser(prog=name, description=about)
    made.set_defaults(name=name)
    made.add_argument("--report", type=Path, metavar="PATH", help="write the table there as well")
    made.add_argument("--work", type=Path, metavar="DIR", help="where data and logs go while it runs")
    return made


def run(ask: argparse.Namespace, trial: Callable[[Steps, Path], None]) -> int:
    """Run a trial in a folder of its own, which stays only if the trial failed. ``ask`` is the result of
    :func:`parser`. Return the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM cleans up too
    if ask.work is not None:
        ask.work.mkdir(parents=True, exist_ok=True)
    work, steps, ended = Path(tempfile.mkdtemp(prefix="trial-", dir=ask.work)), Steps(), False
    try:
        trial(steps, work)
        ended = True
    except Exception:
        if not steps.done or steps.passed:  # otherwise the failed step has printed it
            traceback.print_exc()
    except KeyboardInterrupt:
        print(f"{ask.name}: interrupted", file=sys.stderr)
    passed = ended and steps.passed
    if passed:
        shutil.rmtree(work, ignore_errors=True)
    else:
        print(f"{ask.name}: data and logs are kept in {work}", file=sys.stderr)
    if ask.report:
        ask.report.write_text(steps.table() + "\n", encoding="utf-8")
    failed = sum(step.failed for step in steps.done)
    print(
        f"{ask.name}: {len(steps.done) - failed} of {len(steps.done)} steps passed"
        + ("" if ended else ", not all were run")
    )
    return 0 if passed else 1
