# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks [GROUP…] [--peer PEER]… [--json]``: prints tables of our figures beside those of the peers.

All servers that a group needs are started for it in ``--data`` and end with it. The exit code is 1 if a median misses
its wanted value, and 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from benchmarks.groups.of_measurements import MeasurementGroup
from benchmarks.report import page, tables
from benchmarks.report.figures import Figure, Record
from benchmarks.report.results import Results
from benchmarks.report.tables import Conditions
from benchmarks.running import slow_sync
from benchmarks.running.settings import Settings
from benchmarks.spark import group as spark
from benchmarks.storage import group as storage
from benchmarks.storage.figures import COLUMNS as STORAGE_COLUMNS
from benchmarks.storage.figures import row as storage_row
from bk_core.errors import BookKeeperError, InvalidArgumentError
from bk_core.model import DIRECT, GRPC


class Group(Protocol):
    """A group of figures that are measured together."""

    def parts(self, peers: Collection[str]) -> list[str]:
        """Return the names of the parts that can be measured alone, if these peers are asked for."""
        ...

    def measure(
        self, names: Collection[str], folder: Path, settings: Settings
    ) -> Iterator[tuple[str, Sequence[Figure]]]:
        """Yield the figures of these parts, as soon as each is done."""
        ...


STORAGE, INTEROP, NETWORKS, HEAL, PULSAR = "storage", "interop", "networks", "heal", "pulsar"
GROUPS: Mapping[str, Group] = {
    **{name: MeasurementGroup(name) for name in ("append", "tls", "read", "recovery", "arrow", HEAL)},
    "spark": spark.SparkGroup(),
    STORAGE: storage.StorageGroup(),
    INTEROP: MeasurementGroup(INTEROP),
    NETWORKS: MeasurementGroup(NETWORKS),
    PULSAR: MeasurementGroup(PULSAR),
}
USUAL = [name for name in GROUPS if name not in (INTEROP, HEAL, PULSAR)]
"""The groups that are measured by default. The other groups must be named. ``interop`` compares only with Apache.
``heal`` takes an hour with Apache's bookies. ``pulsar`` needs a broker, and is compared with Pulsar's clients unless
``--peer`` names others."""
PEERS = ("raw", "apache", "kafka", "pulsar")
TABLE_WIDTH = 170


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="scripts/bench")
    add = made.add_argument
    add(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"of: {', '.join(GROUPS)} (all but {INTEROP}, which needs apache, {HEAL} and {PULSAR})",
    )
    add("--peer", action="append", choices=PEERS, dest="peers", help="may be repeated; raw (default): the bare machine "
        "and, for Spark, a source and a sink in memory; apache: its client on its bookies; kafka: confluent-kafka and "
        "spark-sql-kafka on one broker; pulsar (usual for the group pulsar): its clients on one broker")  # fmt: skip
    add("--lane", choices=(DIRECT, GRPC), default=DIRECT, help="between our client and our bookies")
    add("--runs", type=int, default=3, help="timed runs of each side, after one to warm up")
    add("--scale", type=float, default=1.0, help="share of the usual amount of data")
    add("--slow-sync-ms", type=float, default=0.0, metavar="MS", help="add this much to each sync of every server")
    add("--data", "--dir", metavar="DIR", type=Path, default=Path(".cache/bench"), help="on the disk to be measured")
    add(
        "--only",
        metavar="PART,…",
        help="parts of the groups, or patterns ('*single*'); an unknown name prints all of them",
    )
    add("--json", action="store_true", help="one object a line instead of the tables")
    add("--profile", action="store_true", help="say on the error output which functions of our client take the time")
    add("--resume", type=Path, metavar="FILE", help="keep the figures there; those that it has are not measured again")
    add("--page", action="store_true", help=f"put the tables into {page.PATH}")
    return made


def arguments() -> argparse.Namespace:
    made = parser()
    options = made.parse_args()
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        made.error(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if options.runs < 1 or options.scale <= 0 or options.slow_sync_ms < 0:
        made.error("--runs must be at least 1, --scale above 0, --slow-sync-ms not below 0")
    options.peers = frozenset(options.peers or ["raw", *([PULSAR] if PULSAR in options.groups else [])])
    return options


def chosen(groups: Collection[str], only: str | None, peers: Collection[str]) -> dict[str, list[str]]:
    """Return the parts of each group to measure. Raises InvalidArgumentError for a part that does not exist."""
    possible = {name: GROUPS[name].parts(peers) for name in groups or USUAL}
    if only is None:
        found = possible
    else:
        wanted = [name.strip() for name in only.split(",") if name.strip()]
        unknown = [name for name in wanted if not any(fnmatch.filter(parts, name) for parts in possible.values())]
        if unknown:
            listed = "; ".join(f"{group}: {', '.join(parts)}" for group, parts in possible.items())
            raise InvalidArgumentError(
                "there is no such part in these groups, beside these peers",
                value=f"--only {', '.join(sorted(unknown))}",
                remedy=f"of {listed}",
            )
        found = {
            group: [part for part in parts if any(fnmatch.fnmatchcase(part, name) for name in wanted)]
            for group, parts in possible.items()
        }
    if INTEROP in groups and not found[INTEROP]:
        raise InvalidArgumentError("the group interop needs Apache's bookies", remedy="add --peer apache")
    return {group: parts for group, parts in found.items() if parts}


def main() -> int:
    options, console = arguments(), Console(stderr=True)
    try:
        conditions = Conditions(options.lane, options.scale, options.runs, options.slow_sync_ms)
        parts, results = chosen(options.groups, options.only, options.peers), Results(conditions, options.resume)
        options.data.mkdir(parents=True, exist_ok=True)
        slow_sync.add(options.slow_sync_ms)
        for group, names in parts.items():
            measure_group(group, names, results, options, console)
    except BookKeeperError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 2 if isinstance(error, InvalidArgumentError) else 1
    except KeyboardInterrupt:
        console.print("interrupted; what was written is removed")
        return 130
    found = {group: results.of(group, names) for group, names in parts.items()}
    if not options.json:
        show(found, conditions)
    if options.page:
        page.write(found, conditions, options.data)
    met = all(record["meets"] is not False for records in found.values() for record in records)
    return 0 if met and not results.failed else 1


def measure_group(
    group: str, names: Collection[str], results: Results, options: argparse.Namespace, console: Console
) -> None:
    """Measure the parts that the results lack. A part that fails is left out, and the next ones are still measured."""
    settings = Settings(options.runs, options.scale, options.lane, options.peers, options.profile)
    lacking = [name for name in names if not results.has(group, name, options.peers)]
    while lacking:
        console.print(f"{group}: {', '.join(lacking)} …")
        began = time.monotonic()
        try:
            for name, figures in GROUPS[group].measure(tuple(lacking), options.data, settings):
                results.keep(group, name, options.peers, figures)
                lacking.remove(name)
                console.print(f"[dim]{name} done after {time.monotonic() - began:.0f} s[/dim]")
        except InvalidArgumentError:
            raise
        except Exception as error:  # of a peer or of ours: it must not cost an hour of other figures
            failed = lacking.pop(0)
            results.failed.append(failed)
            console.print(f"{failed} failed: {type(error).__name__}: {error}", markup=False, soft_wrap=True)
    for record in results.of(group, names) if options.json else ():
        print(json.dumps(record), flush=True)


def show(found: Mapping[str, list[Record]], conditions: Conditions) -> None:
    """Print a table of the figures, one of their costs, one of the storage's figures, and the notes."""
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    others = [record for group, records in found.items() for record in records if group != STORAGE]
    costs = list(tables.cost_rows(others))
    for title, columns, rows in (
        (conditions.title, tables.COLUMNS, list(tables.rows(others))),
        ("seconds of all processors for a gigabyte", tables.COST_COLUMNS, costs),
        ("storage engine on this machine's disk; raw disk in the same run", STORAGE_COLUMNS,
         list(map(storage_row, found.get(STORAGE, [])))),
    ):  # fmt: skip
        if rows:
            console.print(tables.terminal_table(title, columns, rows))
    for note in tables.notes(record for records in found.values() for record in records):
        console.print(note, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
