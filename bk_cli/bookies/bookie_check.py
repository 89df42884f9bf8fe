# SPDX-License-Identifier: Apache-2.0
"""``bk bookie check`` and ``bk bookie inspect``: describe the data directory of a stopped bookie."""

from __future__ import annotations

from pathlib import Path

from bk_cli import exit_codes, output
from bookie_server.storage.check.check import examine
from bookie_server.storage.check.findings import DirectoryFindings, LedgerFindings, SegmentFindings

LEDGERS_SHOWN_MAX = 1000
"""The maximum number of damaged ledgers in the table for people. ``--json`` lists all of them."""


def check(path: Path, *, repair: bool, as_json: bool) -> int:
    """Verify everything and print what is wrong. Return 0 if nothing is wrong, otherwise 1."""
    with output.progress("segments") as advance:
        found = examine(str(path), verify=True, repair=repair, on_segment=lambda *_: advance(1))
    if as_json:
        _print_json(found, everything=False)
    else:
        _print_facts(found)
        _print_problems(found)
    return exit_codes.OTHER if found.is_damaged else 0


def inspect(path: Path, *, as_json: bool) -> int:
    """Print the segments and ledgers of the directory."""
    found = examine(str(path), verify=False)
    if as_json:
        _print_json(found, everything=True)
        return 0
    _print_facts(found)
    output.print_line()
    output.print_table(
        ("segment", "state", "size ", "frames ", "ledgers ", "live ", "remark"),
        [
            (
                segment.generation, segment.state, output.in_words(segment.size), segment.frames, segment.ledgers,
                output.in_words(segment.live_bytes), _remark(segment),
            )
            for segment in found.segments
        ],
    )  # fmt: skip
    output.print_line()
    ledgers = sorted(found.ledgers.values(), key=lambda ledger: ledger.ledger_id)
    output.print_table(
        ("ledger", "entries", "bytes ", "state"),
        [
            (ledger.ledger_id, _entries(ledger), output.in_words(ledger.frame_bytes), _state(ledger))
            for ledger in ledgers[:LEDGERS_SHOWN_MAX]
        ],
    )
    if len(ledgers) > LEDGERS_SHOWN_MAX:
        output.print_note(f"{len(ledgers) - LEDGERS_SHOWN_MAX} more ledgers: --json shows all")
    _print_problems(found)
    return 0


def _print_facts(found: DirectoryFindings) -> None:
    identity = found.identity
    states = [segment.state for segment in found.segments]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, reverse=True)))
    fenced = sum(ledger.is_fenced for ledger in found.ledgers.values())
    facts: dict[str, object] = {"data directory": found.path}
    if identity is not None:
        facts["bookie"] = identity.bookie_id
        facts["cluster"] = identity.cluster
        facts["incarnation"] = f"{identity.incarnation}, started {identity.boot_count} times"
    facts["segments"] = f"{counts or 'none'}; {found.free_segments} unused"
    facts["checkpoint"] = found.checkpoint or "none yet"
    facts["live bytes"] = output.in_words(sum(segment.live_bytes for segment in found.segments))
    facts["ledgers"] = (
        f"{len(found.ledgers)}, of which {fenced} fenced, {found.in_limbo} in limbo; {found.deleted_ledgers} deleted"
    )
    facts["verified"] = "every frame" if found.verified else "indexes only (bk bookie check reads every frame)"
    output.print_facts(facts)


def _print_problems(found: DirectoryFindings) -> None:
    lines = [*found.damage, *(f"every ledger at the next start: {line}" for line in found.limbo)]
    for segment in found.segments:
        lines += [f"{segment.name}: {line}" for line in segment.damage]
        if segment.index_problem:
            done = " (written anew)" if segment.repaired else ""
            lines.append(f"{segment.name}: its index cannot be used: {segment.index_problem}{done}")
    lost = [
        f"ledger {one.ledger_id}: entries {one.first} to {one.last}, in {one.segment}"
        for one in sorted(found.lost, key=lambda one: (one.ledger_id, one.first))
    ]
    notes = [*found.notes, *(f"{segment.name}: {line}" for segment in found.segments for line in segment.notes)]
    _print_section("Damage", lines)
    _print_section("Entries whose copy here is damaged, all or some of each range", lost)
    _print_section("To know", notes)
    _print_section("How to go on", found.remedies())


def _print_section(title: str, lines: list[str]) -> None:
    if lines:
        output.print_line()
        output.print_line(title)
        for line in lines:
            output.print_line(f"  {line}")


def _remark(segment: SegmentFindings) -> str:
    if segment.index_problem:
        return "index unusable"
    return "damaged" if segment.damage else ""


def _entries(ledger: LedgerFindings) -> str:
    return "none" if ledger.first < 0 else f"{ledger.first} to {ledger.last}"


def _state(ledger: LedgerFindings) -> str:
    words = [word for word in ("fenced" if ledger.is_fenced else "", ledger.trouble) if word]
    return ", ".join([*words, *(["damaged copies"] if ledger.lost else [])]) or "healthy"


def _print_json(found: DirectoryFindings, *, everything: bool) -> None:
    """Print a line for the directory, one for each segment, and one for each damaged ledger. With ``everything``, print
    one for each ledger."""
    identity = found.identity
    output.print_json(
        {
            "kind": "directory",
            "path": found.path,
            "bookieId": identity.bookie_id if identity else None,
            "cluster": identity.cluster if identity else None,
            "incarnation": identity.incarnation if identity else None,
            "bootCount": identity.boot_count if identity else None,
            "checkpoint": found.checkpoint,
            "unusedSegments": found.free_segments,
            "ledgers": len(found.ledgers),
            "ledgersInLimbo": found.in_limbo,
            "ledgersDeleted": found.deleted_ledgers,
            "verified": found.verified,
            "damaged": found.is_damaged,
            "damage": found.damage,
            "limboAtNextStart": found.limbo,
            "notes": found.notes,
            "remedies": found.remedies(),
        }
    )
    for segment in found.segments:
        output.print_json(
            {
                "kind": "segment",
                "generation": segment.generation,
                "state": segment.state,
                "bytes": segment.size,
                "frames": segment.frames,
                "ledgers": segment.ledgers,
                "frameBytes": segment.frame_bytes,
                "liveBytes": segment.live_bytes,
                "damage": segment.damage,
                "indexProblem": segment.index_problem,
                "repaired": segment.repaired,
                "notes": segment.notes,
            }
        )
    for ledger in found.ledgers.values():
        if everything or ledger.lost:
            output.print_json(
                {
                    "kind": "ledger",
                    "ledgerId": ledger.ledger_id,
                    "firstEntryId": ledger.first,
                    "lastEntryId": ledger.last,
                    "frameBytes": ledger.frame_bytes,
                    "fenced": ledger.is_fenced,
                    "trouble": ledger.trouble,
                    "damaged": [
                        {"firstEntryId": one.first, "lastEntryId": one.last, "segment": one.segment}
                        for one in ledger.lost
                    ],
                }
            )
