# SPDX-License-Identifier: Apache-2.0
"""Writes the measured sections of ``docs/performance.md`` for ``--page``, one for each group.

A section begins with ``<!-- bench: NAME -->`` and ends with ``<!-- /bench: NAME -->``. NAME is the group's, with the
lane or the slow disk if they are not the usual ones. Text outside the sections is written by hand. A new section goes
to the end.
"""

from __future__ import annotations

import datetime
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report import tables
from benchmarks.report.figures import Record
from benchmarks.report.tables import Conditions
from benchmarks.storage.figures import COLUMNS as STORAGE_COLUMNS
from benchmarks.storage.figures import row as storage_row
from benchmarks.storage.machine import describe

PATH = Path("docs/performance.md")
PLACES = ("--resume", "--data", "--dir")
TITLE = "# Performance\n"


def write(found: Mapping[str, Sequence[Record]], conditions: Conditions, measured_in: Path, path: Path = PATH) -> None:
    """Write a section for each group into the page."""
    text = path.read_text(encoding="utf-8") if path.exists() else TITLE
    machine = "; ".join(f"{key} {value}" for key, value in describe(measured_in).items())
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for group, records in found.items():
        if not records:
            continue
        name = section_name(group, conditions)
        lines = [f"`{command()}`, {today}: {conditions.title}. Machine: {machine}.", ""]
        lines += section(group, records)
        text = replaced(text, name, lines)
    path.write_text(text, encoding="utf-8")


def command() -> str:
    """Return the command line of this run, without the options that name files."""
    given = iter(sys.argv[1:])
    kept = [word for word in given if word not in PLACES or not next(given)]
    return shlex.join(["scripts/bench", *kept])


def section_name(group: str, conditions: Conditions) -> str:
    """Return the name of the section: each kind of run has one of its own."""
    lane = f"-{conditions.lane}" if conditions.lane != "direct" else ""
    return f"{group}{lane}{'-slow-sync' if conditions.slow_sync_ms else ''}"


def section(group: str, records: Sequence[Record]) -> list[str]:
    """Return the lines of the group's table; the command prints the costs and the notes."""
    if group == "storage":
        return tables.markdown_table(STORAGE_COLUMNS, map(storage_row, records))
    return tables.markdown_table(tables.COLUMNS, tables.rows(records))


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """Return the page with these lines in the section ``name``. Everything else stays."""
    begin, end = f"<!-- bench: {name} -->", f"<!-- /bench: {name} -->"
    body = "\n".join([begin, "", *lines, "", end])
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if found.search(text):
        return found.sub(lambda _: body, text)
    return f"{text.rstrip()}\n\n{body}\n"
