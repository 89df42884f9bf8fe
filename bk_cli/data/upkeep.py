# SPDX-License-Identifier: Apache-2.0
"""``bk upkeep``: maintains all logs of a cluster. Of all processes that run it, one is elected and works."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core.observe import log_level

if TYPE_CHECKING:
    from bk_core.logs.model.upkeep_plan import UpkeepConfig, UpkeepPlan
    from bk_core.logs.model.upkeep_record import UpkeepRecord
    from bk_core.logs.upkeep_worker import Done


@click.command()
@click.option(
    "--max-bytes-per-hour",
    type=options.SIZE,
    default="20g",
    help="Maximum bytes that compaction copies in an hour.",
)
@click.option("--rate", type=options.SIZE, default="32m", help="Bytes copied a second.")
@click.option(
    "--max-ledgers-per-hour",
    type=click.IntRange(min=0),
    default=100_000,
    help="Maximum number of ledgers merged or deleted in an hour; 0: no limit.",
)
@click.option(
    "--min-extents", type=click.IntRange(min=2), default=16, help="A log with fewer small extents is not compacted."
)
@click.option(
    "--delete-delay-ms", type=options.TIME, default="7d", help="How long unlinked ledgers are kept; at least 7 days."
)
@click.option(
    "--passwords",
    "passwords_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Passwords of logs, a TOML file: "name" = "password". All other logs have --ledger-password.',
)
@click.option("--name", metavar="TEXT", help="Name of this worker in the election.  [default: this host's name]")
@click.option("--once", is_flag=True, help="Work one round, then end. Do nothing if another worker is elected.")
@options.dry_run
@access(password=True)
@options.as_json
def upkeep(
    access: Access,
    max_bytes_per_hour: int,
    rate: int,
    max_ledgers_per_hour: int,
    min_extents: int,
    delete_delay_ms: int,
    passwords_file: Path | None,
    name: str | None,
    once: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Maintain all logs of the cluster until SIGTERM or Ctrl-C: apply retention, compact, delete unlisted ledgers.

    Run it on a few hosts: one worker is elected and works, the others wait. It may be killed at any moment; the next
    worker goes on. --dry-run says what would be done now, what waits, and why.
    """
    from bk_core.logs.model.upkeep_plan import UpkeepConfig
    from bk_core.logs.passwords import passwords_of

    config = UpkeepConfig(
        copy_bytes_per_s=rate,
        copy_bytes_per_hour=max_bytes_per_hour,
        ledgers_per_hour=max_ledgers_per_hour,
        extents_min=min_extents,
        delete_delay_ms=delete_delay_ms,
    )
    passwords = passwords_of(passwords_file, access.password)
    owner = name or f"{socket.gethostname()}:{os.getpid()}"
    if dry_run:
        return asyncio.run(_dry_run(access, config, passwords, as_json))
    if once:
        return asyncio.run(_once(access, owner, config, passwords, as_json))
    log_level.log_as_server()
    return asyncio.run(_run(access, owner, config, passwords))


async def _run(access: Access, owner: str, config: UpkeepConfig, passwords: Callable[[str], bytes]) -> int:
    from bk_core.logs.upkeep_worker import UpkeepWorker

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await access.connect() as client, UpkeepWorker(client, owner, config, passwords):
        output.print_line(f"ready {owner}")
        await stop.wait()
    return 0


async def _once(
    access: Access, owner: str, config: UpkeepConfig, passwords: Callable[[str], bytes], as_json: bool
) -> int:
    from bk_core.logs.upkeep_worker import UpkeepWorker

    async with await access.connect() as client:
        worker = UpkeepWorker(client, owner, config, passwords)
        plan = await worker.look()
        other = None if plan is not None else await asyncio.to_thread(client.store.current_upkeep_worker)
        await asyncio.to_thread(client.store.withdraw_upkeep_vote)
    if plan is None:
        output.print_result(as_json, {"elected": other, "done": False}, f"{other or 'another worker'} keeps the logs")
        return 0
    _print_plan(plan, as_json, dry_run=False)
    _print_done(worker.done, as_json)
    return 1 if worker.done.failures else 0


async def _dry_run(access: Access, config: UpkeepConfig, passwords: Callable[[str], bytes], as_json: bool) -> int:
    from bk_core.logs.upkeep_worker import dry_run

    async with await access.connect() as client:
        plan, record, elected = await dry_run(client, config, passwords)
    _print_plan(plan, as_json, dry_run=True)
    _print_record(record, elected, as_json)
    return 0


def _print_plan(plan: UpkeepPlan, as_json: bool, *, dry_run: bool) -> None:
    if as_json:
        for step in plan.steps:
            found = {"log": step.log, "do": step.kind.value, "why": step.why, "ledgers": step.ledgers}
            more = {"bytes": step.size_bytes, "beforeOffset": step.before_offset, "dryRun": dry_run}
            output.print_json({**found, **more, "doomed": list(step.doomed)})
        for each in plan.waits:
            waits = {"waits": each.what, "why": each.why, "untilMs": each.until_ms or None}
            output.print_json({"log": each.log or None, **waits})
        return
    rows = [
        (step.log, step.kind.value, f"{step.ledgers:,}", output.in_words(step.size_bytes), step.why)
        for step in plan.steps
    ]
    if rows:
        output.print_table(("log", "do", "ledgers ", "bytes ", "why"), rows)
    for each in plan.waits:
        until = f" until {output.moment(each.until_ms)}" if each.until_ms else ""
        output.print_line(f"{each.log or 'all logs'}: {each.what} waits{until}: {each.why}")
    if dry_run:
        output.print_line("nothing was changed" if rows else "nothing to do now")


def _print_done(done: Done, as_json: bool) -> None:
    found = {
        "trimmedLedgers": done.trimmed_ledgers,
        "deletedLedgers": done.deleted_ledgers,
        "mergedExtents": done.merged_extents,
        "copiedBytes": done.copied_bytes,
        "failures": done.failures,
        "done": True,
    }
    text = (
        f"unlinked {done.trimmed_ledgers:,} ledgers, deleted {done.deleted_ledgers:,}, merged {done.merged_extents:,} "
        f"extents of {output.in_words(done.copied_bytes)}; {done.failures} failures"
    )
    output.print_result(as_json, found, text)


def _print_record(record: UpkeepRecord, elected: str | None, as_json: bool) -> None:
    found = {
        "elected": elected,
        "lastWorker": record.owner or None,
        "copiedBytesThisHour": record.copied_bytes,
        "ledgersThisHour": record.ledgers,
        "hourBeganMs": record.window_ms or None,
        "searchedMs": record.vacuumed_ms or None,
    }
    if as_json:
        output.print_json(found)
        return
    output.print_note(
        f"elected: {elected or 'none: run bk upkeep'}; in the hour from {output.moment(record.window_ms or None)}: "
        f"{output.in_words(record.copied_bytes)} copied, {record.ledgers:,} ledgers merged or deleted"
    )
