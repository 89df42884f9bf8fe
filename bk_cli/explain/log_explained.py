# SPDX-License-Identifier: Apache-2.0
"""``bk log explain``: gathers the head of a log and its newest ledgers, and prints the findings of
``log_findings.py``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bk_cli import output
from bk_cli.access import Access
from bk_cli.explain.findings import as_objects, print_findings
from bk_cli.explain.ledger_findings import LedgerSeen
from bk_cli.explain.ledger_seen import look
from bk_cli.explain.log_findings import LogSeen, explain_log, readable_to
from bk_core.errors import NoSuchLedgerError
from bk_core.logs.store import LogStore
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerId

EXTENTS_MAX = 6
"""The maximum number of newest extents that are examined, open ones included."""


def show_log(access: Access, name: str, *, as_json: bool) -> None:
    """Print the state of a log and the findings. Raises NoSuchLogError."""
    with access.store() as store:
        seen = see_log(access, store, name)
    findings, head = explain_log(seen), seen.head
    if as_json:
        output.print_json(
            {
                "log": name,
                "epoch": head.epoch,
                "startOffset": head.start_offset,
                "nextOffset": head.next_offset,
                "readableTo": readable_to(seen),
                "openLedgers": [extent.ledger_id for extent in head.open_extents],
                "ledgersLookedAt": sorted(seen.ledgers),
                "findings": as_objects(findings),
            }
        )
        return
    output.print_line(f"log {name}: sealed up to offset {head.next_offset}, {len(head.open_extents)} open ledgers")
    print_findings(findings)


def see_log(access: Access, store: MetadataStore, name: str) -> LogSeen:
    head = LogStore(store, name).read(sync=True).value
    extents = head.tail[-EXTENTS_MAX:]
    with ThreadPoolExecutor(EXTENTS_MAX) as beside:
        ledgers = list(beside.map(lambda extent: _look(access, store, extent.ledger_id), extents))
    newest = {extent.ledger_id: ledger for extent, ledger in zip(extents, ledgers, strict=True)}
    return LogSeen(name, head, newest, tuple(sorted(store.writable_bookies())))


def _look(access: Access, store: MetadataStore, ledger_id: LedgerId) -> LedgerSeen | None:
    try:
        return look(access, store, ledger_id)
    except NoSuchLedgerError:
        return None
