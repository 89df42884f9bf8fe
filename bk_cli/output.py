# SPDX-License-Identifier: Apache-2.0
"""Prints the output of commands: tables for people, JSON lines for programs, progress and errors on stderr.

Rich draws tables and progress. It is imported only where something is drawn, because its import would take most of the
start of ``bk``.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from bk_core.cluster.payloads import payload_json, payload_text
from bk_core.errors import BookKeeperError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_COLUMNS = 1000  # a pipe has no width, and nothing may be cut there


def print_json(value: Mapping[str, object]) -> None:
    """Print an object as one line, and flush it."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_line(text: str = "") -> None:
    click.echo(text)


def print_result(as_json: bool, value: Mapping[str, object], text: str) -> None:
    """Print the result of a command: ``value`` for programs, ``text`` for people."""
    print_json(value) if as_json else print_line(text)


def print_note(text: str) -> None:
    """Print a note to stderr, so that the result can be piped."""
    click.echo(text, err=True)


def print_error(error: BookKeeperError) -> None:
    """Print the line of an error (RULES E1); with ``bk -vv`` print the traceback before it."""
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger(__name__).debug("the command failed", exc_info=error)
    click.echo(" ".join(str(error).split()), err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table without lines. Columns whose name ends in a space are right-aligned."""
    _console().print(_table(columns, rows), markup=False)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for name in columns:
        table.add_column(name.strip(), justify="right" if name.endswith(" ") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


@contextmanager
def live_table() -> Iterator[Callable[[Sequence[str], Iterable[Sequence[object]], Sequence[str]], None]]:
    """Open a table that is drawn again and again, on a screen of its own if stdout is a terminal. Yields a function
    that draws columns, rows and the lines below them in place of the previous ones."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = _console()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        yield lambda columns, rows, notes: live.update(Group(_table(columns, rows), *map(Text, notes)), refresh=True)


def print_row(columns: Sequence[tuple[str, int]], row: Sequence[object]) -> None:
    """Print one row of a table that is printed while it is read. ``columns`` have widths, negative ones for text. Wider
    cells are not cut."""
    cells = (
        f"{cell!s:>{width}}" if width > 0 else f"{cell!s:<{-width}}"
        for (_, width), cell in zip(columns, row, strict=True)
    )
    click.echo("   ".join(cells).rstrip())


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_COLUMNS)


def in_words(size_bytes: float) -> str:
    """Return a size in words, such as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def moment(time_ms: int | None) -> str:
    """Return milliseconds since 1970 as local time, exact to the second, or ``-`` for None."""
    if time_ms is None or time_ms < 0:
        return "-"
    return datetime.datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")


def print_bytes(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_entries(
    ids: Sequence[int], payloads: Sequence[bytes], raw: bool, as_json: bool, name: str = "entryId"
) -> None:
    """Print one entry a line, with its id or log offset: for people, as JSON, or raw (only the payload)."""
    if raw:
        print_bytes(b"".join(payload + b"\n" for payload in payloads))
    elif as_json:
        for number, payload in zip(ids, payloads, strict=True):
            print_json({name: number, **payload_json(payload)})
    else:
        for number, payload in zip(ids, payloads, strict=True):
            print_line(f"{number}\t{payload_text(payload)}")


@contextmanager
def progress(what: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show the progress of long work on stderr, only if it is a terminal. Yields a function to call with the progress
    since its last call."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
