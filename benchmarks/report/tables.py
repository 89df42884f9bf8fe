# SPDX-License-Identifier: Apache-2.0
"""Tables of figures, for a terminal and for a page, made from records. Pure.

A figure that has several peers has a record for each of them. Our values are only in the first row, unless they were
measured again for another peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import JustifyMethod
from rich.table import Table

from benchmarks.report.figures import Record, number

COLUMNS = ("figure", "unit", "ours", "worst", "peer", "its", "ratio", "worst ratio", "wanted", "")
COST_COLUMNS = ("figure", "CPU-s a GB: ours", "peer", "CPU-s a GB: the peer's")
TEXT_COLUMNS = {"figure", "unit", "peer", *COST_COLUMNS, "side", "of", "point", "load"}
MARKS = {True: "✓", False: "✗", None: ""}

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that all figures of a table share."""

    lane: str = "direct"
    scale: float = 1.0
    runs: int = 3
    slow_sync_ms: float = 0.0

    @property
    def title(self) -> str:
        slow = f", {self.slow_sync_ms:g} ms added to each sync" if self.slow_sync_ms else ""
        part = f", {self.scale:g} of the usual amount of data" if self.scale != 1 else ""
        return f"client and three bookies on this machine, lane {self.lane}, {self.runs} runs in turns{slow}{part}"


def rows(records: Iterable[Record]) -> Iterator[Row]:
    """Yield the cells of :data:`COLUMNS`."""
    before = ("", 0.0)
    for record in records:
        mine = (record["name"], record["unit"], number(record["value"]), number(record["worst"]))
        peer = ("", "", "", "")
        if record["peer"]:
            ratios = (f"{record[key]:.2f}" for key in ("ratio", "worst_ratio"))
            peer = (record["peer"], number(record["peer_value"]), *ratios)
        same = before == (record["name"], record["value"])
        yield (*(("",) * 4 if same else mine), *peer, record["wish"], MARKS[record["meets"]])
        before = (record["name"], record["value"])


def cost_rows(records: Iterable[Record]) -> Iterator[Row]:
    """Yield the cells of :data:`COST_COLUMNS` for figures with a cost."""
    before = ""
    for record in records:
        ours, theirs = told_cost(record.get("cpu_s_per_gb", {})), told_cost(record.get("peer_cpu_s_per_gb", {}))
        if not ours:
            continue
        mine = (record["name"], ours) if record["name"] != before else ("", "")
        yield (*mine, record["peer"] or "", theirs)
        before = record["name"]


def told_cost(cost: Mapping[str, float]) -> str:
    """Return the parts of a cost and their sum, in words."""
    parts = " + ".join(f"{kind} {number(seconds)}" for kind, seconds in cost.items())
    return f"{parts} = {number(sum(cost.values()))}" if cost else ""


def terminal_table(title: str, columns: Sequence[str], lines: Iterable[Row]) -> Table:
    """Return a table for a terminal."""
    made = Table(title=title, title_justify="left")
    for column in columns:
        justify: JustifyMethod = "left" if column in TEXT_COLUMNS else "right"
        made.add_column(column, no_wrap="CPU" not in column, justify=justify)
    for line in lines:
        made.add_row(*line)
    return made


def markdown_table(columns: Sequence[str], lines: Iterable[Row]) -> list[str]:
    """Return the lines of a table for a page."""
    ruler = ("---" if column in TEXT_COLUMNS else "---:" for column in columns)
    return [f"| {' | '.join(line)} |" for line in (columns, tuple(ruler), *lines)]


def notes(records: Iterable[Record]) -> list[str]:
    """Return what each side does and does not do, once for all figures that share a note."""
    shared: dict[str, list[str]] = {}
    for record in records:
        for who, note in (("", record["note"]), (record["peer"] or "", record.get("peer_note", ""))):
            name = f"{record['name']}{f' beside {who}' if who else ''}"
            if note and name not in shared.setdefault(note, []):
                shared[note].append(name)
    return [f"{', '.join(names)}: {note}" for note, names in shared.items()]
