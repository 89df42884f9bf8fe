# SPDX-License-Identifier: Apache-2.0
"""``bk topic explain``: what it says of topics and messages of a cluster in memory, text by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_cli import output
from bk_cli.explain import topic_explained, topic_seen
from bk_cli.explain.message_findings import explain_message
from bk_cli.explain.message_seen import MessageSeen, parse_id, see_message
from bk_cli.explain.topic_findings import explain_topic
from bk_cli.explain.topic_seen import see_topic
from bk_core.cluster.finding import Finding
from bk_core.errors import InvalidArgumentError, NoSuchTopicError
from bk_core.pulsar.cluster import PulsarAccess
from bk_core.pulsar.lookup.nodes import SNAPSHOTS
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.offloaded.access import OffloadStorage
from bk_core.pulsar.proto import managed_ledger_pb2 as proto
from bk_core.pulsar.proto.message_pb2 import MessageMetadata
from tests.kit import pulsar_entries as kit
from tests.kit.memory_cluster import FAST
from tests.kit.pulsar_world import PulsarWorld, plain, pulsar_world
from tests.pulsar.test_topic import NAME, chunk, marker, txn

ASK = "give --admin-url (pulsarAdminUrl in Spark), or read with --quorum (readMode=quorum)"


def told(findings: Sequence[Finding]) -> list[str]:
    """Findings as they are printed, without remedies."""
    return [f"{each.weight.value}: {each.what}" for each in findings]


async def topic(world: PulsarWorld, name: str = NAME, **access: Any) -> list[str]:
    return told(explain_topic(await see_topic(world.bookkeeper, name, PulsarAccess(**access))))


async def seen(world: PulsarWorld, message_id: str, name: str = NAME, **access: Any) -> MessageSeen:
    return await see_message(world.bookkeeper, name, parse_id(message_id), PulsarAccess(**access))


async def message(world: PulsarWorld, message_id: str, name: str = NAME, **access: Any) -> list[str]:
    return told(explain_message(await seen(world, message_id, name, **access)))


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_closed_topic() -> None:
    async with pulsar_world() as world:
        first = await world.ledger(NAME, plain(b"a", b"b"))
        last = await world.ledger(NAME, plain(b"c"))
        assert await topic(world) == [
            f"fine: {NAME} begins at {first.ledger_id}:0; what came before, if anything did, was trimmed",
            f"fine: ledger {last.ledger_id}, the last one of {NAME}, is closed: a read ends after {last.ledger_id}:0",
        ]


async def test_idle_topic_whose_last_messages_bookies_do_not_call_confirmed() -> None:
    async with pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        at = written.ledger_id
        found = explain_topic(await see_topic(world.bookkeeper, NAME, PulsarAccess()))
        assert told(found) == [
            f"note: an ack quorum of bookies has entry {at}:1, above the LAC, {at}:0; it is confirmed only if "
            "its writer got their acks",
            f"fine: {NAME} begins at {at}:0; what came before, if anything did, was trimmed",
            f"fine: ledger {at}, the last one of {NAME}, is open: a read ends after {at}:0, the LAC of the bookies",
        ]
        assert found[0].remedy == ASK
        await written.write_lac()
        assert told(explain_topic(await see_topic(world.bookkeeper, NAME, PulsarAccess())))[1:] == [
            f"fine: ledger {at}, the last one of {NAME}, is open: a read ends after {at}:1, the LAC of the bookies",
            "fine: no entry above the LAC is on an ack quorum of bookies now",
        ]


async def test_trimmed_terminated_compacted_and_offloaded_topic() -> None:
    async with pulsar_world() as world:
        gone = await world.ledger(NAME, plain(b"a"))
        away = await world.ledger(NAME, plain(b"b"))
        last = await world.ledger(NAME, plain(b"c", b"d"))
        world.cursor(NAME, "reports", EntryPosition(gone.ledger_id, 0))
        world.cursor(NAME, "__compaction", EntryPosition(last.ledger_id, 0), {"CompactedTopicLedger": 999})
        world.offload(NAME, 1, "aws-s3", deleted=True)
        await world.trim(NAME)
        world.terminate(NAME, EntryPosition(last.ledger_id, 1))
        assert await topic(world) == [
            f"problem: the compaction up to {last.ledger_id}:0 names ledger 999, which does not exist",
            f"note: {NAME} begins at {away.ledger_id}:0: what came before was trimmed. reports stood in a trimmed "
            "ledger",
            f"note: ledger {away.ledger_id} is only in the storage of aws-s3, not in the bookies",
            f"fine: {NAME} was terminated: a read ends after {last.ledger_id}:1, and a tail ends there too",
        ]


async def test_undecided_transaction_holds_reads_back() -> None:
    async with pulsar_world() as world:
        transactions(world)
        ledger = (await world.ledger(NAME, [kit.entry(b"1"), txn(b"2", 1), txn(b"3", 2), marker(22, 2)])).ledger_id
        assert (await topic(world))[0] == (
            f"note: a read of committed messages ends before {ledger}:1: transaction (1,1) is undecided"
        )
        await world.ledger(NAME, [marker(21, 1)])
        assert (await topic(world))[-1] == "fine: no transaction is undecided. Aborted ones: 1"


async def test_ledgers_that_the_record_gets_wrong() -> None:
    async with pulsar_world() as world:
        open_one = await world.ledger(NAME, plain(b"a"), is_open=True)
        lost = await world.ledger(NAME, plain(b"b"))
        short = await world.ledger(NAME, plain(b"c"))
        world._ledgers[TopicName.parse(NAME)][-1].entries = 5
        world.publish(TopicName.parse(NAME))
        await world.writer.delete_ledger(lost.ledger_id)
        assert [each for each in await topic(world) if each.startswith("problem")] == [
            f"problem: ledger {open_one.ledger_id} is OPEN though later ledgers follow it",
            f"problem: the record of {NAME} names ledger {lost.ledger_id}, which does not exist",
            f"problem: ledger {short.ledger_id} ends at entry 0; the record of {NAME} counts 5 entries",
        ]


async def test_partitions_without_messages_and_a_topic_that_is_not_there() -> None:
    async with pulsar_world() as world:
        world.partitioned(NAME, 2)
        await world.ledger(f"{NAME}-partition-1", plain(b"a"))
        assert (await topic(world))[0] == (
            f"fine: {NAME}-partition-0 has no ledger: nothing was written to it yet, or all of it was trimmed"
        )
        with pytest.raises(NoSuchTopicError, match="orders"):
            await topic(world, "ordes")


# --- messages ---------------------------------------------------------------------------------------------------------


async def test_message_that_is_shown_with_all_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    async with pulsar_world() as world:
        fields = {"partition_key": b"k", "event_time": 5, "schema_version": (3).to_bytes(8, "big"), "compression": 3}
        entry = kit.entry(b"value", broker={"broker_timestamp": 7, "index": 1}, **fields)
        written = await world.ledger(NAME, [entry])
        found = await seen(world, f"{written.ledger_id}:0")
        topic_explained.print_message(found)
        ensemble = (await world.bookkeeper.read_metadata(written.ledger_id)).value.fragments[0].ensemble
        assert capsys.readouterr().out.splitlines() == [
            f"entry {written.ledger_id}:0 of {NAME}",
            "ok: a read shows it",
            "ok: all 3 bookies of its write set have the entry",
            "",
            f"ledger           {written.ledger_id}, CLOSED",
            f"ensemble         {', '.join(ensemble)} (from entry 0 on)",
            f"write set        {'; '.join(f'{bookie} has it' for bookie in ensemble)}",
            f"bytes            {len(entry)}, payload {found.payload_bytes}",
            f"published        {output.moment(1_700_000_000_000)}",
            f"event time       {output.moment(5)}",
            f"broker's time    {output.moment(7)}",
            "producer         p, sequence id 1",
            "key              k",
            "batch            -",
            "value            5 bytes",
            "compression      ZSTD, 5 bytes before",
            "encryption keys  -",
            "schema version   3, not among those of the topic",
            "chunk            -",
            "transaction      -",
            "marker           -",
        ]


async def test_message_as_an_object() -> None:
    async with pulsar_world() as world:
        written = await world.ledger(NAME, [kit.batch_entry([kit.single(b"a"), kit.single(b"bc", partition_key=b"k")])])
        found = topic_explained.message_object(await seen(world, f"{written.ledger_id}:0:-1:1"))
        wanted = {"batchIndex": 1, "batchSize": 2, "valueBytes": 2, "key": {"text": "k"}, "compression": "NONE"}
        assert {name: found[name] for name in wanted} == wanted
        ensemble = (await world.bookkeeper.read_metadata(written.ledger_id)).value.fragments[0].ensemble
        assert found["writeSet"] == dict.fromkeys(ensemble, "has it")
        whole = topic_explained.message_object(await seen(world, f"{written.ledger_id}:0"))
        assert (whole["batchIndex"], whole["valueBytes"], whole["batchSize"]) == (None, None, 2)


async def test_batch_and_messages_that_a_compaction_removed_from_it() -> None:
    async with pulsar_world() as world:
        batch = kit.batch_entry([kit.single(b"a"), kit.single(b"b", compacted_out=True)])
        at = (await world.ledger(NAME, [batch, kit.entry(b"x")])).ledger_id
        world.cursor(NAME, "__compaction", EntryPosition(at, 0), {"CompactedTopicLedger": at})
        horizon = (
            f"note: a compacted read (--compacted) shows it only if it was the last message of its key up to {at}:0"
        )
        copies = "fine: all 3 bookies of its write set have the entry"
        assert await message(world, f"{at}:0") == ["fine: a read shows the 2 messages of this batch", horizon, copies]
        assert await message(world, f"{at}:0:-1:0") == ["fine: a read shows it", horizon, copies]
        removed = "note: no read shows it: the compaction removed message 1 from its batch"
        assert (await message(world, f"{at}:0:-1:1"))[0] == removed
        assert await message(world, f"{at}:1") == ["fine: a read shows it", copies]
        with pytest.raises(InvalidArgumentError, match=r"has no message 2.*it has 2"):
            await message(world, f"{at}:0:-1:2")
        with pytest.raises(InvalidArgumentError, match="it is not a batch"):
            await message(world, f"{at}:1:-1:0")


async def test_messages_of_transactions_and_their_markers() -> None:
    async with pulsar_world() as world:
        transactions(world)
        at = (
            await world.ledger(
                NAME,
                [
                    txn(b"a", 1),
                    txn(b"b", 2),
                    marker(22, 1),
                    marker(21, 2),
                    kit.entry(b"c"),
                    txn(b"d", 3),
                    kit.entry(b"e"),
                ],
            )
        ).ledger_id
        firsts = [(await message(world, f"{at}:{entry}"))[0] for entry in range(7)]
        assert firsts == [
            "note: a read of committed messages leaves it out: transaction (1,1) was aborted",
            "fine: a read shows it: transaction (1,2) was committed",
            "note: no read shows it: it is a marker of the broker (transaction: abort) of transaction (1,1), and no "
            "message",
            "note: no read shows it: it is a marker of the broker (transaction: commit) of transaction (1,2), and no "
            "message",
            "fine: a read shows it",
            "note: a read of committed messages ends before it: transaction (1,3) is undecided",
            f"note: a read of committed messages ends earlier, before {at}:5, where an undecided transaction begins",
        ]


async def test_entries_around_a_message_that_cannot_be_read_leave_its_own_facts() -> None:
    async with pulsar_world() as world:
        at = (await world.ledger(NAME, [txn(b"a", 1), chunk(0, b"a")])).ledger_id
        closed = await world.writer.create_ledger(password=b"another")
        for entry in (chunk(1, b"b"), chunk(2, b"c"), marker(21, 1)):
            await closed.append(entry)
        await closed.close()
        info = proto.LedgerInfo(ledger_id=closed.ledger_id, entries=3, size=closed.length, timestamp=1)
        world._ledgers[TopicName.parse(NAME)].append(info)
        world.publish(TopicName.parse(NAME))
        assert (await message(world, f"{at}:0"))[0] == (
            "note: the outcome of transaction (1,1) was not found in the entries that were looked at"
        )
        assert (await message(world, f"{at}:1"))[0] == (
            "note: it is chunk 1 of 3 of a message; these chunks are not in the entries that were looked at: 2, 3"
        )


async def test_many_entries_that_are_smaller_than_a_guess_are_all_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_seen, "SCAN_BYTES", 16 << 10)
    async with pulsar_world() as world:
        entries = [chunk(0, b"a"), *plain(*[b"x"] * 100), chunk(1, b"b"), chunk(2, b"c")]
        assert sum(map(len, entries)) < topic_seen.SCAN_BYTES < 1024 * len(entries)
        at = (await world.ledger(NAME, entries)).ledger_id
        assert (await message(world, f"{at}:0"))[0].endswith(f"chunk 1 of 3 of a message from {at}:0 to {at}:102")


async def test_only_the_partition_of_a_message_is_examined() -> None:
    async with pulsar_world() as world:
        world.partitioned(NAME, 3)
        written = await world.ledger(f"{NAME}-partition-1", plain(b"a"))
        found = await seen(world, f"{written.ledger_id}:0")
        assert [str(each.topic) for each in found.topic.parts] == [f"{NAME}-partition-1"]


async def test_an_entry_of_a_transaction_above_the_end_is_said_to_be_above_it() -> None:
    async with pulsar_world() as world:
        transactions(world)
        at = (await world.ledger(NAME, [kit.entry(b"a"), txn(b"b", 1)], is_open=True)).ledger_id
        assert (await message(world, f"{at}:1"))[0].startswith(f"note: a read ends after {at}:0, which is the LAC")


async def test_facts_come_from_bookies_while_they_have_the_ledger(tmp_path: Path) -> None:
    async with pulsar_world() as world:
        transactions(world)
        at = (await world.ledger(NAME, [txn(b"a", 1), marker(21, 1)])).ledger_id
        (await world.offload_to(tmp_path, NAME, 0, deleted=False)).unlink()
        told = await topic(world, offload=OffloadStorage(uri=tmp_path.as_uri()))
        assert "fine: no transaction is undecided. Aborted ones: 0" in told
        assert (await message(world, f"{at}:0"))[0] == "fine: a read shows it: transaction (1,1) was committed"


async def test_chunks() -> None:
    async with pulsar_world() as world:
        first = await world.ledger(NAME, [chunk(0, b"a"), kit.entry(b"x"), chunk(1, b"b")])
        second = await world.ledger(NAME, [chunk(2, b"c"), kit.chunk(1, b"?", uuid=b"other")])
        span = f"from {first.ledger_id}:0 to {second.ledger_id}:0"
        for number, at in enumerate((f"{first.ledger_id}:0", f"{first.ledger_id}:2", f"{second.ledger_id}:0")):
            assert (await message(world, at))[0] == (
                f"fine: a read shows it with the id of its last chunk: it is chunk {number + 1} of 3 of a message "
                f"{span}"
            )
        assert (await message(world, f"{second.ledger_id}:1"))[0] == (
            "note: no read shows it: it is chunk 2 of 3 of a message, of which these chunks are not in the topic: 1, 3"
        )


async def test_entries_that_are_no_messages_or_cannot_be_decoded() -> None:
    async with pulsar_world() as world:
        damaged = bytearray(kit.entry(b"damaged"))
        damaged[-1] ^= 1
        encrypted = kit.entry(b"?", encryption_keys=[{"key": b"client-rsa", "value": b"v"}])
        head = MessageMetadata(producer_name=b"p", publish_time=1, compression=9)
        entries = [b"no message", bytes(damaged), encrypted, kit.framed(head, b"?"), kit.entry(marker_type=99)]
        at = (await world.ledger(NAME, entries)).ledger_id
        firsts = [(await message(world, f"{at}:{entry}"))[0] for entry in range(5)]
        assert firsts[0].startswith("problem: a read ends with BK_CORRUPT_MESSAGE: ")
        assert firsts[1].startswith("problem: a read ends with BK_MESSAGE_CHECKSUM: the checksum")
        assert firsts[2].startswith(
            "note: a read without the private key ends with BK_MESSAGE_ENCRYPTED: it is encrypted"
        )
        assert "client-rsa" in firsts[2]
        assert firsts[3] == "problem: a read ends with BK_TOPIC_UNSUPPORTED: compression 9 is not known"
        assert firsts[4] == "problem: a read ends with BK_TOPIC_UNSUPPORTED: marker 99 is not known"


async def test_entry_above_the_end_and_one_with_too_few_copies() -> None:
    async with pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        at = written.ledger_id
        assert await message(world, f"{at}:1") == [
            f"note: a read ends after {at}:0, which is the LAC of the bookies; an ack quorum of them has the entry",
            "fine: all 3 bookies of its write set have the entry",
        ]
        with pytest.raises(
            InvalidArgumentError, match=f"{NAME} has no entry {at}:2.*no bookie has it.*bk topic explain"
        ):
            await message(world, f"{at}:2")


async def test_too_few_copies_are_a_problem_and_an_end_that_bookies_do_not_say_is_one_too() -> None:
    async with pulsar_world() as world:
        closed = await world.ledger(NAME, plain(b"a"))
        written = await world.ledger(NAME, plain(b"b", b"c"), is_open=True)
        for bookie in (await world.bookkeeper.read_metadata(closed.ledger_id)).value.fragments[0].ensemble[:2]:
            world.cluster.kill(bookie)
        world.bookkeeper = world.cluster.client(replace(FAST, lac_timeout_ms=200))
        assert await message(world, f"{closed.ledger_id}:0") == [
            "fine: a read shows it",
            "problem: 1 of 3 bookies have the entry, fewer than the ack quorum of 2",
        ]
        (first, *_) = await message(world, f"{written.ledger_id}:0")
        assert first.startswith(f"problem: a read that reaches entry {written.ledger_id}:0 ends with an error: ")
        found = await seen(world, f"{closed.ledger_id}:0")
        behind = replace(found, position=EntryPosition(written.ledger_id, 0))  # it was read before bookies fell silent
        (first, *_) = told(explain_message(behind))
        assert first.startswith("problem: whether a read shows it is not known: ")
        (first, *_) = await topic(world)
        assert first.startswith(f"problem: the bookies did not say where ledger {written.ledger_id} ends: ")


async def test_entries_that_are_not_there() -> None:
    async with pulsar_world() as world:
        gone = await world.ledger(NAME, plain(b"a"))
        away = await world.ledger(NAME, plain(b"b"))
        lost = await world.ledger(NAME, plain(b"c"))
        await world.trim(NAME)
        with pytest.raises(InvalidArgumentError, match=f"no ledger {gone.ledger_id}.*trimmed.*bk topic show"):
            await message(world, f"{gone.ledger_id}:0")
        with pytest.raises(InvalidArgumentError, match=f"{NAME} has no entry {lost.ledger_id}:7.*ends at entry 0"):
            await message(world, f"{lost.ledger_id}:7")
        world.offload(NAME, 0, "filesystem", deleted=True)
        (found,) = await message(world, f"{away.ledger_id}:0")
        assert found.startswith(
            f"problem: a read ends with BK_LEDGER_OFFLOADED: ledger {away.ledger_id} is only in the storage of "
            "filesystem, and the filesystem offloader writes"
        )
        await world.writer.delete_ledger(lost.ledger_id)
        assert "does not exist" in (await message(world, f"{lost.ledger_id}:0"))[0]


async def test_an_entry_that_only_object_storage_has_is_read_there(tmp_path: Path) -> None:
    async with pulsar_world() as world:
        transactions(world)
        chunks = await world.ledger(NAME, [chunk(0, b"a"), txn(b"b", 1), txn(b"c", 2), chunk(1, b"d")])
        later = await world.ledger(NAME, [chunk(2, b"e"), marker(22, 2), marker(21, 1)])
        objects = [await world.offload_to(tmp_path, NAME, number) for number in range(2)]
        at, end = chunks.ledger_id, later.ledger_id
        storage = OffloadStorage(uri=tmp_path.as_uri())
        where = f"note: ledger {at} is only in the storage of aws-s3"

        async def said(entry: str) -> list[str]:
            return await message(world, entry, offload=storage)

        assert await said(f"{at}:1") == ["fine: a read shows it: transaction (1,1) was committed", where]
        (aborted, _) = await said(f"{at}:2")
        assert aborted.startswith("note: a read of committed messages leaves it out: transaction (1,2) was aborted")
        (whole, _) = await said(f"{at}:3")
        assert whole.endswith(f"it is chunk 2 of 3 of a message from {at}:0 to {end}:0")
        with pytest.raises(InvalidArgumentError, match=f"{NAME} has no entry {at}:4.*ends at entry 3"):
            await said(f"{at}:4")
        for each in objects:
            each.unlink()
        (missing, copy) = await said(f"{at}:1")
        assert missing.startswith(f"problem: a read that reaches entry {at}:1 ends with an error: ")
        assert copy == where


@pytest.mark.parametrize("text", ["", "1", "x:0", "1:-1", "-1:0", "1:0:-1:0:0", "1:9999999999999999999", "1:0:-2"])
def test_text_that_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="ledger:entry:partition:batch"):
        parse_id(text)


def test_message_ids_are_those_that_a_read_prints() -> None:
    assert str(parse_id("7:3:-1:2")) == "7:3:-1:2"
    assert str(parse_id("7:3")) == "7:3:-1"


async def test_schema_of_a_message_is_named() -> None:
    async with pulsar_world() as world:
        version = (0).to_bytes(8, "big")
        written = await world.ledger(NAME, [kit.entry(b"{}", schema_version=version)])
        stored = await world.writer.create_ledger()
        info = proto.SchemaInfo(type=3, schema=b"{}")
        await stored.append(proto.SchemaEntry(schema_data=info.SerializeToString()).SerializeToString())
        place = proto.SchemaIndexEntry(version=0, position=proto.Position(ledger_id=stored.ledger_id, entry_id=0))
        world.set(TopicName.parse(NAME).schema_path, proto.SchemaLocator(info=place, index=[place]).SerializeToString())
        assert "fine: versions of the schema: 0 JSON" in await topic(world)
        found = dict(topic_explained._facts(await seen(world, f"{written.ledger_id}:0")))
        assert found["schema version"] == "0, JSON"
        assert topic_explained.topic_object(await see_topic(world.bookkeeper, NAME, PulsarAccess()))["schemas"] == [
            {"version": 0, "type": "JSON", "deleted": False}
        ]


def transactions(world: PulsarWorld) -> None:
    """Let the namespace have had transactions."""
    world.set(f"/managed-ledgers/public/default/persistent/{SNAPSHOTS}", b"")
