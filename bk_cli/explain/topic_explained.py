# SPDX-License-Identifier: Apache-2.0
"""``bk topic explain``: prints the findings about a topic or one of its messages, and the facts below them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from bk_cli import output
from bk_cli.access import Access
from bk_cli.explain.findings import as_objects, print_findings
from bk_cli.explain.message_findings import compression_name, explain_message, marker_name, position_or_none
from bk_cli.explain.message_seen import MessageSeen, parse_id, see_message
from bk_cli.explain.topic_findings import explain_topic
from bk_cli.explain.topic_seen import PartSeen, TopicSeen, see_topic
from bk_core.client import BookKeeper
from bk_core.cluster.payloads import payload_json, payload_text
from bk_core.pulsar.cluster import PulsarAccess

T = TypeVar("T")


def show_topic(access: Access, name: str, pulsar: PulsarAccess, *, as_json: bool) -> None:
    """Print where a topic begins and ends, and why. Raises what :func:`see_topic` raises."""
    how = replace(pulsar, password=access.password)
    seen = _run(access, lambda bookkeeper: see_topic(bookkeeper, name, how))
    findings = explain_topic(seen)
    if as_json:
        output.print_json({**topic_object(seen), "findings": as_objects(findings)})
        return
    parts = f"{len(seen.parts)} partitions" if seen.is_partitioned else "no partitions"
    output.print_line(f"topic {seen.topic}: {parts}")
    print_findings(findings)
    output.print_line()
    output.print_table(
        ("topic", "ledgers ", "begins", "ends", "the end is", "subscriptions "), map(_part_row, seen.parts)
    )


def show_message(access: Access, name: str, message_id: str, pulsar: PulsarAccess, *, as_json: bool) -> None:
    """Print where a message is and why a read shows it or does not. Raises what :func:`see_message` raises, and
    InvalidArgumentError for a text that is no message id."""
    wanted, how = parse_id(message_id), replace(pulsar, password=access.password)
    seen = _run(access, lambda bookkeeper: see_message(bookkeeper, name, wanted, how))
    if as_json:
        output.print_json({**message_object(seen), "findings": as_objects(explain_message(seen))})
        return
    print_message(seen)


def print_message(seen: MessageSeen) -> None:
    """Print the findings and the facts, for people."""
    index = f", message {seen.batch_index} of its batch" if seen.batch_index >= 0 else ""
    output.print_line(f"entry {seen.position} of {seen.part.topic}{index}")
    print_findings(explain_message(seen))
    output.print_line()
    output.print_facts(dict(_facts(seen)))


def _run(access: Access, work: Callable[[BookKeeper], Coroutine[Any, Any, T]]) -> T:
    with access.client() as bookkeeper:
        return bookkeeper.begin(work).result()


def _part_row(part: PartSeen) -> tuple[object, ...]:
    last, source = part.end
    begins = f"{part.ledgers[0].ledger_id}:0" if part.ledgers else "-"
    return str(part.topic), len(part.ledgers), begins, str(last) if last else "-", source, len(part.cursors)


# --- facts ------------------------------------------------------------------------------------------------------------


def _facts(seen: MessageSeen) -> Iterator[tuple[str, object]]:
    """Yield the known facts about a message, with names for people."""
    if (placed := seen.placed) is not None:
        yield "ledger", f"{seen.position.ledger_id}, {placed.metadata.state.name}"
        first = placed.fragment.first_entry_id
        yield "ensemble", f"{', '.join(placed.fragment.ensemble)} (from entry {first} on)"
        yield "write set", "; ".join(f"{bookie} {said}" for bookie, said in placed.copies.items())
    metadata = seen.metadata
    if metadata is None:
        return
    yield "bytes", f"{seen.entry_bytes}, payload {seen.payload_bytes}"
    yield "published", output.moment(metadata.publish_time)
    yield "event time", output.moment(_event_time(seen))
    if seen.broker is not None and seen.broker.broker_timestamp:
        yield "broker's time", output.moment(seen.broker.broker_timestamp)
    producer = metadata.producer_name.decode("utf-8", "replace")
    yield "producer", f"{producer}, sequence id {_sequence_id(seen)}"
    if metadata.replicated_from:
        yield "replicated from", metadata.replicated_from.decode("utf-8", "replace")
    yield "key", "-" if (key := _key(seen)) is None else payload_text(key)
    yield "batch", f"{seen.messages_in_entry} messages" if metadata.HasField("num_messages_in_batch") else "-"
    if seen.inner is not None:
        yield "value", f"{seen.inner.value_bytes} bytes"
    yield (
        "compression",
        compression_name(metadata.compression)
        + (f", {metadata.uncompressed_size} bytes before" if metadata.compression else ""),
    )
    yield "encryption keys", ", ".join(_key_names(seen)) or "-"
    yield "schema version", _schema(seen)
    yield "chunk", _chunk(seen)
    yield "transaction", f"{seen.txn}, {seen.outcome}" if seen.txn is not None else "-"
    yield "marker", marker_name(metadata.marker_type) if metadata.HasField("marker_type") else "-"
    if metadata.deliver_at_time:
        yield "deliver at", output.moment(metadata.deliver_at_time)


def _event_time(seen: MessageSeen) -> int | None:
    assert seen.metadata is not None
    return (seen.inner.event_time_ms if seen.inner is not None else seen.metadata.event_time) or None


def _sequence_id(seen: MessageSeen) -> int:
    assert seen.metadata is not None
    return seen.inner.sequence_id if seen.inner is not None else seen.metadata.sequence_id


def _key(seen: MessageSeen) -> bytes | None:
    assert seen.metadata is not None
    if seen.inner is not None:
        return seen.inner.keyed_by
    return seen.metadata.partition_key if seen.metadata.HasField("partition_key") else None


def _key_names(seen: MessageSeen) -> list[str]:
    return [each.key.decode("utf-8", "replace") for each in seen.metadata.encryption_keys] if seen.metadata else []


def _schema_version(seen: MessageSeen) -> int | None:
    """Return the version of the schema. The message has it as a number in big-endian order."""
    if seen.metadata is None or not seen.metadata.HasField("schema_version"):
        return None
    return int.from_bytes(seen.metadata.schema_version, "big", signed=True)


def _schema(seen: MessageSeen) -> str:
    version = _schema_version(seen)
    if version is None:
        return "-"
    kind = next((each.kind for each in seen.topic.schemas if each.version == version), "not among those of the topic")
    return f"{version}, {kind}"


def _chunk(seen: MessageSeen) -> str:
    if seen.chunks is None or seen.metadata is None:
        return "-"
    places = ", ".join(f"{number + 1} at {at}" for number, at in seen.chunks.found.items())
    return f"{seen.metadata.chunk_id + 1} of {seen.chunks.count}, {seen.metadata.total_chunk_msg_size} bytes: {places}"


# --- JSON -------------------------------------------------------------------------------------------------------------


def topic_object(seen: TopicSeen) -> dict[str, object]:
    return {
        "topic": str(seen.topic),
        "partitions": len(seen.parts) if seen.is_partitioned else None,
        "schemas": [{"version": each.version, "type": each.kind, "deleted": each.deleted} for each in seen.schemas],
        "parts": [_part_object(each) for each in seen.parts],
    }


def _part_object(part: PartSeen) -> dict[str, object]:
    (last, source), end = part.end, part.open_end
    ledger_id = part.ledgers[-1].ledger_id if part.ledgers else -1
    cursor = part.compaction
    is_compacted = cursor is not None and cursor.compacted_ledger >= 0
    return {
        "topic": str(part.topic),
        "first": f"{part.ledgers[0].ledger_id}:0" if part.ledgers else None,
        "last": position_or_none(last),
        "endFrom": source,
        "openLedger": ledger_id if end is not None else None,
        "lac": f"{ledger_id}:{end.lac}" if end is not None and end.lac >= 0 else None,
        "ackQuorumHas": f"{ledger_id}:{end.held}" if end is not None and end.held >= 0 else None,
        "broker": position_or_none(part.said),
        "terminatedAt": position_or_none(part.terminated_at),
        "firstUndecided": position_or_none(part.first_undecided),
        "transactionsFrom": position_or_none(part.scanned_from),
        "compactedTo": str(cursor.mark_delete) if cursor is not None and is_compacted else None,
        "compactedLedger": cursor.compacted_ledger if cursor is not None and is_compacted else None,
        "offloadedLedgers": [each.ledger_id for each in part.ledgers if each.offloaded_by],
        "ledgersNotInBookies": [each.ledger_id for each in part.ledgers if not each.is_in_bookies],
        "subscriptions": {name: str(at) for name, at in part.cursors.items()},
    }


def message_object(seen: MessageSeen) -> dict[str, object]:
    placed, metadata = seen.placed, seen.metadata
    found: dict[str, object] = {
        "topic": str(seen.part.topic),
        "ledgerId": seen.position.ledger_id,
        "entryId": seen.position.entry_id,
        "batchIndex": seen.batch_index if seen.batch_index >= 0 else None,
        "ledgerState": placed.metadata.state.name if placed is not None else None,
        "ensemble": list(placed.fragment.ensemble) if placed is not None else [],
        "writeSet": dict(placed.copies) if placed is not None else {},
        "onlyInStorageOf": seen.elsewhere or None,
        "unreadable": seen.unreadable,
        "problem": seen.problem,
    }
    if metadata is None:
        return found
    return found | _head_object(seen)


def _head_object(seen: MessageSeen) -> dict[str, object]:
    metadata, chunks, broker = seen.metadata, seen.chunks, seen.broker
    assert metadata is not None
    key = _key(seen)
    whole = chunks if chunks is not None and chunks.is_whole else None
    return {
        "entryBytes": seen.entry_bytes,
        "payloadBytes": seen.payload_bytes,
        "valueBytes": seen.inner.value_bytes if seen.inner is not None else None,
        "publishTimeMs": metadata.publish_time,
        "eventTimeMs": _event_time(seen),
        "brokerTimeMs": broker.broker_timestamp or None if broker is not None else None,
        "deliverAtMs": metadata.deliver_at_time or None,
        "producer": metadata.producer_name.decode("utf-8", "replace"),
        "sequenceId": _sequence_id(seen),
        "replicatedFrom": metadata.replicated_from.decode("utf-8", "replace") or None,
        "key": None if key is None else payload_json(key),
        "batchSize": metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None,
        "compression": compression_name(metadata.compression),
        "uncompressedBytes": metadata.uncompressed_size or None,
        "encryptionKeys": _key_names(seen),
        "schemaVersion": _schema_version(seen),
        "chunk": metadata.chunk_id if chunks is not None else None,
        "chunks": chunks.count if chunks is not None else None,
        "firstChunk": str(whole.found[0]) if whole is not None else None,
        "lastChunk": str(whole.found[whole.count - 1]) if whole is not None else None,
        "transaction": str(seen.txn) if seen.txn is not None else None,
        "outcome": seen.outcome or None,
        "marker": metadata.marker_type if metadata.HasField("marker_type") else None,
    }
