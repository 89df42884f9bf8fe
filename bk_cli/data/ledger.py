# SPDX-License-Identifier: Apache-2.0
"""``bk ledger``: commands about single ledgers. They disturb a writer only if ``--recover`` or ``recover`` asks for
it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core.cluster.ledgers import as_object
from bk_core.cluster.payloads import payload_text
from bk_core.errors import InvalidArgumentError, MetadataCorruptError, NoSuchLedgerError
from bk_core.model import DigestType, LedgerState

if TYPE_CHECKING:
    from bk_core.metadata.port import MetadataStore
    from bk_core.model import LedgerId, LedgerMetadata, Versioned

_NAMES = ("ledger", "state", "E/Qw/Qa", "entries", "bytes", "digest", "created")
_COLUMNS = tuple(zip(_NAMES, (10, -11, -7, 12, 10, -6, -25), strict=True))  # of the list
APPEND_BYTES = 1 << 20  # the most input that becomes one batch


@click.group()
def ledger() -> None:
    """Ledgers: replicated, append-only, with one writer each."""


@ledger.command("list")
@access()
@click.option("--ids", is_flag=True, help="Print only the ids: much faster where there are many.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many ledgers.")
@click.option(
    "--state",
    type=click.Choice([s.name for s in LedgerState], case_sensitive=False),
    help="List only ledgers in this state.",
)
@click.option("--bookie", metavar="ID", help="List only ledgers with this bookie in an ensemble, current or old.")
@options.as_json
def list_ledgers(
    access: Access, ids: bool, limit: int | None, state: str | None, bookie: str | None, as_json: bool
) -> None:
    """List all ledgers in ascending order. Each is printed as soon as it is read."""

    def is_wanted(value: LedgerMetadata) -> bool:
        return (state is None or value.state.name == state.upper()) and (
            bookie is None or any(bookie in fragment.ensemble for fragment in value.fragments)
        )

    with access.client() as bookkeeper:
        listed = bookkeeper.store.list_ledgers()
        if ids and state is None and bookie is None:
            for ledger_id in islice(listed, limit):
                _print_id(ledger_id, as_json)
            return
        unreadable = list[MetadataCorruptError]()
        found = ((i, each) for i, each in _read_each(bookkeeper.store, listed, unreadable) if is_wanted(each.value))
        if not (ids or as_json):
            output.print_row(_COLUMNS, _NAMES)
        for ledger_id, each in islice(found, limit):
            if ids:
                _print_id(ledger_id, as_json)
            elif as_json:
                output.print_json(as_object(ledger_id, each))
            else:
                output.print_row(_COLUMNS, _as_row(ledger_id, each.value))
    if unreadable:
        raise unreadable[-1]  # only these are missing from the list; the exit code says so


def _read_each(
    store: MetadataStore, listed: Iterator[LedgerId], unreadable: list[MetadataCorruptError]
) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata]]]:
    """Yield the records one by one. Each is read when the caller asks for it. Put the error of an unreadable record
    into ``unreadable``. First print the error that is there already, so that all errors but the last one are
    printed."""
    for ledger_id in listed:
        try:
            yield ledger_id, store.read_ledger(ledger_id)
        except NoSuchLedgerError:  # deleted since it was listed
            continue
        except MetadataCorruptError as error:
            if unreadable:
                output.print_error(unreadable.pop())
            unreadable.append(error)


def _print_id(ledger_id: LedgerId, as_json: bool) -> None:
    output.print_result(as_json, {"ledgerId": ledger_id}, str(ledger_id))


@ledger.command("show")
@click.argument("ledger_id", type=int)
@access()
@options.as_json
def show(ledger_id: int, access: Access, as_json: bool) -> None:
    """Show the metadata of a ledger."""
    with access.client() as bookkeeper:
        found = bookkeeper.read_metadata(ledger_id)
    if as_json:
        output.print_json(as_object(ledger_id, found))
        return
    value = found.value
    output.print_facts(
        {
            "ledger": ledger_id,
            "state": value.state.name,
            "entries": value.last_entry_id + 1 if value.is_closed else "not closed yet",
            "length": output.in_words(value.length) if value.is_closed else "not closed yet",
            "quorums": f"ensemble {value.ensemble_size}, write {value.write_quorum_size}, ack {value.ack_quorum_size}",
            "digest": value.digest_type.name if value.digest_type else "-",
            "created": output.moment(value.ctime_ms),
            "version": found.version,
            **{f"custom {name}": payload_text(data) for name, data in sorted(value.custom_metadata.items())},
        }
    )
    output.print_line()
    output.print_table(("from entry ", "bookies"), [(f.first_entry_id, ", ".join(f.ensemble)) for f in value.fragments])


@ledger.command("explain")
@click.argument("ledger_id", type=int)
@access()
@options.as_json
def explain_ledger(ledger_id: int, access: Access, as_json: bool) -> None:
    """Explain the state of a ledger: its copies, what blocks a recovery or a repair, and what helps."""
    from bk_cli.explain.ledger_explained import show_ledger

    show_ledger(access, ledger_id, as_json=as_json)


@ledger.command("read")
@click.argument("ledger_id", type=int)
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="First entry id.")
@click.option("--to", "last", type=click.IntRange(min=0), help="Last entry id.  [default: the last readable]")
@click.option("--recover", is_flag=True, help="Take over first: fence the writer, recover, close, read to the end.")
@click.option("--raw", is_flag=True, help="Write the bytes of each entry and a line feed, nothing else.")
@options.digest_type(default=None)
@access(password=True)
@options.as_json
def read(
    ledger_id: int,
    first: int,
    last: int | None,
    recover: bool,
    raw: bool,
    digest_type: str | None,
    access: Access,
    as_json: bool,
) -> None:
    """Print the entries of a ledger. An open ledger is read up to its LAC, without disturbing its writer."""
    with access.reader(ledger_id, digest_type, recover=recover) as reader:
        end = reader.last_add_confirmed
        stop = end if last is None else last
        if stop > end or first > end + 1:
            wrong, value = ("--to", stop) if stop > end else ("--from", first)
            raise InvalidArgumentError(
                f"ledger {ledger_id} can be read to entry {end}",
                value=f"{wrong} is {value}",
                remedy="leave it out, or read later" if not recover else "leave it out",
            )
        if last is not None and first > last:
            raise InvalidArgumentError(
                "the range ends before it starts", value=f"--from is {first}, --to is {last}", remedy="exchange them"
            )
        for batch in reader.read(first, stop) if first <= stop else ():
            output.print_entries(batch.entry_ids().tolist(), batch.to_list(), raw, as_json)


@ledger.command("tail")
@click.argument("ledger_id", type=int)
@click.option("--from", "first", type=click.IntRange(min=0), help="First entry id.  [default: the next one]")
@click.option("--raw", is_flag=True, help="Write the bytes of each entry and a line feed, nothing else.")
@options.digest_type(default=None)
@access(password=True)
@options.as_json
def tail(ledger_id: int, first: int | None, raw: bool, digest_type: str | None, access: Access, as_json: bool) -> None:
    """Print entries as they are confirmed, until the ledger is closed or you press Ctrl-C."""
    with access.reader(ledger_id, digest_type) as reader:
        for batch in reader.tail(from_entry=reader.last_add_confirmed + 1 if first is None else first):
            output.print_entries(batch.entry_ids().tolist(), batch.to_list(), raw, as_json)


@ledger.command("append")
@click.argument("source", type=click.File("rb"), default="-")
@options.quorum
@options.digest_type(default="CRC32C")
@access(password=True)
@options.as_json
def append(
    source: BinaryIO,
    ensemble_size: int,
    write_quorum_size: int,
    ack_quorum_size: int,
    digest_type: str,
    access: Access,
    as_json: bool,
) -> None:
    """Make a ledger from the lines of SOURCE (stdin by default), one entry a line, and close it.

    A ledger has one writer and is never written again once closed. To go on, append to another ledger, or use a log.
    """
    from bk_core.entries.batch import EntryBatch

    entries = size = 0
    with (
        access.client() as bookkeeper,
        bookkeeper.create_ledger(
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            digest_type=DigestType[digest_type.upper()],
            password=access.password,
        ) as writer,
    ):
        ledger_id = writer.ledger_id
        output.print_note(f"writing ledger {ledger_id}")
        with output.progress("appending") as advance:
            for lines in _lines(source):
                writer.wait_confirmed(writer.append_batch(EntryBatch.from_list(lines)))
                entries, size = entries + len(lines), size + sum(map(len, lines))
                advance(len(lines))
    text = f"ledger {ledger_id}: {entries:,} entries, {output.in_words(size)}, closed"
    output.print_result(as_json, {"ledgerId": ledger_id, "entries": entries, "bytes": size}, text)


@ledger.command("recover")
@click.argument("ledger_id", type=int)
@options.digest_type(default=None)
@access(password=True)
@options.as_json
def recover(ledger_id: int, digest_type: str | None, access: Access, as_json: bool) -> None:
    """Take over a ledger: fence its writer, recover what it wrote, and close it."""
    with access.reader(ledger_id, digest_type, recover=True) as reader:
        last = reader.last_add_confirmed
    found = {"ledgerId": ledger_id, "state": "CLOSED", "lastEntryId": last}
    output.print_result(as_json, found, f"ledger {ledger_id}: closed with {last + 1:,} entries")


@ledger.command("delete")
@click.argument("ledger_id", type=int)
@click.option("--yes", is_flag=True, help="Really delete; without it the command only says what it would delete.")
@click.option(
    "--force", is_flag=True, help="Delete it even if it was made for a named log, which may then have a hole."
)
@access()
@options.as_json
def delete(ledger_id: int, yes: bool, force: bool, access: Access, as_json: bool) -> None:
    """Delete a ledger for good."""
    with access.client() as bookkeeper:
        found = bookkeeper.read_metadata(ledger_id)
        if "bk.log.uuid" in found.value.custom_metadata and not force:
            raise InvalidArgumentError(
                f"ledger {ledger_id} was made for a named log",
                value=f"log uuid {payload_text(found.value.custom_metadata['bk.log.uuid'])}",
                remedy="deleting it may leave a hole in the log; if you are sure, add --force",
            )
        if not yes:
            raise InvalidArgumentError(
                f"this would delete ledger {ledger_id} for good",
                value=f"{found.value.state.name}, {found.value.last_entry_id + 1:,} entries"
                if found.value.is_closed
                else f"{found.value.state.name}: a writer may be using it",
                remedy="if that is what you want, add --yes",
            )
        bookkeeper.delete_ledger(ledger_id, version=found.version)
    output.print_result(as_json, {"ledgerId": ledger_id, "deleted": True}, f"ledger {ledger_id}: deleted")


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield whole lines as they arrive, as many at once as have arrived."""
    rest = b""
    read_some = getattr(source, "read1", source.read)
    while piece := read_some(APPEND_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _as_row(ledger_id: int, value: LedgerMetadata) -> tuple[object, ...]:
    sizes = (f"{value.last_entry_id + 1:,}", output.in_words(value.length)) if value.is_closed else ("-", "-")
    quorums = f"{value.ensemble_size}/{value.write_quorum_size}/{value.ack_quorum_size}"
    digest = value.digest_type.name if value.digest_type else "-"
    return (ledger_id, value.state.name, quorums, *sizes, digest, output.moment(value.ctime_ms))
