# SPDX-License-Identifier: Apache-2.0
"""``bk log txn``: shows which versions of which applications and streaming queries a log has taken (RULES N5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bk_core.logs.model.head import LogTransactions


@click.group("txn")
def txn() -> None:
    """Transactions of a log: each version of a txnAppId, or batch of a streaming query, is published once."""


@txn.command("list")
@click.argument("name")
@access()
@options.as_json
def list_transactions(name: str, access: Access, as_json: bool) -> None:
    """List every application and query that has published, the most recently used first."""
    with access.log(name) as log:
        log.head(check_password=False)
        records = sorted(log.transactions(), key=lambda record: -record.last_used_ms)
    if as_json:
        for record in records:
            output.print_json(_as_object(record))
        return
    output.print_table(
        ("application or query", "last version ", "rows ", "remembered ", "last used"),
        [
            (
                record.app_id,
                record.versions[-1].version if record.versions else "-",
                f"{record.versions[-1].rows:,}" if record.versions else "-",
                len(record.versions),
                output.moment(record.last_used_ms),
            )
            for record in records
        ],
    )


@txn.command("show")
@click.argument("name")
@click.argument("app_id")
@access()
@options.as_json
def show(name: str, app_id: str, access: Access, as_json: bool) -> None:
    """Show the remembered versions of one application (txnAppId) or query (its id), at most 128."""
    with access.log(name) as log:
        log.head(check_password=False)
        record = log.transactions_of(app_id)
        if record is None:
            raise _unknown(name, app_id, [each.app_id for each in log.transactions()])
    if as_json:
        versions = [{"version": v.version, "rows": v.rows, "timeMs": v.time_ms} for v in record.versions]
        output.print_json({**_as_object(record), "versions": versions})
        return
    output.print_table(
        ("version ", "rows ", "published"),
        [(v.version, f"{v.rows:,}", output.moment(v.time_ms)) for v in record.versions],
    )


@txn.command("forget")
@click.argument("name")
@click.argument("app_id")
@click.option("--force", is_flag=True, help="Really forget; without it the command only says what that would mean.")
@options.dry_run
@access(password=True)
@options.as_json
def forget(name: str, app_id: str, force: bool, dry_run: bool, access: Access, as_json: bool) -> None:
    """Forget an application or query, so that its versions may begin anew.

    If a job then publishes an old version again, the log may have its rows twice.
    """
    with access.log(name) as log:
        log.head()
        record = log.transactions_of(app_id)
        if record is None:
            raise _unknown(name, app_id, [each.app_id for each in log.transactions()])
        if not force and not dry_run:
            raise InvalidArgumentError(
                "this would forget which versions were published, and a version published again would be there twice",
                value=f"{app_id}, last version {record.versions[-1].version if record.versions else '-'}",
                remedy="stop its jobs or queries for good, then add --force",
            )
        if not dry_run:
            record = log.forget_transactions(app_id) or record
    done = {**_as_object(record), "forgotten": not dry_run, "dryRun": dry_run}
    output.print_result(as_json, done, f"log {name}: {'would forget' if dry_run else 'forgot'} {app_id}")


def _unknown(name: str, app_id: str, known: list[str]) -> InvalidArgumentError:
    from difflib import get_close_matches

    near = get_close_matches(app_id, known, n=3, cutoff=0.0)
    return InvalidArgumentError(
        f"log {name} remembers nothing of this application or query",
        value=app_id,
        remedy=f"it knows: {', '.join(near)}" if near else "it knows none at all",
    )


def _as_object(record: LogTransactions) -> dict[str, object]:
    last = record.versions[-1] if record.versions else None
    return {
        "appId": record.app_id,
        "lastVersion": None if last is None else last.version,
        "rows": None if last is None else last.rows,
        "remembered": len(record.versions),
        "lastUsedMs": record.last_used_ms,
    }
