# SPDX-License-Identifier: Apache-2.0
"""``bk bookie list``: lists every bookie of a cluster, whether it answers, its free space, and what it lacks."""

from __future__ import annotations

from collections import Counter

from bk_cli import output
from bk_cli.access import Access
from bk_core.cluster.bookie_answers import Said, refused_by_all
from bk_core.cluster.bookies import BookieRow, Marks, as_object, look
from bk_core.errors import BookKeeperError

COLUMNS = ("bookie", "state", "answers", "used ", "free ", "lacks ", "limbo ", "damaged ", "lanes", "version")


def list_bookies(access: Access, *, as_json: bool) -> None:
    """Print all bookies. If all bookies that could be asked refuse this client, raise the error of one of them
    afterwards."""
    with access.store() as store:
        rows, marks = look(store, access.caller(store.instance_id(), "bk bookie list"))
        unreadable = store.unreadable.nodes()
    if as_json:
        for row in rows:
            output.print_json(as_object(row, marks))
    else:
        _print(rows, marks)
    for node in unreadable:
        output.print_note(f"{node}; {node.remedy}")
    refused = refused_by_all(row.said for row in rows)
    if refused is not None:
        raise refused


def _print(rows: list[BookieRow], marks: Marks) -> None:
    output.print_table(COLUMNS, [_cells(row, marks) for row in rows])
    for row in rows:
        if isinstance(row.said, BookKeeperError):
            output.print_note(" ".join(str(row.said).split()))
    if refused_by_all(row.said for row in rows) is None:  # else this client saw only their registrations
        states = Counter(row.state for row in rows)
        output.print_note(f"{len(rows)} bookies: {', '.join(f'{count} {state}' for state, count in states.items())}")


def _cells(row: BookieRow, marks: Marks) -> tuple[object, ...]:
    lacks = f"{row.lacks}{'' if marks.is_all else '+'}"
    if not isinstance(row.said, Said):
        answers = "no" if row.info is not None else "-"
        lanes = ", ".join(row.lanes) or "-"
        return row.bookie_id, row.state_in_words, answers, "-", "-", lacks, "-", "-", lanes, "-"
    info = row.said.info
    used = f"{1 - info.free_bytes / info.total_bytes:.0%}" if info.total_bytes else "-"
    room = used, output.in_words(info.free_bytes)
    copies = lacks, info.limbo_ledgers, info.damaged_ledgers
    rest = ", ".join(row.lanes), info.version or "-"
    return row.bookie_id, row.state_in_words, f"{row.said.took_ms:.0f} ms", *room, *copies, *rest
