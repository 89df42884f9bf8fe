# SPDX-License-Identifier: Apache-2.0
"""Explains where a topic begins and ends, and why: turns what ``topic_seen.py`` gathered into findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bk_cli.explain.topic_seen import LEDGERS_MAX, PartSeen, TopicSeen, named
from bk_core.cluster.finding import Finding, fine, note, problem
from bk_core.model import LedgerState
from bk_core.pulsar.model.managed_ledger import TopicLedger
from bk_core.pulsar.model.message_id import EntryPosition

BROKER = "give --admin-url (pulsarAdminUrl in Spark), or read with --quorum (readMode=quorum)"
_WEIGHTS = ("problem", "note", "fine")


def explain_topic(seen: TopicSeen) -> list[Finding]:
    """Return the findings about all partitions, the worst first, and about the schema."""
    found = [each for part in seen.parts for each in explain_part(part)]
    return [*sorted(found, key=lambda each: _WEIGHTS.index(each.weight.value)), *_schemas(seen)]


def explain_part(part: PartSeen) -> list[Finding]:
    """Return the findings about one partition. ``where`` is its name."""
    name = str(part.topic)
    if not part.ledgers:
        return [fine(f"{name} has no ledger: nothing was written to it yet, or all of it was trimmed", name)]
    made = [*_begin(part), *_end(part), *_held_back(part), *_compaction(part), *_offloaded(part), *_ledgers(part)]
    return [Finding(each.weight, each.what, each.remedy, name) for each in made]


def _begin(part: PartSeen) -> Iterator[Finding]:
    first = EntryPosition(part.ledgers[0].ledger_id, 0)
    gone = [name for name, at in part.cursors.items() if at.ledger_id < first.ledger_id and at.ledger_id >= 0]
    if gone:
        yield note(
            f"{part.topic} begins at {first}: what came before was trimmed. {named(gone)} stood in a trimmed ledger"
        )
    else:
        yield fine(f"{part.topic} begins at {first}; what came before, if anything did, was trimmed")


def _end(part: PartSeen) -> Iterator[Finding]:
    last, source = part.end
    name, ledger_id = part.topic, part.ledgers[-1].ledger_id
    shown = "it shows no message" if last is None else f"a read ends after {last}"
    if source == "terminated":
        yield fine(f"{name} was terminated: {shown}, and a tail ends there too")
        return
    if part.open_end is None:
        yield fine(f"ledger {ledger_id}, the last one of {name}, is closed: {shown}")
        return
    if part.open_end.trouble:
        yield problem(
            f"the bookies did not say where ledger {ledger_id} ends: {part.open_end.trouble}",
            f"bk ledger explain {ledger_id}",
        )
        return
    words = "the broker's word" if source == "broker" else "the LAC of the bookies"
    yield fine(f"ledger {ledger_id}, the last one of {name}, is open: {shown}, {words}")
    yield from _beyond_lac(part, source)
    if part.broker_trouble:
        yield problem(f"the broker did not say where {name} ends: {part.broker_trouble}", "check --admin-url")


def _beyond_lac(part: PartSeen, source: str) -> Iterator[Finding]:
    """Explain the entries between the LAC and the end that the quorum or the broker gives."""
    assert part.open_end is not None
    lac, held, ledger_id = part.open_end.lac, part.open_end.held, part.ledgers[-1].ledger_id
    if held > lac:
        entries = f"entry {ledger_id}:{held}" if held == lac + 1 else f"entries {ledger_id}:{lac + 1} to {held}"
        what = f"an ack quorum of bookies has {entries}, above the LAC, {ledger_id}:{lac}"
        if source == "broker" and part.said is not None and part.said >= EntryPosition(ledger_id, held):
            yield fine(f"{what}; the broker has confirmed it")
        else:
            yield note(f"{what}; it is confirmed only if its writer got their acks", BROKER)
    elif not part.asked_broker:
        yield fine("no entry above the LAC is on an ack quorum of bookies now")
    if part.said is not None and part.said < EntryPosition(ledger_id, lac):
        yield note(f"the broker says that the topic ends at {part.said}, below the LAC: it may own the topic no longer")


def _held_back(part: PartSeen) -> Iterator[Finding]:
    if part.scan_trouble:
        yield problem(f"transactions were not looked for: {part.scan_trouble}")
        return
    if part.transactions is None:
        return
    undecided, since = part.transactions.undecided, part.scanned_from
    if undecided:
        txn, at = next(iter(undecided.items()))
        more = f" ({len(undecided)} transactions are undecided)" if len(undecided) > 1 else ""
        yield note(
            f"a read of committed messages ends before {at}: transaction {txn} is undecided{more}",
            "let its producer commit or abort it, or read with --uncommitted (isolation=read_uncommitted)",
        )
    elif since is not None:
        whole = since == EntryPosition(part.ledgers[0].ledger_id, 0)
        scope = "" if whole else f" from {since} on; the entries before were not looked at"
        yield fine(f"no transaction is undecided{scope}. Aborted ones: {len(part.transactions.aborted)}")


def _compaction(part: PartSeen) -> Iterator[Finding]:
    cursor = part.compaction
    if cursor is None or cursor.compacted_ledger < 0:
        return
    at = cursor.mark_delete
    if part.has_compacted_ledger:
        yield fine(f"compacted up to {at}, in ledger {cursor.compacted_ledger}: --compacted begins there")
    else:
        yield problem(
            f"the compaction up to {at} names ledger {cursor.compacted_ledger}, which does not exist",
            "read without --compacted, or let a broker compact the topic again",
        )


def _offloaded(part: PartSeen) -> Iterator[Finding]:
    away = [each for each in part.ledgers if each.offloaded_by and not each.is_in_bookies]
    both = [each for each in part.ledgers if each.offloaded_by and each.is_in_bookies]
    if away:
        yield note(f"{_listed(away)} only in the storage of {away[0].offloaded_by}, not in the bookies")
    if both:
        yield fine(f"{_listed(both)} in the storage of {both[0].offloaded_by}, and in the bookies too")


def _listed(found: Sequence[TopicLedger]) -> str:
    ids = named([str(each.ledger_id) for each in found])
    return f"ledger {ids} is" if len(found) == 1 else f"ledgers {ids} are"


def _ledgers(part: PartSeen) -> Iterator[Finding]:
    """Compare the topic's record with the records of its ledgers."""
    by_id = {each.ledger_id: each for each in part.ledgers}
    for ledger_id, record in part.records.items():
        ledger, is_last = by_id[ledger_id], ledger_id == part.ledgers[-1].ledger_id
        if record is None:
            yield problem(
                f"the record of {part.topic} names ledger {ledger_id}, which does not exist",
                "a read of it raises BK_NO_SUCH_LEDGER: start behind it",
            )
        elif not record.is_closed and not is_last:
            yield problem(
                f"ledger {ledger_id} is {record.state.name} though later ledgers follow it",
                f"bk ledger explain {ledger_id}",
            )
        elif record.is_closed and not ledger.is_open and record.last_entry_id != ledger.entries - 1:
            yield problem(
                f"ledger {ledger_id} ends at entry {record.last_entry_id}; the record of {part.topic} counts "
                f"{ledger.entries} entries",
                f"bk ledger explain {ledger_id}",
            )
        elif record.state is LedgerState.IN_RECOVERY and is_last:
            yield note(f"ledger {ledger_id} is being recovered: another broker takes the topic over")
    if len(part.ledgers) > LEDGERS_MAX:
        yield note(f"{len(part.ledgers) - LEDGERS_MAX} ledgers were not examined, only the newest ones were")


def _schemas(seen: TopicSeen) -> Iterator[Finding]:
    if seen.schema_trouble:
        yield problem(f"the schema of {seen.topic} cannot be read: {seen.schema_trouble}", "its values are bytes")
    elif seen.schemas:
        listed = ", ".join(f"{each.version} {each.kind}{' (deleted)' if each.deleted else ''}" for each in seen.schemas)
        yield fine(f"versions of the schema: {listed}")
