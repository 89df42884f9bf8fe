# SPDX-License-Identifier: Apache-2.0
"""Makes the verdict on a cluster, which lists its problems with a remedy for each. It does no I/O.

The facts are the objects that ``bk bookie list --json`` and ``bk replication status --json`` print. A bookie may also
have ``numbers`` from its admin port (``full``, ``notReady``, ``damage``). A missing field counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bk_core.cluster.finding import Finding, Weight

COPIES = 3
"""The number of bookies that a ledger needs by default (RULES E2)."""
FULL = 0.85
"""The used part of a bookie's space from which on the verdict warns that the bookie is nearly full."""
NAMED = 3
"""The maximum number of things that a sentence names one by one."""

Object = Mapping[str, Any]


_REPAIR = "#/repair"
"""The address of the part of the web page that shows the ledgers without enough copies."""


def verdict(bookies: Sequence[Object], replication: Object) -> dict[str, object]:
    """Return the verdict as an object. ``well`` says whether there is no problem, ``sentence`` sums up, and
    ``problems`` lists the findings, the worst first."""
    found = sorted(_problems(bookies, replication), key=lambda each: each.weight is not Weight.PROBLEM)
    return {"well": not found, "sentence": _sentence(found, bookies), "problems": [_as_object(each) for each in found]}


def unavailable(why: str) -> dict[str, object]:
    """Return the verdict for a metadata store that does not answer."""
    do = "Check ZooKeeper: clients cannot open or create ledgers without it. Writing to open ledgers continues."
    short = "the metadata service does not answer"
    found = Finding(Weight.PROBLEM, f"The metadata service does not answer: {why}", do, short=short)
    return {"well": False, "sentence": f"Not well: {short}.", "problems": [_as_object(found)]}


def _as_object(found: Finding) -> dict[str, str]:
    """Return the finding as an object for the web page. ``rank`` is ``bad``, or ``warn`` for a note. ``bookie`` or
    ``place`` says which part of the page shows more."""
    is_place = found.where == _REPAIR
    return {
        "rank": "bad" if found.weight is Weight.PROBLEM else "warn",
        "short": found.short,
        "what": found.what,
        "do": found.remedy,
        "bookie": "" if is_place else found.where,
        "place": found.where if is_place else "",
    }


def _sentence(found: Sequence[Finding], bookies: Sequence[Object]) -> str:
    if not found:
        count = len(bookies)
        return f"All is well: {_count(count, 'bookie')} {_are(count)} up, and no ledger lacks a copy."
    named = [each.short for each in found[:NAMED]]
    if len(found) > NAMED:
        named.append(f"{_count(len(found) - NAMED, 'thing')} more")
    begin, last = ", ".join(named[:-1]), named[-1]
    return f"Not well: {begin} and {last}." if begin else f"Not well: {last}."


def _problems(bookies: Sequence[Object], replication: Object) -> Iterator[Finding]:
    yield from _of_the_cluster(bookies)
    for bookie in bookies:
        if bookie["state"] in ("writable", "read-only"):
            yield from _of_registration(bookie, replication)
            yield from _of_numbers(bookie, replication)
        elif bookie.get("numbers"):  # the bookie runs: it starts or stops
            yield from _of_numbers(bookie, replication)
        else:
            yield from _of_registration(bookie, replication)
    yield from _of_replication(replication)
    yield from _of_metadata(replication)


def _of_the_cluster(bookies: Sequence[Object]) -> Iterator[Finding]:
    writable = sum(each["state"] == "writable" for each in bookies)
    if writable < COPIES:
        yield Finding(
            Weight.PROBLEM,
            f"{_count(writable, 'bookie')} of {len(bookies)} {'takes' if writable == 1 else 'take'} new entries: "
            f"ledgers on {COPIES} bookies cannot be made, and writers cannot replace one that fails.",
            "Start bookies: those that are down, or new ones (bk bookie run).",
            short=f"only {_count(writable, 'bookie')} {'takes' if writable == 1 else 'take'} entries",
        )


def _of_registration(bookie: Object, replication: Object) -> Iterator[Finding]:
    name, state, order = bookie["bookieId"], bookie["state"], bookie.get("order")
    if order == "removed":
        return
    if state == "away" and order == "drain":
        do = f"If it was drained: bk bookie remove {name}. If not, start it again: the drain needs it."
        yield Finding(
            Weight.NOTE, f"Bookie {name} was ordered to leave.", do, name, short=f"{name} is down while it drains"
        )
    elif state == "away":
        do = f"Start it again with its own command, bk bookie run. {_meanwhile(replication)}"
        yield Finding(
            Weight.PROBLEM,
            f"Bookie {name} belongs to the cluster and is not registered.",
            do,
            name,
            short=f"{name} is down",
        )
    elif state == "unreadable":
        what = f"Bookie {name} is registered, and its registration cannot be read: clients do not use it."
        yield Finding(
            Weight.PROBLEM,
            what,
            "Restart it: it registers again.",
            name,
            short=f"{name} has an unreadable registration",
        )
    elif state == "gone":
        what = f"Ledgers are marked as lacking copies on {name}, which is no bookie of this cluster any more."
        yield Finding(Weight.NOTE, what, _meanwhile(replication), name, short=f"{name} is gone")
    elif bookie.get("error"):
        do = "Look at its log and at /ready of its admin port; restart it if it hangs. Clients go round it meanwhile."
        yield Finding(
            Weight.PROBLEM, f"Bookie {name} is registered: {bookie['error']}", do, name, short=f"{name} does not answer"
        )
    elif state == "read-only" and not order:
        why = (bookie.get("numbers") or {}).get("readOnlyWhy") or "most often its disk is full"
        do = f"Give its disk room, or delete ledgers (bk ledger list --bookie {name}). It takes entries by itself then."
        yield Finding(
            Weight.NOTE, f"Bookie {name} takes no new entries: {why}.", do, name, short=f"{name} is read-only"
        )


def _by_whom(replication: Object) -> str:
    """Return why no repairs are made, with the remedy, or an empty string if nothing prevents them."""
    if not replication.get("enabled", True):
        return "It is paused (bk replication resume). "
    return "" if replication.get("auditor") else "Nobody runs it: start bk autorecovery on two or three hosts. "


def _meanwhile(replication: Object) -> str:
    if not replication.get("enabled", True):
        return "Its copies are not made elsewhere: repair is paused (bk replication resume)."
    if not replication.get("auditor"):
        return "Nobody makes its copies elsewhere: start bk autorecovery on two or three hosts."
    delay_s = replication.get("lostBookieDelayS")
    return f"Its copies are made elsewhere if it stays away{'' if delay_s is None else f' for {delay_s} s'}."


def _of_numbers(bookie: Object, replication: Object) -> Iterator[Finding]:
    name, numbers = bookie["bookieId"], bookie.get("numbers") or {}
    if numbers.get("notReady") and not bookie.get("error"):
        what = f"Bookie {name} is not ready: {numbers['notReady']}."
        yield Finding(
            Weight.PROBLEM, what, "Look at its log. Do not restart another one now.", name, short=f"{name} is not ready"
        )
    if numbers.get("damage"):
        what = f"Bookie {name} has met damaged or unreadable data {_count(numbers['damage'], 'time')} since its start."
        do = "Readers take other copies. Look at the disk (SMART, the kernel's log) and at the bookie's log."
        yield Finding(Weight.PROBLEM, what, do, name, short=f"{name} has damage")
    lacks = sum(_told(bookie, name) for name in ("limboLedgers", "damagedLedgers"))
    if lacks:
        what = f"Copies of {_count(lacks, 'ledger')} on bookie {name} are incomplete, by damage or limbo."
        do = f"Auto-recovery makes them whole. {_by_whom(replication)}/lacking of its admin port lists them."
        yield Finding(Weight.NOTE, what, do, name, short=f"{name} has incomplete copies")
    full = used_share(bookie)
    if full is not None and full >= FULL and bookie["state"] == "writable":
        do = "Make room before it turns read-only: delete or trim what is not needed, add bookies, or a larger disk."
        yield Finding(
            Weight.NOTE, f"The disk of bookie {name} is {full:.0%} full.", do, name, short=f"{name} is nearly full"
        )


def _told(bookie: Object, name: str) -> int:
    """Return a count that the bookie reported over its lane or, if it did not, at its admin port."""
    value = bookie.get(name)
    return int((bookie.get("numbers") or {}).get(name) or 0) if value is None else value


def used_share(bookie: Object) -> float | None:
    total, free = bookie.get("totalBytes"), bookie.get("freeBytes")
    return None if not total or free is None else 1 - free / total


def _of_replication(replication: Object) -> Iterator[Finding]:
    count = replication.get("underReplicated", 0)
    if not count:
        return
    more = "" if replication.get("allMarksCounted", True) else "more than "
    short = f"{more}{_count(count, 'ledger')} {'lacks' if count == 1 else 'lack'} a copy"
    repairs = replication.get("underRepair", 0)
    if not replication.get("enabled", True):
        weight, do = Weight.PROBLEM, "Repair is paused. To let it go on: bk replication resume."
    elif not replication.get("auditor"):
        weight, do = (
            Weight.PROBLEM,
            "Nobody repairs: start bk autorecovery on two or three hosts, or set auto_recovery in bookies.",
        )
    elif repairs:
        weight, do = (
            Weight.NOTE,
            f"{_count(repairs, 'repair')} {_are(repairs)} under way. Nothing to do but watch the count.",
        )
    else:
        weight, do = (
            Weight.NOTE,
            "Auto-recovery is there and has none at work: it waits, or has no bookie to copy to (its log).",
        )
    yield Finding(weight, f"{short[0].upper()}{short[1:]}.", do, _REPAIR, short=short)


def _of_metadata(replication: Object) -> Iterator[Finding]:
    nodes, count = replication.get("unreadable", ()), replication.get("unreadableCount", 0)
    if not count:
        return
    named = "; ".join(f"the {each['kind']} at {each['path']} ({each['why']})" for each in nodes[:NAMED])
    more = f"; and {count - NAMED:,} more" if count > NAMED else ""
    short = f"{_count(count, 'node')} of the metadata store cannot be read"
    yield Finding(
        Weight.PROBLEM,
        f"{short}: {named}{more}. Everything else continues.",
        f"bk doctor says what to do. {_remedy(nodes)}",
        short=short,
    )


def _remedy(nodes: Sequence[Object]) -> str:
    remedy = str(nodes[0].get("remedy", "")) if nodes else ""
    return f"{remedy[0].upper()}{remedy[1:]}." if remedy else ""


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
