# SPDX-License-Identifier: Apache-2.0
"""``bk log compact | trim | vacuum | delete | set``: maintain named logs. ``--dry-run`` says what would be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core import units
from bk_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bk_core.logs.machines.upkeep import Vacuumed
    from bk_core.logs.model.compaction import Run
    from bk_core.logs.model.head import Extent, LogHead

SETTINGS = ("retentionMs", "retentionBytes")


@click.command("compact")
@click.argument("name")
@click.option("--max-ledger-bytes", type=options.SIZE, default="256m", help="Maximum size of a merged ledger.")
@click.option("--max-bytes", type=options.SIZE, help="Stop after copying about this much.  [default: when all is done]")
@options.dry_run
@access(password=True)
@options.as_json
def compact(
    name: str, max_ledger_bytes: int, max_bytes: int | None, dry_run: bool, access: Access, as_json: bool
) -> None:
    """Merge small neighbouring extents of a log into fewer ledgers.

    Offsets, checkpoints, running queries and a leader that writes are unaffected. Entries are copied, read back and
    compared before the log lists the copy; the replaced ledgers stay until bk log vacuum deletes them. The command may
    be stopped at any moment: run it again to go on.
    """
    from bk_core.logs.model.compaction import CompactionLimits

    limits = CompactionLimits(ledger_bytes_max=max_ledger_bytes, copy_bytes_max=max_bytes)
    with access.log(name) as log:
        if dry_run:
            _print_runs(name, log.plan_compaction(limits), as_json)
            return
        with output.progress("copying entries") as advance:
            done = log.compact_small(limits, advance)
    text = (
        f"{done.extents:,} extents became {len(done.ledgers):,}, {done.entries:,} entries, "
        f"{output.in_words(done.size_bytes)}; bk log vacuum deletes the replaced ledgers later"
    )
    found = {
        "log": name,
        "extents": done.extents,
        "ledgers": list(done.ledgers),
        "entries": done.entries,
        "bytes": done.size_bytes,
    }
    output.print_result(as_json, found, f"log {name}: {text if done.ledgers else 'nothing to compact'}")


def _print_runs(name: str, runs: Sequence[Run], as_json: bool) -> None:
    rows = []
    for run in runs:
        entries, size = sum(extent.entry_count for extent in run), sum(extent.size_bytes for extent in run)
        if as_json:
            output.print_json(
                {
                    "log": name,
                    "baseOffset": run[0].base_offset,
                    "extents": len(run),
                    "entries": entries,
                    "bytes": size,
                    "dryRun": True,
                }
            )
        rows.append((run[0].base_offset, f"{len(run):,}", f"{entries:,}", output.in_words(size)))
    if as_json:
        return
    if rows:
        output.print_table(("from offset ", "extents ", "entries ", "bytes "), rows)
    output.print_line(f"would become {len(runs)} extents; nothing was changed" if runs else "nothing to compact")


@click.command("trim")
@click.argument("name")
@click.option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="Drop the entries below this offset.")
@click.option("--expired", is_flag=True, help="Drop the entries that are past the log's retention (bk log set).")
@options.dry_run
@access(password=True)
@options.as_json
def trim(name: str, before: int | None, expired: bool, dry_run: bool, access: Access, as_json: bool) -> None:
    """Let a log begin later: its first entries are unlinked, and a later bk log vacuum deletes them.

    The other entries keep their offsets. Ledgers that a leader still writes are never trimmed.
    """
    from bk_core.logs.model import next_head as commit

    if (before is not None) == expired:
        raise click.UsageError("Give either --before OFFSET or --expired.")
    with access.log(name) as log:
        head = log.head().value
        wanted = log.expired_offset() if before is None else before
        start = commit.trimmed_start(head, wanted)
        below = [each for each in log.extents(head.start_offset, start) if each.next_offset <= start]
        if not dry_run:
            start = log.trim(wanted)
    _print_trimmed(name, head, start, below, dry_run, as_json)


def _print_trimmed(name: str, head: LogHead, start: int, below: list[Extent], dry_run: bool, as_json: bool) -> None:
    entries, size = start - head.start_offset, sum(extent.size_bytes for extent in below)
    verb, would = ("would begin", "would be") if dry_run else ("begins", "are")
    text = f"nothing to trim, it begins at offset {start}"
    if entries:
        text = (
            f"{verb} at offset {start}, {entries:,} entries {would} gone, "
            f"{len(below):,} extents of {output.in_words(size)} unlinked"
        )
    found = {
        "log": name,
        "startOffset": start,
        "entries": entries,
        "unlinkedExtents": len(below),
        "unlinkedBytes": size,
        "dryRun": dry_run,
    }
    output.print_result(as_json, found, f"log {name}: {text}")


@click.command("vacuum")
@click.argument("name")
@click.option("--delete-delay-ms", type=options.TIME, default="7d", help="Keep what is younger than this.")
@click.option("--txn-retention-ms", type=options.TIME, default="30d", help="Keep unused transactions for this long.")
@click.option("--force", is_flag=True, help="Allow less than 7 days and 30 days: only when no job is running.")
@options.dry_run
@access(password=True)
@options.as_json
def vacuum(
    name: str,
    delete_delay_ms: int,
    txn_retention_ms: int,
    force: bool,
    dry_run: bool,
    access: Access,
    as_json: bool,
) -> None:
    """Delete for good what a log does not list any more: trimmed, overwritten and compacted ledgers, ledgers of failed
    jobs, old pages, and transactions that were unused for long. Ledgers that were not made for this
    log are never touched.

    A job that takes longer than the delay before it publishes loses its ledgers.
    """
    from bk_core.logs.named_log import check_delays

    check_delays(delete_delay_ms, txn_retention_ms, force)
    with access.log(name) as log:
        if dry_run:
            done = log.vacuum_candidates(delete_delay_ms, txn_retention_ms)
        else:
            done = log.vacuum(delete_delay_ms=delete_delay_ms, txn_retention_ms=txn_retention_ms, force=force)
    _print_vacuumed(name, done, dry_run, as_json)


def _print_vacuumed(name: str, done: Vacuumed, dry_run: bool, as_json: bool) -> None:
    found = {
        "log": name,
        "ledgers": list(done.ledgers),
        "remaining": list(done.remaining),
        "pages": list(done.pages),
        "transactions": list(done.transactions),
        "dryRun": dry_run,
    }
    text = (
        f"log {name}: {'would delete' if dry_run else 'deleted'} {len(done.ledgers):,} ledgers, "
        f"{len(done.pages):,} pages, {len(done.transactions):,} transaction records"
    )
    output.print_result(as_json, found, text)
    if done.remaining and not as_json:
        output.print_note(f"{len(done.remaining):,} ledgers could not be deleted now; the next vacuum tries again")


@click.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Really delete; without it the command only says what it would delete.")
@click.option("--takeover", is_flag=True, help="Fence the log's leader first; without it a log with a leader is kept.")
@click.option(
    "--now",
    is_flag=True,
    help="Delete the ledgers at once. Refused while a leader or a job writes. Readers are not noticed and lose it.",
)
@access(password=True)
@options.as_json
def delete(name: str, yes: bool, takeover: bool, now: bool, access: Access, as_json: bool) -> None:
    """Delete a log. Its name is free at once: a new log of this name begins empty.

    Its ledgers stay for 7 days, and readers can go on with the ledgers that they have found. Then bk upkeep deletes
    them, or bk log vacuum with this name. The deletion cannot be undone.
    """
    with access.log(name) as log:
        if not yes:
            head = log.head().value
            extents = len(log.extents())
            raise InvalidArgumentError(
                f"this would delete log {name} for good",
                value=f"offsets {head.start_offset} to {head.next_offset - 1}, {extents:,} extents"
                if head.next_offset > head.start_offset or extents
                else "it is empty",
                remedy="if that is what you want, add --yes",
            )
        done = log.delete(takeover=takeover, now=now)
    found = {"log": name, "uuid": done.uuid, "deleted": True, "deletedMs": done.deleted_ms or None}
    text = f"log {name}: deleted; "
    if now:
        text += f"{len(done.ledgers):,} ledgers are deleted, too"
    else:
        text += f"bk upkeep or bk log vacuum {name} deletes its ledgers in 7 days"
    output.print_result(as_json, {**found, "ledgers": list(done.ledgers)}, text)


@click.command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@options.dry_run
@access(password=True)
@options.as_json
def set_settings(name: str, settings: tuple[str, ...], dry_run: bool, access: Access, as_json: bool) -> None:
    """Set what a log keeps: retentionMs=7d, retentionBytes=100g; 0 keeps for ever. Without settings, show them.

    Nothing is dropped at once: bk upkeep and bk log trim --expired apply these settings.
    """
    wanted = parse_settings(settings)
    with access.log(name) as log:
        head = log.head().value
        if wanted and not dry_run:
            head = log.set_retention(
                retention_ms=wanted.get("retentionMs"), retention_bytes=wanted.get("retentionBytes")
            )
    found = {"retentionMs": head.retention_ms, "retentionBytes": head.retention_bytes, **wanted}
    if as_json:
        output.print_json({"log": name, **found, "dryRun": dry_run})
        return
    output.print_facts(retention_facts(found["retentionMs"], found["retentionBytes"]))
    if dry_run:
        output.print_note("nothing was changed")


def parse_settings(settings: Sequence[str]) -> dict[str, int]:
    """Parse ``KEY=VALUE`` texts into numbers. Raises InvalidArgumentError."""
    parsers = {"retentionms": (SETTINGS[0], units.parse_time_ms), "retentionbytes": (SETTINGS[1], units.parse_size)}
    wanted: dict[str, int] = {}
    for text in settings:
        key, is_pair, value = text.partition("=")
        known = parsers.get(key.strip().replace("_", "").replace("-", "").lower())
        number = known[1](value) if known is not None and is_pair else None
        if known is None or number is None or known[0] in wanted:
            raise InvalidArgumentError(
                "a log has the settings retentionMs and retentionBytes, each given once",
                value=text,
                remedy="for instance retentionMs=7d retentionBytes=100g; 0 keeps for ever",
            )
        wanted[known[0]] = number
    return wanted


def retention_facts(retention_ms: int, retention_bytes: int) -> dict[str, str]:
    """Return what ``trim --expired`` keeps, in words."""
    return {
        "retentionMs": f"{retention_ms} ({units.time_in_words(retention_ms)})" if retention_ms else "0 (for ever)",
        "retentionBytes": f"{retention_bytes} ({output.in_words(retention_bytes)})" if retention_bytes else "0 (all)",
    }
