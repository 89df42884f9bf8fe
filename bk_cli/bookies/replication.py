# SPDX-License-Identifier: Apache-2.0
"""``bk replication`` and ``bk autorecovery``: show lost copies and what blocks their repair, and run the workers that
repair them."""

from __future__ import annotations

import os
import socket

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core.cluster.replication import mark_object, since_ms
from bk_core.cluster.replication import status as cluster_status
from bk_core.cluster.replication import unreadable as cannot_be_read
from bk_core.observe import log_level

LEDGERS_SHOWN = 20
"""The maximum number of ledgers that are listed without ``--all``."""


@click.group()
def replication() -> None:
    """Ledgers that lack copies: their number, and the workers that repair them, Apache's too."""


@replication.command("status")
@click.option("--all", "all_ledgers", is_flag=True, help=f"List every ledger, not only {LEDGERS_SHOWN}.")
@options.as_json
@access()
def status(access: Access, all_ledgers: bool, as_json: bool) -> None:
    """Show the marked ledgers, the bookies they miss, and the workers that repair them."""
    with access.store() as store:
        store.sync()
        facts = cluster_status(store)
        locks = store.underreplication_locks()
        count, rows = 0, list[tuple[object, ...]]()
        for ledger_id, missing in store.list_underreplicated():
            count += 1
            if not (all_ledgers or as_json or len(rows) < LEDGERS_SHOWN):
                continue
            if as_json:
                output.print_json(mark_object(store, ledger_id, missing, locks))
            else:
                since = output.moment(since_ms(store, ledger_id))
                rows.append((ledger_id, ", ".join(missing), since, locks.get(ledger_id, "")))
        unreadable = store.unreadable.nodes()
        facts |= cannot_be_read(store)
    for node in unreadable:
        output.print_note(f"{node}; {node.remedy}")
    if as_json:
        output.print_json({**facts, "underReplicated": count, "underRepair": len(locks)})
        return
    delay_s = facts["lostBookieDelayS"]
    output.print_facts(
        {
            "replication": "enabled" if facts["enabled"] else "paused (bk replication resume)",
            "auditor": facts["auditor"] or "none: run bk autorecovery",
            "delay before a bookie is lost": "each auditor's own" if delay_s is None else f"{delay_s} s",
            "ledgers that lack copies": count,
            "under repair now": len(locks),
            **({"nodes that cannot be read": len(unreadable)} if unreadable else {}),
        }
    )
    if rows:
        output.print_table(("ledger", "missing", "since", "repaired by"), rows)
    if count > len(rows):
        output.print_note(f"{count - len(rows)} more: --all")


@replication.command("pause")
@access()
def pause(access: Access) -> None:
    """Stop all auditors and workers of the cluster, Apache's too, from beginning new work. Work under way completes."""
    with access.store() as store:
        store.enable_replication(False)
    output.print_line("replication is paused; lost copies are not restored until: bk replication resume")


@replication.command("resume")
@access()
def resume(access: Access) -> None:
    """Let auditors and workers work again."""
    with access.store() as store:
        store.enable_replication(True)
    output.print_line("replication is enabled")


@replication.command("delay")
@click.argument("time_ms", metavar="TIME", type=options.TIME)
@access()
def delay(access: Access, time_ms: int) -> None:
    """Set for the whole cluster how long a bookie may be away before its copies are restored elsewhere (such as
    10m)."""
    with access.store() as store:
        store.set_lost_bookie_recovery_delay_s(time_ms // 1000)
    output.print_line(f"a bookie counts as lost after {time_ms // 1000} s")


@click.command()
@click.option("--rate", type=options.SIZE, default="100m", help="Bytes a second it reads.")
@click.option("--repairs", type=click.IntRange(min=1), default=8, help="Ledgers that are repaired at once.")
@click.option(
    "--lost-bookie-delay",
    "delay_ms",
    type=options.TIME,
    default="60s",
    help="How long a bookie may be away; `bk replication delay` overrides it.",
)
@click.option(
    "--open-ledger-grace",
    "grace_ms",
    type=options.TIME,
    default="30s",
    help="How long the writer of an open ledger has to replace a lost bookie itself; then it is fenced.",
)
@click.option("--name", metavar="TEXT", help="Its name as an auditor and in locks.  [default: this host's name]")
@access()
def autorecovery(access: Access, rate: int, repairs: int, delay_ms: int, grace_ms: int, name: str | None) -> int:
    """Restore lost copies, until SIGTERM or Ctrl-C. Run it on a few hosts: one of them audits, all repair."""
    from bookie_server.autorecovery.main import run
    from bookie_server.autorecovery.settings import AutoRecoveryConfig

    log_level.log_as_server()
    config = AutoRecoveryConfig(
        replication_bytes_per_s=rate,
        repairs_max=repairs,
        lost_bookie_delay_s=delay_ms / 1000,
        open_ledger_grace_s=grace_ms / 1000,
    )
    owner = name or f"{socket.gethostname()}:{os.getpid()}"
    return run(access.connect, owner, config, lambda: output.print_line(f"ready {owner}"))
