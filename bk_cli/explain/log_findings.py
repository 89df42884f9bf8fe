# SPDX-License-Identifier: Apache-2.0
"""Explains the state of a named log: turns what ``log_explained.py`` gathered into findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bk_cli.explain.ledger_findings import LedgerSeen, explain, recovery_verdict
from bk_core.cluster.finding import Finding, Weight, fine, note, problem
from bk_core.logs.model.head import SCHEMAS_MAX, Extent, LogHead
from bk_core.model import BookieId, EntryId, LedgerId


@dataclass(frozen=True, slots=True)
class LogSeen:
    """The facts about a log. ``ledgers`` has the ledgers of the newest extents; a deleted ledger is None. ``writable``
    are the bookies that take entries."""

    name: str
    head: LogHead
    ledgers: Mapping[LedgerId, LedgerSeen | None]
    writable: tuple[BookieId, ...]


def explain_log(seen: LogSeen) -> list[Finding]:
    """Return the findings about a log, the worst first."""
    found = [*_leader(seen), *_appends(seen), *_reads(seen), *_offsets(seen)]
    return sorted(found, key=lambda each: ("problem", "note", "fine").index(each.weight.value))


def readable_to(seen: LogSeen) -> EntryId:
    """Return the offset after the last entry that is known to be confirmed. A reader asks a quorum and may find a later
    end."""
    opened = seen.head.open_extents
    ledger = seen.ledgers.get(opened[0].ledger_id) if opened else None
    if ledger is None:
        return seen.head.next_offset
    end = ledger.record.last_entry_id if ledger.record.is_closed else ledger.lac
    return opened[0].base_offset + max(0, end + 1 - opened[0].first_entry_id)


def _leader(seen: LogSeen) -> Iterator[Finding]:
    opened = seen.head.open_extents
    if not opened:
        yield fine("it has no leader: it grows by publishes alone")
        return
    for extent in opened:
        ledger = seen.ledgers.get(extent.ledger_id)
        if ledger is None:
            yield problem(
                f"its open ledger {extent.ledger_id} is deleted: its last entries are lost",
                "publish with takeover, or start a new leader: both end the log at what is there",
            )
            continue
        yield _of_open(seen, extent, ledger)


def _of_open(seen: LogSeen, extent: Extent, ledger: LedgerSeen) -> Finding:
    ledger_id = extent.ledger_id
    worst = explain(ledger)[0]
    lost = any(copy.fenced for copy in ledger.copies.values()) or ledger.record.state.name != "OPEN"
    if not lost:
        return fine(
            f"a leader writes ledger {ledger_id}, open since offset {extent.base_offset}, confirmed to offset "
            f"{readable_to(seen) - 1}; the log keeps no name of it. A publish is refused (BK_LOG_HAS_LEADER) unless it "
            "takes over"
        )
    if not ledger.record.is_closed and recovery_verdict(ledger).stuck:
        return problem(
            f"its leader was fenced, and no takeover can succeed: ledger {ledger_id} cannot be recovered: {worst.what}",
            worst.remedy,
        )
    return note(f"its leader was fenced or ended: the next leader or publish with takeover recovers ledger {ledger_id}")


def _appends(seen: LogSeen) -> Iterator[Finding]:
    newest = seen.head.tail[-1] if seen.head.tail else None
    size = newest.ensemble_size if newest is not None else 0
    ledger = seen.ledgers.get(newest.ledger_id) if newest is not None else None
    size = size or (ledger.record.ensemble_size if ledger is not None else 0)
    if len(seen.writable) < size:
        yield problem(
            f"an append that needs a new ledger fails: its last one has {size} bookies, and {len(seen.writable)} are "
            f"writable ({', '.join(seen.writable) or 'none'})",
            "bk bookie list; start more bookies, or make room on those that are read-only",
        )
    if len(seen.head.schemas) >= SCHEMAS_MAX:
        yield note(f"it has all of its {SCHEMAS_MAX} schemas: an append with another one is refused")


def _reads(seen: LogSeen) -> Iterator[Finding]:
    for extent in seen.head.sealed_tail:
        if extent.ledger_id not in seen.ledgers:
            continue
        ledger = seen.ledgers[extent.ledger_id]
        where = f"offsets {extent.base_offset} to {extent.next_offset - 1}"
        if ledger is None:
            what = f"{where} cannot be read: ledger {extent.ledger_id} is deleted"
            yield problem(what, f"bk log trim {seen.name} --before {extent.next_offset} lets the log begin behind them")
            continue
        for finding in explain(ledger):
            if finding.weight is Weight.PROBLEM:
                yield problem(f"{where}, ledger {extent.ledger_id}: {finding.what}", finding.remedy)
            elif finding.weight is Weight.NOTE:
                yield note(f"{where}, ledger {extent.ledger_id}: {finding.what}", finding.remedy)


def _offsets(seen: LogSeen) -> Iterator[Finding]:
    head, end = seen.head, readable_to(seen)
    there = (
        f"offsets {head.start_offset} to {end - 1} can be read" if end > head.start_offset else "nothing can be read"
    )
    gone = f"; those below {head.start_offset} are trimmed" if head.start_offset else ""
    again = f"; it was overwritten {head.epoch} times" if head.epoch else ""
    yield fine(f"{there}{gone}{again}")
    looked_at = [extent for extent in head.tail if extent.ledger_id in seen.ledgers]
    first = min((extent.base_offset for extent in looked_at if not extent.is_open), default=head.next_offset)
    if first > head.start_offset:
        yield note(f"ledgers below offset {first} were not looked at", f"bk log show {seen.name} --extents lists them")
