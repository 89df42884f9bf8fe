# SPDX-License-Identifier: Apache-2.0
"""``scripts/zookeeper-trial``: ZooKeeper is restarted again and again under a client and three bookies.

Exit code 0 only if restarts were made and no call failed that had half of its deadline left when the server was back.
With ``--resume FILE`` the figures so far are kept there after every restart, and the next call goes on from them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.trials.zookeeper.rounds import Calls, Round, RoundReport, World

CLUSTER_RESTARTS = 50
"""Then a new cluster: nothing is deleted from one in between."""
PROBLEMS_KEPT = 20


@dataclass(slots=True)
class Figures:
    """Sums over the restarts of all runs of one seed."""

    seed: int
    restarts: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    calls_s: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, seed: int) -> Figures:
        """Those of the file, or new ones. ValueError if the file is of another seed."""
        if not path.exists():
            return cls(seed)
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["seed"] != seed:
            raise ValueError(f"{path} is of seed {said['seed']}: give --seed {said['seed']} or another file")
        return cls(**{**said, "counts": Counter(said["counts"])})

    def save(self, path: Path) -> None:
        new = path.with_name(path.name + ".new")
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        new.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)

    def add(self, report: RoundReport) -> None:
        self.restarts += 1
        self.seconds += report.seconds
        self.counts.update(report.counts)
        for kind, seconds in report.calls_s.items():
            self.calls_s.setdefault(kind, []).extend(round(each, 3) for each in seconds)
        self.problems += [f"restart {report.number}: {problem}" for problem in report.problems[:PROBLEMS_KEPT]]

    @property
    def passed(self) -> bool:
        """Something was restarted, calls were made after it, and none failed that should not."""
        return self.restarts > 0 and bool(self.calls_s) and not self.problems

    def text(self) -> str:
        """The report, in Markdown."""
        lines = ["| | |", "|---|---:|", f"| restarts | {self.restarts} |"]
        lines += [f"| {what} | {n:,} |" for what, n in sorted(self.counts.items())]
        lines += [f"| **calls that failed though the server was back** | {len(self.problems)} |"]
        lines += [f"| time | {self.seconds:.0f} s, {self.seconds / max(self.restarts, 1):.1f} s a restart |", ""]
        lines += ["| call, s | number | median | 99 % | slowest |", "|---|---:|---:|---:|---:|"]
        lines += [_row(kind, sorted(seconds)) for kind, seconds in sorted(self.calls_s.items())]
        return "\n".join([*lines, "", *(f"- {problem}" for problem in self.problems)]).rstrip() + "\n"


def _row(kind: str, ordered: list[float]) -> str:
    median, high, slowest = (ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99, 1))
    return f"| {kind} | {len(ordered):,} | {median:.3f} | {high:.3f} | {slowest:.3f} |"


def run_restarts(figures: Figures, restarts: int, work: Path, tell: Callable[[RoundReport], None]) -> None:
    """Go on until so many are made; a new cluster now and then, and no more after a problem."""
    while figures.restarts < restarts and not figures.problems:
        path = work / f"cluster-{figures.restarts}"
        with World(path) as world, Calls(world) as calls:
            for _ in range(min(CLUSTER_RESTARTS, restarts - figures.restarts)):
                rng = random.Random(f"{figures.seed}/{figures.restarts}")
                report = Round(world, calls, rng, figures.restarts).run()
                figures.add(report)
                tell(report)
            figures.problems += calls.finish()
        if not figures.problems:
            shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    ask = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up then too
    try:
        figures = Figures.load(ask.resume, ask.seed) if ask.resume else Figures(ask.seed)
    except ValueError as error:
        print(f"zookeeper-trial: {error}", file=sys.stderr)
        return 2

    def tell(report: RoundReport) -> None:
        if ask.resume:
            figures.save(ask.resume)
        if not ask.quiet:
            print(f"restart {report.number}: {report.what}; {report.seconds:.1f} s", flush=True)
        for problem in report.problems[:PROBLEMS_KEPT]:
            print(f"  {problem}", flush=True)

    if ask.work is not None:
        ask.work.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="zookeeper-trial-", dir=ask.work))
    try:
        run_restarts(figures, ask.restarts, work, tell)
    except KeyboardInterrupt:
        print("zookeeper-trial: interrupted", file=sys.stderr)
    if figures.problems:
        print(f"zookeeper-trial: data and logs are kept in {work}", file=sys.stderr)
    else:
        shutil.rmtree(work, ignore_errors=True)
    print(figures.text())
    if ask.report:
        ask.report.write_text(_page(figures), encoding="utf-8")
    return 0 if figures.passed and figures.restarts >= ask.restarts else 1


def _page(figures: Figures) -> str:
    return (
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n# Restarts of ZooKeeper\n\n"
        f"`scripts/zookeeper-trial --restarts {figures.restarts} --seed {figures.seed}`, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}: a ZooKeeper server killed or stopped under a client and three "
        "bookies that are\nconnected, away for up to twelve seconds, and in some restarts accepting and mute for a "
        "while after it is back.\n\n" + figures.text()
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/zookeeper-trial", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--restarts", type=int, default=20, help="how many in all, those of the resumed file included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    parser.add_argument("--report", type=Path, metavar="PATH", help="write the report there as well")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the cluster's data go while it runs")
    parser.add_argument("--quiet", action="store_true", help="no line for each restart")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
