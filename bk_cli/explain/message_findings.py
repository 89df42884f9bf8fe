# SPDX-License-Identifier: Apache-2.0
"""Explains why a read shows a message of a topic or does not: turns what ``message_seen.py`` gathered into findings.
Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bk_cli.explain.message_seen import HAS, MessageSeen
from bk_cli.explain.topic_findings import BROKER
from bk_core.cluster.finding import Finding, fine, note, problem
from bk_core.errors import LedgerOffloadedError, MessageEncryptedError
from bk_core.pulsar.messages.compression import NAMES
from bk_core.pulsar.messages.decoder import MARKERS
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.transactions import ABORT, COMMIT

UNCOMMITTED = "read with --uncommitted (isolation=read_uncommitted)"
MARKER_NAMES = {
    10: "replicated subscription: snapshot request",
    11: "replicated subscription: snapshot response",
    12: "replicated subscription: snapshot",
    13: "replicated subscription: update",
    20: "transaction: committing",
    COMMIT: "transaction: commit",
    ABORT: "transaction: abort",
}


def explain_message(seen: MessageSeen) -> list[Finding]:
    """Return the findings: first whether a read shows the message, and then what is worth knowing about its copies."""
    return [*_verdict(seen), *_copies(seen)]


def _verdict(seen: MessageSeen) -> list[Finding]:
    """Return why a read does not show the message, or that it does."""
    whole = (_elsewhere, _unreadable, _no_message, _marker)
    for rule in (*whole, _beyond_the_end, _transaction, _held_back, _chunk, _encrypted):
        found = rule(seen)
        if found is not None:
            return [found]
    return [_shown(seen), *_compacted(seen)]


def _elsewhere(seen: MessageSeen) -> Finding | None:
    if not seen.not_read_there:
        return None
    return problem(f"a read ends with {LedgerOffloadedError.code}: {_where(seen)}, and {seen.not_read_there}")


def _where(seen: MessageSeen) -> str:
    return f"ledger {seen.position.ledger_id} is only in the storage of {seen.elsewhere}"


def _unreadable(seen: MessageSeen) -> Finding | None:
    if not seen.unreadable:
        return None
    if seen.elsewhere:
        remedy = ""  # the error has its own
    elif seen.placed is not None:
        remedy = f"bk ledger explain {seen.position.ledger_id}"
    else:
        remedy = "start the read behind it"
    return problem(f"a read that reaches entry {seen.position} ends with an error: {seen.unreadable}", remedy)


def _no_message(seen: MessageSeen) -> Finding | None:
    if not seen.problem:
        return None
    code = "BK_MESSAGE_CHECKSUM" if seen.is_wrong_checksum else "BK_CORRUPT_MESSAGE"
    return problem(
        f"a read ends with {code}: {seen.problem}", "--skip-corrupt (corruptEntries=skip) leaves the entry out"
    )


def _marker(seen: MessageSeen) -> Finding | None:
    if seen.metadata is None or not seen.metadata.HasField("marker_type"):
        return None
    kind = seen.metadata.marker_type
    if kind not in MARKERS:
        return problem(f"a read ends with BK_TOPIC_UNSUPPORTED: marker {kind} is not known", "--skip-corrupt")
    ends = f" of transaction {seen.txn}" if seen.txn is not None else ""
    return note(f"no read shows it: it is a marker of the broker ({MARKER_NAMES[kind]}){ends}, and no message")


def _transaction(seen: MessageSeen) -> Finding | None:
    remedy = UNCOMMITTED
    if seen.outcome == "aborted":
        return note(f"a read of committed messages leaves it out: transaction {seen.txn} was aborted", remedy)
    if seen.outcome == "undecided":
        return note(f"a read of committed messages ends before it: transaction {seen.txn} is undecided", remedy)
    if seen.outcome == "unknown":
        return note(f"the outcome of transaction {seen.txn} was not found in the entries that were looked at", remedy)
    return None


def _beyond_the_end(seen: MessageSeen) -> Finding | None:
    last, source = seen.part.end
    if last is not None and seen.position <= last:
        return None
    open_end = seen.part.open_end
    if open_end is not None and open_end.trouble:
        return problem(
            f"whether a read shows it is not known: {open_end.trouble}", f"bk ledger explain {seen.position.ledger_id}"
        )
    where = "the topic has no confirmed entry" if last is None else f"a read ends after {last}"
    if source == "terminated":
        return note(f"no read shows it: the topic was terminated at {last}")
    if open_end is not None and seen.position.entry_id <= open_end.held:
        return note(f"{where}, which is the LAC of the bookies; an ack quorum of them has the entry", BROKER)
    return note(f"{where}, and too few bookies have the entry for an acknowledgement", "ask again, or ask the broker")


def _held_back(seen: MessageSeen) -> Finding | None:
    undecided = seen.part.first_undecided
    if undecided is None or seen.position < undecided:
        return None
    return note(
        f"a read of committed messages ends earlier, before {undecided}, where an undecided transaction begins",
        f"let its producer commit or abort it, or {UNCOMMITTED}",
    )


def _chunk(seen: MessageSeen) -> Finding | None:
    chunks, metadata = seen.chunks, seen.metadata
    if chunks is None or metadata is None:
        return None
    number = f"chunk {metadata.chunk_id + 1} of {chunks.count} of a message"
    if chunks.is_whole:
        first, last = chunks.found[0], chunks.found[chunks.count - 1]
        end, undecided = seen.part.end[0], seen.part.first_undecided
        if end is None or last > end:
            return note(f"a read ends after {end}: it is {number} from {first} to {last}, which is behind that", BROKER)
        if undecided is not None and last >= undecided:
            what = f"{number} from {first} to {last}, and an undecided transaction begins before that"
            return note(f"a read of committed messages ends before {undecided}: it is {what}", UNCOMMITTED)
        return fine(f"a read shows it with the id of its last chunk: it is {number} from {first} to {last}")
    lacking = ", ".join(str(each + 1) for each in range(chunks.count) if each not in chunks.found)
    if chunks.is_all_searched:
        return note(f"no read shows it: it is {number}, of which these chunks are not in the topic: {lacking}")
    return note(f"it is {number}; these chunks are not in the entries that were looked at: {lacking}")


def _encrypted(seen: MessageSeen) -> Finding | None:
    if seen.refusal is None:
        return None
    if isinstance(seen.refusal, MessageEncryptedError):
        remedy = "give --private-key NAME=FILE, or read encrypted messages raw"
        return note(f"a read without the private key ends with {seen.refusal.code}: {seen.refusal.value}", remedy)
    return problem(f"a read ends with {seen.refusal.code}: {seen.refusal.value}", "--skip-corrupt leaves it out")


def _shown(seen: MessageSeen) -> Finding:
    if seen.batch_index >= 0 and seen.inner is None:
        return note(f"no read shows it: the compaction removed message {seen.batch_index} from its batch")
    if seen.outcome == "committed":
        return fine(f"a read shows it: transaction {seen.txn} was committed")
    if seen.inner is None and seen.messages_in_entry != 1:
        return fine(f"a read shows the {seen.messages_in_entry} messages of this batch")
    return fine("a read shows it")


def _compacted(seen: MessageSeen) -> Iterator[Finding]:
    cursor = seen.part.compaction
    if cursor is None or cursor.compacted_ledger < 0 or seen.position > cursor.mark_delete:
        return
    yield note(
        f"a compacted read (--compacted) shows it only if it was the last message of its key up to {cursor.mark_delete}"
    )


def _copies(seen: MessageSeen) -> Iterator[Finding]:
    if seen.elsewhere and not seen.not_read_there:
        yield note(_where(seen))
    if seen.placed is None:
        return
    copies, needed = seen.placed.copies, seen.placed.metadata.ack_quorum_size
    have = sum(said == HAS for said in copies.values())
    is_confirmed = (last := seen.part.end[0]) is not None and seen.position <= last
    if have == len(copies):
        yield fine(f"all {have} bookies of its write set have the entry")
    elif have == 0 and is_confirmed:
        yield problem("no bookie of its write set gives the entry", f"bk ledger explain {seen.position.ledger_id}")
    elif have < needed and is_confirmed:
        yield problem(
            f"{have} of {len(copies)} bookies have the entry, fewer than the ack quorum of {needed}",
            f"bk ledger explain {seen.position.ledger_id}",
        )
    else:
        yield note(f"{have} of {len(copies)} bookies of its write set have the entry")


def compression_name(kind: int) -> str:
    return NAMES.get(kind, f"{kind}, not known")


def marker_name(kind: int) -> str:
    return f"{MARKER_NAMES[kind]} ({kind})" if kind in MARKER_NAMES else f"{kind}, not known"


def position_or_none(at: EntryPosition | None) -> str | None:
    return None if at is None else str(at)
