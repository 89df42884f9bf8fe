# SPDX-License-Identifier: Apache-2.0
"""Topics of Pulsar on a cluster in memory: ledgers with entries, and Pulsar's nodes beside them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bk_core.client import BookKeeper
from bk_core.client.writing.writer import LedgerWriter
from bk_core.metadata.tree.tree import ANY_VERSION, ensure_path
from bk_core.pulsar.cluster import PulsarAccess
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.topic_name import MANAGED_LEDGERS, TopicName
from bk_core.pulsar.proto import managed_ledger_pb2 as proto
from bk_core.pulsar.topic import Topic
from tests.kit import offloaded
from tests.kit import pulsar_entries as kit
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, memory_cluster


class PulsarWorld:
    """Topics as brokers would have made them. ``bookkeeper`` reads them; another client writes the ledgers."""

    def __init__(self, cluster: MemoryBookKeeper) -> None:
        self.cluster = cluster
        self.bookkeeper, self._writer = (
            cluster.client(),
            cluster.client(replace(FAST, explicit_lac_delay_ms=50_000, lac_stall_ms=50_000, lac_timeout_ms=60_000)),
        )
        self._ledgers: dict[TopicName, list[proto.LedgerInfo]] = {}
        self._terminated: dict[TopicName, EntryPosition] = {}
        self._schemas: dict[TopicName, list[proto.SchemaIndexEntry]] = {}
        self.set(MANAGED_LEDGERS, b"")

    @property
    def writer(self) -> BookKeeper:
        return self._writer

    def topic(self, name: str, **access: Any) -> Topic:
        return Topic(self.bookkeeper, name, access=PulsarAccess(**access))

    def set(self, path: str, data: bytes) -> None:
        """Write a node."""
        ensure_path(self.cluster.store.tree, path)
        self.cluster.store.tree.set(path, data, ANY_VERSION)

    def get(self, path: str) -> bytes:
        return self.cluster.store.tree.get(path)[0]

    async def ledger(self, name: str, entries: Sequence[bytes], *, is_open: bool = False) -> LedgerWriter:
        """Write the next ledger of a topic with these entries. While it is idle it does not publish its LAC, like a
        broker's ledger."""
        topic = TopicName.parse(name)
        written = await self._writer.create_ledger(custom_metadata={"application": b"pulsar"})
        for entry in entries:
            await written.append(entry)
        info = proto.LedgerInfo(ledger_id=written.ledger_id)
        if not is_open:
            await written.close()
            info.entries, info.size, info.timestamp = len(entries), sum(map(len, entries)), 1_700_000_000_000
        self._ledgers.setdefault(topic, []).append(info)
        self.publish(topic)
        return written

    async def roll(self, name: str, written: LedgerWriter) -> None:
        """Close the open ledger of a topic."""
        await written.close()
        info = self._ledgers[TopicName.parse(name)][-1]
        info.entries, info.size, info.timestamp = written.last_add_confirmed + 1, written.length, 1_700_000_000_000
        self.publish(TopicName.parse(name))

    def publish(self, topic: TopicName) -> None:
        """Write the record of a topic."""
        record = proto.ManagedLedgerInfo(ledgers=self._ledgers.get(topic, []))
        if (ended := self._terminated.get(topic)) is not None:
            record.terminated_position.ledger_id, record.terminated_position.entry_id = ended
        self.set(topic.managed_ledger_path, record.SerializeToString())

    def terminate(self, name: str, at: EntryPosition) -> None:
        self._terminated[TopicName.parse(name)] = at
        self.publish(TopicName.parse(name))

    async def trim(self, name: str, count: int = 1) -> None:
        """Delete the first ledgers of a topic."""
        topic = TopicName.parse(name)
        gone = self._ledgers[topic][:count]
        del self._ledgers[topic][:count]
        self.publish(topic)
        for info in gone:
            await self._writer.delete_ledger(info.ledger_id)

    async def load(self, name: str, empty: LedgerWriter) -> None:
        """Do what a broker does when it loads a topic whose last ledger is empty: close and delete that ledger."""
        await empty.close()
        self._ledgers[TopicName.parse(name)].pop()
        self.publish(TopicName.parse(name))
        await self._writer.delete_ledger(empty.ledger_id)

    def offload(self, name: str, number: int, driver: str, *, deleted: bool, bucket: str = "cold") -> None:
        """Record that a ledger of a topic was offloaded."""
        context = self._ledgers[TopicName.parse(name)][number].offload_context
        context.complete, context.bookkeeper_deleted, context.driver.name = True, deleted, driver.encode()
        del context.driver.properties[:]
        context.driver.properties.add(key=b"bucket", value=bucket.encode())
        self.publish(TopicName.parse(name))

    async def offload_to(
        self, folder: Path, name: str, number: int, *, deleted: bool = True, block_bytes: int = 2000
    ) -> Path:
        """Copy a ledger of a topic to a folder, in the format of the jcloud offloader. With ``deleted``, delete the
        ledger from the bookies. Return the path of the data object."""
        info = self._ledgers[TopicName.parse(name)][number]
        async with await self._writer.open_ledger(info.ledger_id, recover=False) as reader:
            entries = [entry async for batch in reader.read(0, info.entries - 1) for entry in batch.to_list()]
        uuid = offloaded.uuid_of(info.ledger_id)
        info.offload_context.uid_msb, info.offload_context.uid_lsb = uuid.int >> 64, uuid.int & 0xFFFF
        data = f"{uuid}-ledger-{info.ledger_id}"
        offloaded.put(folder, data, offloaded.offload({info.ledger_id: entries}, block_bytes))
        self.offload(name, number, "aws-s3", deleted=deleted)
        if deleted:
            await self._writer.delete_ledger(info.ledger_id)
        return folder / data

    def partitioned(self, name: str, partitions: int) -> None:
        self.set(TopicName.parse(name).partitions_path, json.dumps({"partitions": partitions}).encode())

    async def schema(
        self, name: str, kind: int, definition: bytes | str = b"", *, deleted: bool = False, **properties: str
    ) -> int:
        """Register the next version of a topic's schema, and return its number. ``kind`` is the stored number of the
        type. As a broker does, keep each version in an open ledger of one entry, and link it to the versions before
        it."""
        topic, data = TopicName.parse(name), definition.encode() if isinstance(definition, str) else definition
        versions = self._schemas.setdefault(topic, [])
        info = proto.SchemaInfo(type=kind, schema=data, deleted=deleted)
        for key, value in properties.items():
            info.props.add(key=key.replace("_", ".").encode(), value=value.encode())
        written = await self._writer.create_ledger(custom_metadata={"application": b"pulsar"})
        await written.append(
            proto.SchemaEntry(schema_data=info.SerializeToString(), index=versions).SerializeToString()
        )
        number, position = len(versions), proto.Position(ledger_id=written.ledger_id, entry_id=0)
        versions.append(proto.SchemaIndexEntry(version=number, position=position))
        record = proto.SchemaLocator(info=versions[-1], index=versions)
        self.set(topic.schema_path, record.SerializeToString())
        return number

    def cursor(self, name: str, cursor: str, at: EntryPosition, properties: Mapping[str, int] | None = None) -> None:
        """Write a subscription whose state is in its node."""
        record = proto.CursorInfo(cursors_ledger_id=-1, mark_delete_ledger_id=at[0], mark_delete_entry_id=at[1])
        for key, value in (properties or {}).items():
            record.properties.add(name=key.encode(), value=value)
        self.set(f"{TopicName.parse(name).managed_ledger_path}/{cursor}", record.SerializeToString())


@asynccontextmanager
async def pulsar_world() -> AsyncIterator[PulsarWorld]:
    async with memory_cluster(3) as cluster:
        yield PulsarWorld(cluster)


def plain(*values: bytes, **fields: Any) -> list[bytes]:
    """Return one entry for each value."""
    return [kit.entry(value, **fields) for value in values]
