# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks [GROUP…] [--runs N] [--scale X] [--json]``: one table, ours beside the machine's own limit.

A cluster of ZooKeeper and three bookies is started for it in ``--data`` and ends with it. The exit code is 1 when a
median misses what is wanted of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure
from benchmarks.ledgers import append_group, memory_group, read_group
from benchmarks.recovery import recovery_group, takeover_group
from benchmarks.spark import spark_group
from bk_cli.cluster import LocalCluster

Group = Callable[[LocalCluster, int, float], list[Figure]]
GROUPS: dict[str, Group] = {
    "append": append_group,
    "read": read_group,
    "spark": spark_group,
    "recovery": recovery_group,
    "takeover": takeover_group,
    "memory": memory_group,
}
BOOKIES = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of: {', '.join(GROUPS)} (all)")
    parser.add_argument("--peer", choices=["raw"], default="raw", help="raw: the machine's own limit, in the same run")
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each figure, after one to warm up")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual amount of data")
    parser.add_argument("--data", help="directory for the bookies' data (.cache/bench)")
    parser.add_argument("--json", action="store_true", help="one object a line instead of the table")
    options = parser.parse_args()
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    console = Console(stderr=True)
    figures: list[Figure] = []
    for name in options.groups or GROUPS:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=folder_of(options.data)) as folder:
            console.print(f"[dim]{name} …[/dim]")
            with LocalCluster(Path(folder), bookies=BOOKIES, port=0, zookeeper_port=0) as cluster:
                found = GROUPS[name](cluster, options.runs, options.scale)
        figures += found
        if options.json:
            for figure in found:
                print(figure.as_json(), flush=True)
    if not options.json:
        Console(width=None if sys.stdout.isatty() else 120).print(table(figures))
        Console().print(notes(figures))
    return 0 if all(figure.meets is not False for figure in figures) else 1


def folder_of(chosen: str | None) -> Path:
    """Where the bookies' data goes: a real disk, not what may be a temporary file system in memory."""
    folder = Path(chosen or ".cache/bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def table(figures: list[Figure]) -> Table:
    """Medians and worst runs beside what is wanted and the peer."""
    made = Table(title="client and three bookies on this machine", title_justify="left")
    for column in ("figure", "lane", "unit"):
        made.add_column(column, no_wrap=True)
    for column in ("median", "worst", "wanted", "peer", "ratio"):
        made.add_column(column, no_wrap=True, justify="right")
    for f in figures:
        wanted = (
            "" if f.wanted is None else f"{'≤' if f.less_is_better else '≥'} {f.wanted:g} {'✓' if f.meets else '✗'}"
        )
        peer = "" if f.peer_median is None else f"{f.peer_median:.3g} {f.peer}"
        ratio = "" if f.ratio is None else f"{f.ratio:.2f}"
        made.add_row(f.name, f.lane, f.unit, f"{f.median:.3g}", f"{f.worst:.3g}", wanted, peer, ratio)
    return made


def notes(figures: list[Figure]) -> str:
    """What each side does, once for all figures that share it."""
    shared: dict[str, list[str]] = {}
    for figure in figures:
        shared.setdefault(figure.note, []).append(figure.name)
    return "\n".join(f"{', '.join(names)}: {note}" for note, names in shared.items() if note)


if __name__ == "__main__":
    sys.exit(main())
