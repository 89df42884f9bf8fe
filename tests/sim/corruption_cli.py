# SPDX-License-Identifier: Apache-2.0
"""``scripts/corrupt``: every way to damage a small data directory, one after the other, and what became of each.

With ``--resume FILE`` the figures so far are kept there, and the next call goes on from them. Exit code 0 only if
everything asked for was tried and no promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path

from tests.sim.corruption_matrix import KINDS, Figures, run

CHUNK = 4096


def main(arguments: list[str] | None = None) -> int:
    ask = _parser().parse_args(arguments)
    state = load(ask.resume)
    names = [name for name in KINDS if not ask.kinds or name in ask.kinds]
    with ProcessPoolExecutor(ask.jobs) as pool:
        for name in names:
            figures = state.setdefault(name, Figures(name, KINDS[name].total()))
            starts = range(figures.done, figures.total, CHUNK)
            for part in pool.map(run, [name] * len(starts), starts, [CHUNK] * len(starts)):
                figures.add(part)
                save(ask.resume, state)
            print(f"  {name}: {figures.done:,}, {len(figures.problems)} problems", file=sys.stderr, flush=True)
    text = report(list(state.values()))
    print(text)
    if ask.report:
        head = f"# Corruption matrix\n\n`scripts/corrupt`, {time.strftime('%Y-%m-%d', time.gmtime())}.\n\n"
        ask.report.write_text(head + text, encoding="utf-8")
    clean = all(one.done == one.total and not one.problems for one in state.values())
    return 0 if state and clean else 1


def report(done: list[Figures]) -> str:
    """Tables in Markdown: what was tried, and what became of it."""
    lines = ["| damage | cases | problems | s |", "|---|---:|---:|---:|"]
    lines += [f"| {one.name} | {one.done:,} | {len(one.problems)} | {one.seconds:.0f} |" for one in done]
    lines += ["", "| damage | where: what a start makes of it | cases |", "|---|---|---:|"]
    lines += [f"| {one.name} | {what} | {n:,} |" for one in done for what, n in sorted(one.outcomes.items())]
    lines += ["", *(f"- {problem}" for one in done for problem in one.problems)]
    return "\n".join(lines).rstrip() + "\n"


def load(path: Path | None) -> dict[str, Figures]:
    if path is None or not path.exists():
        return {}
    said = json.loads(path.read_text(encoding="utf-8"))
    return {name: Figures(**{**one, "outcomes": Counter(one["outcomes"])}) for name, one in said.items()}


def _fields(one: Figures) -> dict[str, object]:
    return {each.name: getattr(one, each.name) for each in fields(one)}


def save(path: Path | None, state: dict[str, Figures]) -> None:
    if path is not None:
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps({name: _fields(one) for name, one in state.items()}), encoding="utf-8")
        new.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/corrupt", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="only these kinds of damage")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables there as well")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
