# SPDX-License-Identifier: Apache-2.0
"""``bk ledger explain``: prints the findings that ``ledger_findings.py`` makes of what ``ledger_seen.py`` gathers."""

from __future__ import annotations

from bk_cli import output
from bk_cli.access import Access
from bk_cli.explain.findings import as_objects, print_findings, spans
from bk_cli.explain.ledger_findings import CopyPart, CopySeen, LedgerSeen, explain
from bk_cli.explain.ledger_seen import see_ledger
from bk_core.model import BookieId, EntryId, Fragment
from bk_core.wire.lane.evidence import ReadTrailer
from bookie_server.autorecovery.suspects import own_parts

COLUMNS = ("from entry ", "bookie", "state", "fenced", "lacks")


def show_ledger(access: Access, ledger_id: int, *, as_json: bool) -> None:
    """Print the state of a ledger and the findings. Raises what :func:`see_ledger` raises."""
    seen = see_ledger(access, ledger_id)
    findings = explain(seen)
    if as_json:
        output.print_json({**_object(seen), "findings": as_objects(findings)})
        return
    record = seen.record
    quorums = f"{record.ensemble_size}/{record.write_quorum_size}/{record.ack_quorum_size}"
    output.print_line(
        f"ledger {ledger_id}: {record.state.name}, E/Qw/Qa {quorums}, made {output.moment(seen.created_ms)}, "
        f"its record written {output.moment(seen.written_ms)}"
    )
    print_findings(findings)
    output.print_line()
    shown = record.fragments[seen.fragments_left_out :]
    output.print_table(COLUMNS, [_row(seen, fragment, bookie) for fragment in shown for bookie in fragment.ensemble])


def _row(seen: LedgerSeen, fragment: Fragment, bookie: BookieId) -> tuple[object, ...]:
    copy = seen.copies.get(bookie, CopySeen())
    state = seen.states[bookie] + (f", {copy.trouble}" if copy.trouble else "")
    lacks = "?" if seen.in_words(bookie) else _lacks(seen, fragment, bookie, copy)
    return fragment.first_entry_id, bookie, state, "yes" if copy.fenced else "-", lacks


def _lacks(seen: LedgerSeen, fragment: Fragment, bookie: BookieId, copy: CopySeen) -> str:
    part = copy.parts.get(fragment.first_entry_id)
    own = next((each for each in own_parts(seen.record, bookie) if each.first == fragment.first_entry_id), None)
    if part is None or own is None:
        return "not asked" if own is not None else "nothing: it has no entries"
    gaps = own.lacking(ReadTrailer(own.asked_last, part.absent, part.unknown))
    reasons = sorted({gap.reason.name for gap in gaps if gap.reason})
    lacks = (spans([(gap.first, gap.last) for gap in gaps]) or "nothing") + (
        f" ({', '.join(reasons)})" if reasons else ""
    )
    return lacks if own.last is not None else f"{lacks}; its last entry is {copy.last_entry}"


def _object(seen: LedgerSeen) -> dict[str, object]:
    record = seen.record
    return {
        "ledgerId": seen.ledger_id,
        "state": record.state.name,
        "ensembleSize": record.ensemble_size,
        "writeQuorumSize": record.write_quorum_size,
        "ackQuorumSize": record.ack_quorum_size,
        "lastEntryId": record.last_entry_id if record.is_closed else None,
        "lac": seen.lac,
        "createdMs": seen.created_ms,
        "writtenMs": seen.written_ms,
        "underReplicated": list(seen.mark.missing) if seen.mark is not None else [],
        "repairedBy": seen.repaired_by,
        "fragments": [
            {"firstEntryId": each.first_entry_id, "copies": [_copy(seen, each, bookie) for bookie in each.ensemble]}
            for each in record.fragments[seen.fragments_left_out :]
        ],
    }


def _copy(seen: LedgerSeen, fragment: Fragment, bookie: BookieId) -> dict[str, object]:
    copy = seen.copies.get(bookie, CopySeen())
    part = copy.parts.get(fragment.first_entry_id, CopyPart(()))
    unknown = [{"first": gap.first, "last": gap.last, "reason": gap.reason.name} for gap in part.unknown]
    return {
        "bookieId": bookie,
        "state": seen.states[bookie],
        "trouble": seen.in_words(bookie),
        "fenced": copy.fenced,
        "lastEntryId": copy.last_entry,
        "asked": [list(each) for each in part.asked],
        "absent": [_range(gap.first, gap.last) for gap in part.absent],
        "unknown": unknown,
    }


def _range(first: EntryId, last: EntryId) -> list[EntryId]:
    return [first, last]
