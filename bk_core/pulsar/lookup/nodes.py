# SPDX-License-Identifier: Apache-2.0
"""Reads Pulsar's metadata about topics. Calls block, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from bk_core.errors import InvalidArgumentError, NoSuchTopicError, UnsupportedTopicError
from bk_core.metadata.port import MetadataStore
from bk_core.pulsar.messages.compression import decompressed
from bk_core.pulsar.model import topic_name as names
from bk_core.pulsar.model.managed_ledger import Cursor, ManagedLedger, partition_count
from bk_core.pulsar.model.schemas import SchemaVersion, schema_versions
from bk_core.pulsar.model.topic_name import TopicName

SNAPSHOTS = "__transaction_buffer_snapshot"
NEAR_TOPICS = 3
"""The maximum number of similar names in an error about an unknown topic."""
NAMESPACES_SHOWN = 20
"""The maximum number of namespaces in an error about an unknown namespace."""


class PulsarNodes:
    """Reads Pulsar's nodes. ``root`` is the path of Pulsar's metadata in the store. It is empty unless Pulsar was
    set up with such a path."""

    def __init__(self, store: MetadataStore, root: str = "") -> None:
        self._store, self._root = store, root.rstrip("/")

    def sync(self) -> None:
        """Make later reads see everything that brokers wrote before this call."""
        self._store.sync()

    def managed_ledger(self, topic: TopicName) -> ManagedLedger | None:
        """Return the ledgers of a topic without partitions, or of one partition. Returns None if there is no such
        topic, or if nothing was written to the partition yet. Raises MetadataCorruptError."""
        path = self._root + topic.managed_ledger_path
        found = self._store.read_foreign_node(path)
        return None if found is None else ManagedLedger.decode(path, found.value, decompressed)

    def partitions(self, topic: TopicName) -> int | None:
        """Return the number of partitions of a topic, or None if it has none. Raises MetadataCorruptError."""
        path = self._root + topic.partitions_path
        found = self._store.read_foreign_node(path)
        return None if found is None else partition_count(path, found.value)

    def cursors(self, topic: TopicName) -> dict[str, Cursor]:
        """Return the subscriptions of a topic without partitions, or of one partition, by name. Raises
        MetadataCorruptError."""
        path = self._root + topic.managed_ledger_path
        found = dict[str, Cursor]()
        for node in self._store.list_foreign_nodes(path) or []:
            cursor = self.cursor(topic, node)
            if cursor is not None:
                found[TopicName.of_node(topic.tenant, topic.namespace, node).local] = cursor
        return found

    def cursor(self, topic: TopicName, node: str) -> Cursor | None:
        """Return the cursor in the node of this name, or None if there is no such node. Raises MetadataCorruptError."""
        path = f"{self._root}{topic.managed_ledger_path}/{node}"
        found = self._store.read_foreign_node(path)
        return None if found is None else Cursor.decode(path, found.value, decompressed)

    def schema_versions(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Return the versions of a topic's schema; empty if it has no schema. Raises MetadataCorruptError."""
        path = self._root + topic.schema_path
        found = self._store.read_foreign_node(path)
        return () if found is None else schema_versions(path, found.value)

    def may_have_transactions(self, topic: TopicName) -> bool:
        """Return whether messages of a topic can belong to transactions. Before the first transaction of a namespace, a
        broker creates a topic in the namespace for snapshots of transactions. This function looks for that topic."""
        for local in (SNAPSHOTS, f"{SNAPSHOTS}_segments"):
            name = TopicName(topic.tenant, topic.namespace, local)
            for path in (name.managed_ledger_path, name.partitions_path, name.of_partition(0).managed_ledger_path):
                if self._store.read_foreign_node(self._root + path) is not None:
                    return True
        return False

    # --- lists -------------------------------------------------------------------------------------------------------

    def namespaces(self) -> Iterator[tuple[str, str]]:
        """Yield the tenant and the name of each namespace that may have topics, each once."""
        seen = set[tuple[str, str]]()
        for folder in (names.MANAGED_LEDGERS, names.PARTITIONED_TOPICS):
            for tenant in self._children(folder):
                for namespace in self._children(f"{folder}/{tenant}"):
                    if (tenant, namespace) not in seen and self._is_namespace(folder, tenant, namespace):
                        seen.add((tenant, namespace))
                        yield tenant, namespace

    def topics(self, tenant: str, namespace: str) -> list[tuple[TopicName, int | None]]:
        """Return the topics of a namespace, sorted by name, each with its number of partitions or None. A partition is
        listed separately only if the record of its partitioned topic is missing."""
        folder = names.partitioned_topics(tenant, namespace)
        found = dict[TopicName, int | None]()
        for node in self._children(folder):
            topic = TopicName.of_node(tenant, namespace, node)
            if (count := self.partitions(topic)) is not None:
                found[topic] = count
        for node in self._children(names.managed_ledgers(tenant, namespace)):
            topic = TopicName.of_node(tenant, namespace, node)
            if topic.whole not in found:
                found[topic] = None
        return sorted(found.items())

    def topics_of(self, namespace: str | None) -> list[tuple[TopicName, int | None]]:
        """Return the :meth:`topics` of ``namespace`` (``tenant/namespace``), or of all namespaces if it is None. Raises
        InvalidArgumentError for a name of another form, and NoSuchTopicError for a namespace without topics."""
        if namespace is None:
            return [topic for each in sorted(self.namespaces()) for topic in self.topics(*each)]
        tenant, _, name = namespace.partition("/")
        found = self.topics(tenant, TopicName.of_parts(tenant, name, "x").namespace)
        if not found:
            spaces = ", ".join(f"{tenant}/{name}" for tenant, name in sorted(self.namespaces())[:NAMESPACES_SHOWN])
            raise NoSuchTopicError(
                f"namespace {namespace} has no topics",
                value=self._store.uri + (f", below {self._root}" if self._root else ""),
                remedy=f"namespaces with topics: {spaces}" if spaces else "no namespace has topics there",
            )
        return found

    def _is_namespace(self, folder: str, tenant: str, namespace: str) -> bool:
        return (
            self._store.list_foreign_nodes(f"{self._root}{folder}/{tenant}/{namespace}/{names.PERSISTENT}") is not None
        )

    def _children(self, path: str) -> list[str]:
        return self._store.list_foreign_nodes(self._root + path) or []

    # --- one topic ---------------------------------------------------------------------------------------------------

    def parts(self, topic: TopicName) -> list[TopicName]:
        """Return the partitions of ``topic`` in order, or ``topic`` itself if it has none. Raises NoSuchTopicError,
        which names similar topics or namespaces, and UnsupportedTopicError for a scalable topic."""
        count = self.partitions(topic)
        if count:
            return [topic.of_partition(number) for number in range(count)]
        if self._store.read_foreign_node(self._root + topic.managed_ledger_path) is not None:
            return [topic]
        if topic.partition >= 0 and (whole := self.partitions(topic.whole)) is not None and topic.partition < whole:
            return [topic]  # nothing was written to it yet
        if self._store.read_foreign_node(self._root + topic.scalable_path) is not None:
            raise UnsupportedTopicError(
                f"{topic} is a scalable topic of Pulsar 5, which this version cannot read",
                remedy="read it with Pulsar's own client",
            )
        raise self._no_such_topic(topic)

    def _no_such_topic(self, topic: TopicName) -> NoSuchTopicError:
        what = f"there is no topic {topic}"
        if self._store.list_foreign_nodes(f"{self._root}{names.MANAGED_LEDGERS}") is None:
            where = self._store.uri + (f", below {self._root}" if self._root else "")
            return NoSuchTopicError(
                what,
                value=f"Pulsar has no metadata in {where}",
                remedy="if they are elsewhere, give their URI (pulsar_metadata_uri, --pulsar-metadata-uri)",
            )
        known = {str(name): name.local for name, _ in self.topics(topic.tenant, topic.namespace)}
        if not known:
            spaces = sorted(f"{tenant}/{namespace}" for tenant, namespace in self.namespaces())
            near = get_close_matches(f"{topic.tenant}/{topic.namespace}", spaces, n=NEAR_TOPICS, cutoff=0.0)
            return NoSuchTopicError(
                what,
                value=f"namespace {topic.tenant}/{topic.namespace} has no topics",
                remedy=f"namespaces with topics: {', '.join(near)}",
            )
        near = get_close_matches(str(topic), known, n=NEAR_TOPICS, cutoff=0.0)
        return NoSuchTopicError(what, remedy=f"near names: {', '.join(near)}")


def parse_metadata_uri(uri: str) -> tuple[str, str]:
    """Return the URI of a store and the root of Pulsar's nodes in it. ``uri`` has our form, or Pulsar's
    (``zk:host1:2181,host2:2181/path``). Raises InvalidArgumentError for a store other than ZooKeeper."""
    scheme, _, rest = uri.strip().removeprefix("metadata-store:").partition(":")
    hosts, _, path = rest.removeprefix("//").partition("/")
    if scheme != "zk" or not hosts:
        raise InvalidArgumentError(
            "Pulsar's metadata are read from ZooKeeper only",
            value=uri,
            remedy="write zk://host1:2181;host2:2181, followed by the path if Pulsar has one",
        )
    root = f"/{path.strip('/')}" if path.strip("/") else ""
    return f"zk://{hosts.replace(',', ';')}{root}/ledgers", root
