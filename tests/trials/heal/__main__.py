# SPDX-License-Identifier: Apache-2.0
"""``scripts/heal-trial``: does a cluster of six bookies heal itself whatever happens to it, and lose nothing?

Bookies are killed, frozen, cut off, wiped, replaced, filled, corrupted, drained, restarted one by one, and their clocks
jump, under writers, readers, recoverers and a log. After each turn everything has to be healed, and a part of all
copies is read from each bookie by itself; at the end all of them. The second half runs on four bookies of ours and two
of Apache's. Exit code 0 only if it ran as long as asked for and no promise was broken.

With ``--secure`` bookies and clients are of mode secure, with certificates, roles and ACLs in ZooKeeper, where they
show a password. Beside Apache's bookies, which want certificates then, the mode is mixed and ZooKeeper open.

SIGTERM has it come to the end at once, with all checks. With ``--resume FILE`` the figures are kept there after every
cluster, and the next call goes on from them.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.seeded_figures import SeededFigures
from tests.trials.heal.schedule import BY_NAME, KINDS
from tests.trials.heal.serve import BREAKS
from tests.trials.heal.stage import Stage, StageReport
from tests.trials.kit.network import enter_own_network, networks_work

APACHES = 2
PROBLEMS_KEPT = 30


@dataclass(slots=True)
class Figures(SeededFigures):
    """Sums over all clusters of one seed. ``parts``: seconds of ``ours`` and of ``mixed``."""

    clusters: int = 0
    seconds: float = 0.0
    turns: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    healed_s: list[float] = field(default_factory=list)
    underreplicated: int = 0
    in_recovery: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, part: str, report: StageReport) -> None:
        self.clusters += 1
        self.parts[part] += round(report.seconds)
        self.seconds += report.seconds
        self.turns += report.turns
        self.acts.update(report.acts)
        self.counts.update(report.counts)
        self.errors.update(report.errors)
        self.healed_s += report.healed_s
        self.underreplicated += report.underreplicated
        self.in_recovery += report.in_recovery
        self.problems += [f"cluster {self.clusters} ({part}): {each}" for each in report.problems[:PROBLEMS_KEPT]]

    @property
    def lost(self) -> int:
        return sum(": LOST:" in problem for problem in self.problems)

    @property
    def passed(self) -> bool:
        """Something ran, something was acknowledged and read back, and nothing is wrong."""
        read = self.counts["copies checked at last"]
        return self.turns > 0 and self.counts["acknowledged"] > 0 and read > 0 and not self.problems

    def text(self) -> str:
        """The report, in Markdown."""
        ordered = sorted(self.healed_s) or [0.0]
        slowest = [ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.9, 1)]
        counts = self.counts
        rows: list[tuple[str, int | str]] = [
            ("security", "secure, with Apache's bookies mixed" if self.secure else "open"),
            ("minutes", f"{self.seconds / 60:.1f}"),
            ("of them with two of Apache's bookies", f"{self.parts['mixed'] / 60:.1f}"),
            ("turns", self.turns),
            ("disturbances", sum(self.acts.values())),
            ("ledgers written", counts["ledgers"]),
            ("entries acknowledged", counts["acknowledged"]),
            ("entries of the log acknowledged", counts["log entries acknowledged"]),
            ("entries read and compared meanwhile", counts["read"]),
            ("copies of entries read from their bookies after turns", counts["copies checked"]),
            ("the same at the end, of every ledger", counts["copies checked at last"]),
            ("healed after a turn, median / 90 % / slowest", " / ".join(f"{each:.1f}" for each in slowest) + " s"),
            ("**entries or ledgers lost**", self.lost),
            ("**under-replicated at the end**", self.underreplicated),
            ("**stuck in recovery at the end**", self.in_recovery),
            ("**broken promises**", len(self.problems)),
        ]
        lines = ["| | |", "|---|---:|", *(f"| {name} | {_number(value)} |" for name, value in rows), ""]
        lines += ["| disturbance | times |", "|---|---:|", *_rows(sorted(self.acts.items())), ""]
        others = sorted((name, n) for name, n in counts.items() if name not in _SHOWN)
        lines += ["| counted | times |", "|---|---:|", *_rows(others), ""]
        lines += ["| error that a client was given | times |", "|---|---:|", *_rows(self.errors.most_common(25)), ""]
        return "\n".join([*lines, *(f"- {problem}" for problem in self.problems)]).rstrip() + "\n"


_SHOWN = ("ledgers", "acknowledged", "log entries acknowledged", "read", "copies checked", "copies checked at last")


def _rows(counted: Sequence[tuple[str, int]]) -> list[str]:
    return [f"| {name} | {count:,} |" for name, count in counted]


def _number(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def main() -> int:
    arguments = _arguments()
    if arguments.isolated:
        enter_own_network("tests.trials.heal", mounts=True)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        figures = Figures.load(arguments.resume, arguments.seed, secure=arguments.secure)
    except ValueError as error:
        print(f"heal-trial: {error}", file=sys.stderr)
        return 2
    wanted_s = arguments.minutes * 60
    while not over.is_set() and not figures.problems and _is_wanted(figures, arguments, wanted_s):
        _one_cluster(figures, arguments, wanted_s, over)
        if arguments.resume:
            figures.save(arguments.resume)
    print(figures.text())
    if arguments.report:
        arguments.report.write_text(_page(figures, arguments), encoding="utf-8")
        figures.save(arguments.report.with_suffix(".json"))
    return 0 if figures.passed and (arguments.kinds or figures.seconds >= wanted_s) else 1


def _is_wanted(figures: Figures, arguments: argparse.Namespace, wanted_s: float) -> bool:
    return figures.clusters == 0 if arguments.kinds else figures.seconds < wanted_s


def _one_cluster(figures: Figures, arguments: argparse.Namespace, wanted_s: float, over: threading.Event) -> None:
    """A cluster's life: until the half or the whole of the time is over. Its data are kept only if something is
    wrong."""
    mixed = arguments.apache == "always" or (arguments.apache == "half" and figures.seconds >= 0.45 * wanted_s)
    ends_s = wanted_s if mixed or arguments.apache == "never" else wanted_s / 2
    left_s = min(ends_s - figures.seconds, arguments.cluster_minutes * 60)
    path = Path(tempfile.mkdtemp(prefix="heal-", dir=arguments.work))
    stage = Stage(
        path,
        f"{figures.seed}/{figures.clusters}",
        apache=APACHES if mixed else 0,
        isolated=arguments.isolated,
        kinds=[BY_NAME[name] for name in arguments.kinds],
        broken=arguments.broken,
        secure=arguments.secure,
        tell=lambda text: print(text, flush=True),
    )
    deadline = float("-inf") if arguments.kinds else time.monotonic() + left_s
    report = stage.run(deadline, over)
    figures.add("mixed" if mixed else "ours", report)
    for problem in report.problems:
        print(f"  {problem}", flush=True)
    if report.problems:
        (path / "problems.txt").write_text("\n".join(report.problems) + "\n", encoding="utf-8")
        print(f"heal-trial: journals, logs and data are kept in {path}", file=sys.stderr)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _page(figures: Figures, arguments: argparse.Namespace) -> str:
    where = (
        "each bookie in a network namespace, two of them on a disk of 256 MiB"
        if arguments.isolated
        else "all on one loopback, nothing cut off and no disk filled"
    )
    return (
        "# A cluster that heals itself\n\n"
        f"`scripts/heal-trial --minutes {figures.seconds / 60:.0f} --seed {figures.seed}"
        f"{' --secure' if figures.secure else ''}`, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}: a ZooKeeper server and six bookies with auto-recovery as "
        f"processes ({where}), in the second half two of them Apache's; writers, readers, recoverers and the leader of "
        "a log as processes, some of which are killed. `tests/trials/heal` says what each disturbance does and what "
        "must follow. After each turn everything had to be healed within two minutes; copies were read from each "
        "bookie by itself.\n\n" + figures.text()
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/heal-trial", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long in all, the resumed file included")
    parser.add_argument("--cluster-minutes", type=float, default=30.0, help="a new cluster after so long [default: 30]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    parser.add_argument("--report", type=Path, metavar="PATH", help="write the page there, and the figures beside it")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the cluster's data go while it runs")
    parser.add_argument(
        "--secure",
        action="store_true",
        help="bookies and clients of mode secure, and ACLs in ZooKeeper; beside Apache's mode mixed, and no ACLs",
    )
    parser.add_argument("--apache", choices=("never", "half", "always"), default="half")
    parser.add_argument(
        "--kinds",
        nargs="*",
        default=[],
        metavar="KIND",
        choices=[kind.name for kind in KINDS],
        help="these disturbances, one after the other, and no others",
    )
    parser.add_argument("--break", dest="broken", choices=sorted(BREAKS), default="", help="with this defect put in")
    parser.add_argument(
        "--isolated",
        action=argparse.BooleanOptionalAction,
        default=networks_work(),
        help="a network for each bookie, small disks; else nothing is cut off or filled [default: if possible]",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
