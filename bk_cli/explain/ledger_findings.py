# SPDX-License-Identifier: Apache-2.0
"""Explains the state of a ledger: turns the facts that ``ledger_seen.py`` gathered into findings. Pure.

It repeats the decisions of recovery (``bk_core/protocol/recovery.py``) with the answers of bookies that are not fenced.
An entry exists if one bookie has it. An entry was never acknowledged if the bookies of its write set that do not have
it are too many for an ack quorum. If neither is known of an entry, a recovery cannot finish.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bk_cli.explain.findings import spans
from bk_core import quorum
from bk_core.cluster.finding import Finding, fine, note, problem
from bk_core.metadata.records import UnderreplicationMark
from bk_core.metadata.unreadable import UnreadableNode
from bk_core.model import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState
from bk_core.units import roughly_in_words
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.autorecovery.suspects import own_parts

WALK_MAX = 20_000
"""The maximum number of entries after the LAC that are judged as a recovery would judge them."""
EDGES_MAX = 5_000
"""The maximum number of entries of a fragment that are examined. Only entries at which an answer of a bookie changes
are examined."""

FOUND, ABSENT, UNASKED = "found", "absent", "not asked"
UP = ("writable", "read-only")


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A bookie's answer about the entries of one fragment. The bookie was asked about the ranges ``asked``. It does not
    have the entries in ``absent``, and does not know whether it has those in ``unknown``."""

    asked: tuple[tuple[EntryId, EntryId], ...]
    absent: tuple[EntryRange, ...] = ()
    unknown: tuple[EntryRange, ...] = ()

    def of(self, entry: EntryId) -> str:
        """Return FOUND, ABSENT, UNASKED, or the reason why the bookie does not know whether it has the entry."""
        if not any(low <= entry <= high for low, high in self.asked):
            return UNASKED
        gap = _covering(self.unknown, entry)
        if gap is not None:
            return gap.reason.name.lower()
        return ABSENT if _covering(self.absent, entry) is not None else FOUND

    def edges(self) -> Iterator[EntryId]:
        """Yield the entries at which the answer may change."""
        for low, high in self.asked:
            yield low
            yield high + 1
        for gap in (*self.absent, *self.unknown):
            yield gap.first
            yield gap.last + 1


@dataclass(frozen=True, slots=True)
class CopySeen:
    """The answers of one bookie. ``trouble`` is the reason why it could not be asked. ``remedy`` is what this client
    needs if the bookie answers, but refuses this client. ``refuses`` means that the bookie gave another refusal.
    ``parts`` are keyed by the first entry of a fragment. ``lac`` is the LAC that the bookie proves by its digest, or
    None."""

    trouble: str = ""
    known: bool = False
    fenced: bool = False
    last_entry: EntryId = -1
    lac: EntryId | None = None
    parts: Mapping[EntryId, CopyPart] = field(default_factory=dict)
    remedy: str = ""
    refuses: bool = False


@dataclass(frozen=True, slots=True)
class LedgerSeen:
    """All facts that were gathered about a ledger. ``states`` has the state of each bookie that the record names:
    ``writable``, ``read-only``, ``away`` (known, not registered), ``unreadable`` (its registration) or ``gone``.
    ``copies`` has the answers of the bookies that were asked. ``unreadable`` has the mark and the lock of the ledger if
    they cannot be read. Times are ms since 1970; ``created_ms`` and ``written_ms`` are by the store's clock."""

    ledger_id: LedgerId
    record: LedgerMetadata
    created_ms: int
    written_ms: int
    now_ms: int
    states: Mapping[BookieId, str]
    copies: Mapping[BookieId, CopySeen]
    mark: UnderreplicationMark | None = None
    repaired_by: str | None = None
    replication_enabled: bool = True
    auditor: str | None = None
    log_uuid: str = ""
    fragments_left_out: int = 0
    unreadable: Sequence[UnreadableNode] = ()

    @property
    def lac(self) -> EntryId:
        """The highest LAC that a bookie or the record proves."""
        proven = (copy.lac for copy in self.copies.values() if copy.lac is not None)
        return max(self.record.last_fragment.first_entry_id - 1, *proven, -1)

    def in_words(self, bookie: BookieId) -> str:
        """Return why a bookie gives no answer, or an empty text if it answers."""
        copy = self.copies.get(bookie)
        if self.states[bookie] not in UP:
            return self.states[bookie]
        return copy.trouble if copy is not None else "not asked"

    def remedy(self, bookie: BookieId) -> str:
        """Return what this client needs so that the bookie answers it. Return an empty text if the bookie does not
        refuse this client."""
        return self.copies.get(bookie, CopySeen()).remedy

    def said(self, bookie: BookieId, fragment: Fragment, entry: EntryId) -> str:
        trouble = self.in_words(bookie)
        if trouble:
            return trouble
        part = self.copies[bookie].parts.get(fragment.first_entry_id)
        return part.of(entry) if part is not None else UNASKED


def explain(seen: LedgerSeen) -> list[Finding]:
    """Return the findings about a ledger, the worst first."""
    found = [*_state(seen), *_bookies(seen), *_copies(seen), *_unreadable(seen), *_mark(seen)]
    if seen.fragments_left_out:
        found.append(note(f"{seen.fragments_left_out} fragments of it were not examined, only the newest ones were"))
    return sorted(found, key=lambda each: ("problem", "note", "fine").index(each.weight.value))


# --- the ledger's state, and what a recovery would decide -------------------------------------------------------------


def _state(seen: LedgerSeen) -> list[Finding]:
    record = seen.record
    if record.is_closed:
        return [fine(f"closed with {record.last_entry_id + 1:,} entries; no client writes it")]
    verdict = recovery_verdict(seen)
    where = f" (made for the log of uuid {seen.log_uuid})" if seen.log_uuid else ""
    if record.state is LedgerState.IN_RECOVERY:
        since = f"in recovery for {roughly_in_words((seen.now_ms - seen.written_ms) / 1000)}{where}"
        if verdict.stuck:
            return [problem(f"{since}: {verdict.why}", verdict.remedy)]
        return [problem(f"{since}, and nothing seen here prevents it from finishing: {verdict.why}", verdict.remedy)]
    fenced = [bookie for bookie, copy in seen.copies.items() if copy.fenced]
    if fenced:
        what = f"open{where}, but fenced on {', '.join(sorted(fenced))}: its writer cannot go on, and it is not closed"
        return [problem(f"{what}: {verdict.why}", verdict.remedy)]
    age = roughly_in_words((seen.now_ms - seen.created_ms) / 1000)
    what = f"open for {age}{where}; its LAC is {seen.lac}; a writer may be at work"
    if verdict.stuck:
        return [note(f"{what}. A recovery could not finish now: {verdict.why}", verdict.remedy)]
    return [fine(f"{what}. A recovery could finish now: {verdict.why}")]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result that a recovery would have now. ``entry`` is the entry that it can neither find nor rule out."""

    stuck: bool
    why: str
    remedy: str
    entry: EntryId | None = None


def recovery_verdict(seen: LedgerSeen) -> Verdict:
    record, recover = seen.record, f"bk ledger recover {seen.ledger_id}"
    sizes = record.ensemble_size, record.write_quorum_size, record.ack_quorum_size
    last = record.last_fragment
    heard = [at for at, bookie in enumerate(last.ensemble) if not seen.in_words(bookie)]
    if not quorum.covers(heard, *sizes):
        silent = [bookie for bookie in last.ensemble if seen.in_words(bookie)]
        why = f"too few bookies of the last ensemble answer to fence it: {_each(seen, silent)}"
        return Verdict(True, why, _start(seen, silent, recover))
    needed = quorum.negatives_needed(*sizes[1:])
    for entry in range(seen.lac + 1, seen.lac + 1 + WALK_MAX):
        fragment = record.fragment_of(entry)
        said = _said_of(seen, fragment, entry)
        if FOUND in said.values():
            continue
        if list(said.values()).count(ABSENT) >= needed:
            return Verdict(False, f"its last entry would be {entry - 1}", recover)
        if UNASKED in said.values():
            return Verdict(False, f"entries to {entry - 1} are there; further ones were not looked at", recover)
        unsure = [bookie for bookie, what in said.items() if what != ABSENT]
        denied = [bookie for bookie, what in said.items() if what == ABSENT]
        why = f"entry {entry} is unknown on {', '.join(f'{b} ({said[b]})' for b in unsure)}"
        why += f" and denied by {', '.join(denied)}, {needed} have to deny it" if denied else ""
        return Verdict(True, why, _start(seen, unsure, recover, said), entry)
    return Verdict(False, f"entries to {seen.lac + WALK_MAX} are there; further ones were not looked at", recover)


def _start(seen: LedgerSeen, bookies: Sequence[BookieId], then: str, said: Mapping[BookieId, str] | None = None) -> str:
    """Return advice about bookies whose answers are not enough for a recovery. ``then`` is the last step of the
    advice."""
    away = [bookie for bookie in bookies if seen.in_words(bookie)]
    if away:
        return f"{_bring_back(seen, away, ' or ')}, then: {then}"
    names = ", ".join(f"{bookie} ({said[bookie]})" if said else bookie for bookie in bookies)
    return f"no bookie is left to start, and its copies on {names} are lost; restore a data directory, then: {then}"


def _bring_back(seen: LedgerSeen, bookies: Sequence[BookieId], between: str) -> str:
    down = [bookie for bookie in bookies if seen.states[bookie] not in UP]
    up = [bookie for bookie in bookies if seen.states[bookie] in UP and not seen.remedy(bookie)]
    refusing = [bookie for bookie in up if seen.copies.get(bookie, CopySeen()).refuses]
    silent = [bookie for bookie in up if bookie not in refusing]
    mine = dict.fromkeys(seen.remedy(bookie) for bookie in bookies if seen.remedy(bookie))
    start = [f"start {between.join(down)} (bk bookie run on its host)"] if down else []
    look = (
        [f"look at {between.join(silent)}, which is registered and does not answer, and restart it"] if silent else []
    )
    read = [f"look into the log of {between.join(refusing)}, which says why it refuses"] if refusing else []
    return between.join([*mine, *start, *look, *read])


# --- bookies and copies -----------------------------------------------------------------------------------------------


def _bookies(seen: LedgerSeen) -> Iterator[Finding]:
    silent = [bookie for bookie in _members(seen) if seen.in_words(bookie)]
    if not silent:
        return
    refused = [bookie for bookie in silent if seen.remedy(bookie)]
    if refused:
        yield problem(
            f"these of its bookies refuse this client: {_each(seen, refused)}", _bring_back(seen, refused, ", ")
        )
    silent = [bookie for bookie in silent if bookie not in refused]
    if not silent:
        return
    what = f"these of its bookies do not answer: {_each(seen, silent)}"
    yield note(what, f"{_bring_back(seen, silent, ', ')}; bk doctor says what it reaches")


def _copies(seen: LedgerSeen) -> Iterator[Finding]:
    for at, fragment in enumerate(seen.record.fragments):
        last = seen.record.last_entry_of(at)
        if last is None or last < fragment.first_entry_id or not _was_asked(seen, fragment):
            continue
        nowhere = _nowhere(seen, fragment, last)
        name = f"the fragment at {fragment.first_entry_id}"
        if nowhere:
            members = [bookie for bookie in fragment.ensemble if seen.in_words(bookie)]
            what = (
                f"in {name} no bookie that answers has entries {spans(nowhere)}: {_said(seen, fragment, nowhere[0][0])}"
            )
            then = f"bk ledger explain {seen.ledger_id}"
            yield problem(what, _start(seen, members, then) if members else f"restore a data directory, then: {then}")
        for bookie in fragment.ensemble:
            yield from _lacking(seen, bookie, at, name)


def _lacking(seen: LedgerSeen, bookie: BookieId, at: int, name: str) -> Iterator[Finding]:
    """Yield what an answering bookie lacks of one fragment."""
    first, copy = seen.record.fragments[at].first_entry_id, seen.copies.get(bookie)
    part = copy.parts.get(first) if copy is not None else None
    own = next((each for each in own_parts(seen.record, bookie) if each.first == first), None)
    if part is None or own is None:
        return
    gaps = own.lacking(ReadTrailer(own.asked_last, part.absent, part.unknown))
    if not gaps:
        return
    why = ", ".join(sorted({ABSENT if gap.reason is Reason.REASON_NONE else gap.reason.name.lower() for gap in gaps}))
    is_marked = seen.mark is not None and bookie in seen.mark.missing
    remedy = "" if is_marked else "it is not marked yet: the bookie marks it within minutes, if it runs our software"
    yield note(f"{bookie} lacks entries {spans([(gap.first, gap.last) for gap in gaps])} of {name} ({why})", remedy)


def _nowhere(seen: LedgerSeen, fragment: Fragment, last: EntryId) -> list[tuple[EntryId, EntryId]]:
    """Return the entries that no answering bookie has. Between two edges the answers about each write set are the same,
    so one entry of each write set is tried."""
    size, found = seen.record.ensemble_size, list[tuple[EntryId, EntryId]]()
    edges = _edges(seen, fragment, last)
    for low, behind in zip(edges, [*edges[1:], last + 1], strict=True):
        tried = range(low, min(low + size, behind))
        missing = [entry for entry in tried if _is_nowhere(seen, fragment, entry)]
        whole = len(missing) == len(tried)
        found += [(low, behind - 1)] if whole else [(entry, entry) for entry in missing]
    return found


def _is_nowhere(seen: LedgerSeen, fragment: Fragment, entry: EntryId) -> bool:
    said = _said_of(seen, fragment, entry).values()
    return FOUND not in said and UNASKED not in said


def _said_of(seen: LedgerSeen, fragment: Fragment, entry: EntryId) -> dict[BookieId, str]:
    record = seen.record
    members = sorted(quorum.write_set(entry, record.ensemble_size, record.write_quorum_size))
    return {fragment.ensemble[at]: seen.said(fragment.ensemble[at], fragment, entry) for at in members}


def _edges(seen: LedgerSeen, fragment: Fragment, last: EntryId) -> list[EntryId]:
    edges = {fragment.first_entry_id}
    for bookie in fragment.ensemble:
        copy = seen.copies.get(bookie)
        part = copy.parts.get(fragment.first_entry_id) if copy is not None else None
        edges.update(part.edges() if part is not None else ())
    return sorted(edge for edge in edges if fragment.first_entry_id <= edge <= last)[:EDGES_MAX]


def _was_asked(seen: LedgerSeen, fragment: Fragment) -> bool:
    return any(
        fragment.first_entry_id in copy.parts or copy.trouble
        for bookie in fragment.ensemble
        if (copy := seen.copies.get(bookie)) is not None
    ) or all(seen.in_words(bookie) for bookie in fragment.ensemble)


# --- repair -----------------------------------------------------------------------------------------------------------


def _unreadable(seen: LedgerSeen) -> Iterator[Finding]:
    for node in seen.unreadable:
        what = f"the {node.kind.value} at {node.path} cannot be read: {node.why}"
        yield problem(f"{what}; no worker repairs the ledger meanwhile", node.remedy)


def _mark(seen: LedgerSeen) -> Iterator[Finding]:
    mark = seen.mark
    if mark is None:
        return
    since = f" for {roughly_in_words((seen.now_ms - mark.ctime_ms) / 1000)}" if mark.ctime_ms is not None else ""
    what = f"marked as lacking copies of {', '.join(mark.missing) or 'bookies that its mark does not name'}{since}"
    if not seen.replication_enabled:
        yield problem(f"{what}; replication is paused for the whole cluster", "bk replication resume")
    elif seen.repaired_by is not None:
        yield note(f"{what}; {seen.repaired_by or 'a worker'} repairs it now")
    elif seen.auditor is None:
        yield problem(f"{what}, and no auto-recovery runs", "bk autorecovery")
    else:
        yield note(f"{what}; no worker repairs it now", "the log of bk autorecovery says what blocks it")


# --- words ------------------------------------------------------------------------------------------------------------


def _members(seen: LedgerSeen) -> list[BookieId]:
    return sorted({bookie for fragment in seen.record.fragments for bookie in fragment.ensemble})


def _each(seen: LedgerSeen, bookies: Sequence[BookieId]) -> str:
    return ", ".join(f"{bookie} ({seen.in_words(bookie)})" for bookie in bookies)


def _said(seen: LedgerSeen, fragment: Fragment, entry: EntryId) -> str:
    return ", ".join(f"{bookie} ({what})" for bookie, what in _said_of(seen, fragment, entry).items())


def _covering(gaps: Sequence[EntryRange], entry: EntryId) -> EntryRange | None:
    at = bisect_right(gaps, entry, key=lambda gap: gap.first) - 1
    return gaps[at] if at >= 0 and gaps[at].last >= entry else None
