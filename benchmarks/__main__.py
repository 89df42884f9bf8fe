# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks [GROUP…] [--runs N] [--scale X] [--json]``: one table, ours beside the machine's own limit.

A cluster of ZooKeeper and three bookies is started for it in ``--data`` and ends with it; the group ``storage`` needs
none and has a table of its own. The exit code is 1 when a median misses what is wanted of it, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import interop
from benchmarks.figures import Figure, number
from benchmarks.ledgers import append_group, memory_group, read_group
from benchmarks.recovery import recovery_group, takeover_group
from benchmarks.spark import group as spark
from benchmarks.storage import group as storage
from benchmarks.storage.figures import StorageFigure
from benchmarks.storage.figures import table as storage_table
from benchmarks.storage.results import keep
from bk_cli.cluster import LocalCluster
from bk_core.errors import BookKeeperError, InvalidArgumentError

Group = Callable[[LocalCluster, int, float], list[Figure]]
GROUPS: dict[str, Group] = {
    "append": append_group,
    "read": read_group,
    "recovery": recovery_group,
    "takeover": takeover_group,
    "memory": memory_group,
}
BOOKIES = 3
TABLE_WIDTH = 150
PEER_HELP = (
    "raw: the machine's own limit, in the same run; kafka: beside it, in the group spark, spark-sql-kafka; "
    "apache: in the group interop, which needs it and is measured only when it is named"
)
STORAGE, SPARK, INTEROP = "storage", "spark", "interop"
NAMES = (*GROUPS, SPARK, STORAGE)
PARTS: dict[str, Iterable[str]] = {STORAGE: storage.PARTS, SPARK: spark.PARTS, INTEROP: interop.PARTS}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of: {', '.join(NAMES)} (all)")
    parser.add_argument("--peer", choices=["raw", "kafka", "apache"], default="raw", help=PEER_HELP)
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each figure, after one to warm up")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual amount of data")
    parser.add_argument("--data", "--dir", metavar="DIR", help="directory on the disk to be measured (.cache/bench)")
    parser.add_argument("--json", action="store_true", help="one object a line instead of the table")
    parts = "; ".join(f"of the group {name}: {', '.join(parts)}" for name, parts in PARTS.items())
    parser.add_argument("--only", metavar="PART,…", help=parts)
    parser.add_argument("--keep", type=Path, metavar="PATH", help="put the storage figures into PATH.json and PATH.md")
    options = parser.parse_args()
    unknown = [name for name in options.groups if name not in (*NAMES, INTEROP)]
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join((*NAMES, INTEROP))}")
    if (options.peer == "apache") != (options.groups == [INTEROP]):
        parser.error("Apache's bookies are the peer of the group interop, and of it alone: interop --peer apache")
    if options.only and options.groups not in ([STORAGE], [SPARK], [INTEROP]):
        parser.error("--only chooses parts of the group storage, spark or interop: scripts/bench storage --only …")
    if options.runs < 1 or options.scale <= 0:
        parser.error("--runs must be at least 1, --scale above 0")
    return options


def main() -> int:
    options, console = arguments(), Console(stderr=True)
    folder = folder_of(options.data)
    figures: list[Figure] = []
    in_parts = {STORAGE: storage_parts, SPARK: spark_parts, INTEROP: interop_parts}
    measured = (
        in_parts[name](folder, options, console) if name in in_parts else cluster_group(name, folder, options, console)
        for name in options.groups or NAMES
    )
    try:
        for found in itertools.chain.from_iterable(measured):
            figures += found
            if options.json:
                for figure in found:
                    print(figure.as_json(), flush=True)
    except BookKeeperError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 2 if isinstance(error, InvalidArgumentError) else 1
    except KeyboardInterrupt:
        console.print("interrupted; what was written is removed")
        return 130
    if not options.json:
        show(figures)
    return 0 if all(figure.meets is not False for figure in figures) else 1


def cluster_group(name: str, folder: Path, options: argparse.Namespace, console: Console) -> Iterator[Sequence[Figure]]:
    """The figures of a group that a cluster is started for."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as path:
        console.print(f"[dim]{name} …[/dim]")
        with LocalCluster(Path(path), bookies=BOOKIES, port=0, zookeeper_port=0) as cluster:
            yield GROUPS[name](cluster, options.runs, options.scale)


def storage_parts(folder: Path, options: argparse.Namespace, console: Console) -> Iterator[Sequence[Figure]]:
    """The figures of each part of the group storage; kept, where that is asked for, as soon as they are there."""
    names = storage.chosen(options.only)
    room = max(storage.PARTS[name].needed(options.scale) for name in names)
    console.print(f"{STORAGE}: {', '.join(names)}; up to {room / 1e9:.0f} GB of disk in {folder}, removed at the end …")
    for name, found in storage.measure(names, folder, options.runs, options.scale):
        console.print(f"[dim]{name} done[/dim]")
        if options.keep:
            keep(options.keep, found, folder)
        yield found


def spark_parts(folder: Path, options: argparse.Namespace, console: Console) -> Iterator[Sequence[Figure]]:
    """The figures of each part of the group spark, each with a cluster and a Spark of its own."""
    names = spark.chosen(options.only, options.peer)
    console.print(f"{SPARK}: {', '.join(names)} …")
    for name, found in spark.measure(names, folder, options.runs, options.scale):
        console.print(f"[dim]{name} done[/dim]")
        yield found


def interop_parts(folder: Path, options: argparse.Namespace, console: Console) -> Iterator[Sequence[Figure]]:
    """The figures of each part of the group interop."""
    names = tuple(options.only.split(",")) if options.only else interop.PARTS
    unknown = [name for name in names if name not in interop.PARTS]
    if unknown:
        raise InvalidArgumentError("no such part of the group interop", value=", ".join(unknown))
    console.print(f"{INTEROP}: {', '.join(names)} …")
    for name, found in interop.measure(names, folder, options.runs, options.scale):
        console.print(f"[dim]{name} done[/dim]")
        yield found


def show(figures: Sequence[Figure]) -> None:
    """A table for the cluster's figures and one for the storage's, and what each says."""
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    of_storage = [figure for figure in figures if isinstance(figure, StorageFigure)]
    others = [figure for figure in figures if not isinstance(figure, StorageFigure)]
    if others:
        console.print(table(others))
        Console().print(notes(others), markup=False)
    if of_storage:
        console.print(storage_table(of_storage))
        Console().print(notes(of_storage), markup=False)


def folder_of(chosen: str | None) -> Path:
    """Where the bookies' data goes: a real disk, not what may be a temporary file system in memory."""
    folder = Path(chosen or ".cache/bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def table(figures: Sequence[Figure]) -> Table:
    """Medians and worst runs beside what is wanted and the peer."""
    made = Table(title="client and three bookies on this machine", title_justify="left")
    for column in ("figure", "lane", "unit"):
        made.add_column(column, no_wrap=True)
    for column in ("median", "worst", "wanted", "peer", "ratio", "worst ratio"):
        made.add_column(column, no_wrap=True, justify="right")
    for f in figures:
        peer = "" if f.peer_median is None else f"{number(f.peer_median)} {f.peer}"
        ratios = ["" if ratio is None else f"{ratio:.2f}" for ratio in (f.ratio, f.worst_ratio)]
        made.add_row(f.name, f.lane, f.unit, number(f.median), number(f.worst), f.wish, peer, *ratios)
    return made


def notes(figures: Sequence[Figure]) -> str:
    """What each side does, once for all figures that share it."""
    shared: dict[str, list[str]] = {}
    for figure in figures:
        shared.setdefault(figure.note, []).append(figure.name)
    return "\n".join(f"{', '.join(names)}: {note}" for note, names in shared.items() if note)


if __name__ == "__main__":
    sys.exit(main())
