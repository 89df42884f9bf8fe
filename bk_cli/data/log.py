# SPDX-License-Identifier: Apache-2.0
"""``bk log``: named logs, ordered lists of ledgers with one integer as the position. The commands that change logs are
in ``log_upkeep.py`` and ``log_txn.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_cli.data.log_txn import txn
from bk_cli.data.log_upkeep import compact, delete, retention_facts, set_settings, trim, vacuum
from bk_core.errors import InvalidArgumentError, NoSuchLogError

if TYPE_CHECKING:
    from bk_core.logs.model.head import Extent, LogHead
    from bk_core.logs.store import LogStore


@click.group()
def log() -> None:
    """Named logs: an ordered list of ledgers under one name."""


@log.command("list")
@click.option("--deleted", is_flag=True, help="List deleted logs instead, whose ledgers are not deleted yet.")
@access()
@options.as_json
def list_logs(deleted: bool, access: Access, as_json: bool) -> None:
    """List all logs by name."""
    from bk_core.cluster.logs import as_object
    from bk_core.logs.store import LogStore

    if deleted:
        return _list_deleted(access, as_json)
    rows = []
    with access.client() as bookkeeper, output.progress("reading logs") as advance:
        for name in sorted(bookkeeper.store.list_logs()):
            try:
                head = LogStore(bookkeeper.store, name).read().value
            except NoSuchLogError:  # deleted since it was listed
                continue
            advance(1)
            if as_json:
                output.print_json(as_object(name, head))
            else:
                leader = "open" if head.open_extents else "-"
                rows.append(
                    (name, head.start_offset, head.next_offset, head.epoch, leader, output.moment(head.created_ms))
                )
    if not as_json:
        output.print_table(("log", "first offset ", "next offset ", "epoch ", "leader", "created"), rows)


def _list_deleted(access: Access, as_json: bool) -> None:
    from bk_core.logs.store import deleted_logs

    with access.client() as bookkeeper:
        found = deleted_logs(bookkeeper.store)
    if as_json:
        for each in found:
            output.print_json({"log": each.name, "uuid": each.uuid, "deletedMs": each.deleted_ms})
        return
    output.print_table(("log", "uuid", "deleted"), [(x.name, x.uuid, output.moment(x.deleted_ms)) for x in found])


@log.command("show")
@click.argument("name")
@click.option("--extents", "with_extents", is_flag=True, help="List every extent, which may be many in an old log.")
@access()
@options.as_json
def show(name: str, with_extents: bool, access: Access, as_json: bool) -> None:
    """Show the head of a log, its schemas, and its last extents."""
    from bk_core.cluster.logs import as_object, extent_object
    from bk_core.logs.store import LogStore

    with access.client() as bookkeeper:
        store = LogStore(bookkeeper.store, name)
        head = store.read().value
        extents = _extents(store, head, with_extents)
        columns = {number: _columns(schema) for number, schema in store.schemas(head).items()}
    if as_json:
        more = {"schemas": columns, "extents": [extent_object(extent) for extent in extents]}
        output.print_json({**as_object(name, head), **more})
        return
    output.print_facts(
        {
            "log": name,
            "uuid": head.uuid,
            "offsets": _offsets(head.start_offset, head.next_offset),
            "epoch": head.epoch,
            "digest": head.digest_type.name,
            "created": output.moment(head.created_ms),
            "leader": f"{len(head.open_extents)} open extents" if head.open_extents else "none: nothing is open",
            "pages": len(head.pages),
            "publishes": f"{len(head.published)} remembered",
            **retention_facts(head.retention_ms, head.retention_bytes),
        }
    )
    if columns:
        output.print_line()
        rows = [(number, ", ".join(f"{n} {kind}" for n, kind in named.items())) for number, named in columns.items()]
        output.print_table(("schema ", "columns"), rows)
    output.print_line()
    output.print_table(
        ("from offset ", "entries ", "bytes ", "ledger ", "from entry ", "codec", "state"),
        [_extent_row(extent) for extent in extents],
    )


@log.command("explain")
@click.argument("name")
@access()
@options.as_json
def explain(name: str, access: Access, as_json: bool) -> None:
    """Explain the state of a log: its writer, what blocks an append or a read, what is trimmed, and what helps."""
    from bk_cli.explain.log_explained import show_log

    show_log(access, name, as_json=as_json)


@log.command("read")
@click.argument("name")
@click.option("--from", "first", type=click.IntRange(min=0), help="First offset.  [default: the first there is]")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many entries.")
@click.option("--raw", is_flag=True, help="Write the bytes of each entry and a line feed, nothing else.")
@access(password=True)
@options.as_json
def read(name: str, first: int | None, limit: int | None, raw: bool, access: Access, as_json: bool) -> None:
    """Print the entries of a log in order, to the last one that its leader confirmed, without disturbing the leader."""
    with access.log(name) as named_log:
        begin, end = named_log.head().value.start_offset, named_log.end_offset()
        start = begin if first is None else first
        if not begin <= start <= end:
            raise InvalidArgumentError(
                f"log {name} can be read at these offsets: {_offsets(begin, end)}",
                value=f"--from is {start}",
                remedy="leave it out, or give one of these",
            )
        for offset, batch in named_log.read(start, end if limit is None else min(end, start + limit)):
            output.print_entries(range(offset, offset + len(batch)), batch.to_list(), raw, as_json, "offset")


for _command in (compact, trim, vacuum, delete, set_settings, txn):
    log.add_command(_command)


def _offsets(start: int, end: int) -> str:
    return f"{start} to {end - 1}" if start < end else f"none; the next is {end}"


def _columns(schema: bytes) -> dict[str, str]:
    """Return the types of a schema's columns, for people."""
    from bk_core.logs.model import schemas

    return {name: schemas.shown(field) for name, field in schemas.fields_of(schema).items()}


def _extents(store: LogStore, head: LogHead, every: bool) -> list[Extent]:
    return store.extents(head, 0, head.next_offset + 1) if every else list(head.tail)


def _extent_row(extent: Extent) -> tuple[object, ...]:
    if extent.is_open:
        sizes: tuple[object, ...] = ("-", "-")
    else:
        sizes = (f"{extent.entry_count:,}", output.in_words(extent.size_bytes))
    state = "open" if extent.is_open else "sealed"
    return (extent.base_offset, *sizes, extent.ledger_id, extent.first_entry_id, extent.codec, state)
