# SPDX-License-Identifier: Apache-2.0
"""Where Pulsar's nodes are: beside the ledgers, or below a path of their own."""

from __future__ import annotations

import pytest

from bk_core.errors import InvalidArgumentError, MetadataCorruptError, NoSuchTopicError
from bk_core.metadata.tree.tree import ensure_path
from bk_core.pulsar.lookup.nodes import PulsarNodes, parse_metadata_uri
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.proto import managed_ledger_pb2 as proto
from tests.kit.memory_store import MemoryStore


@pytest.mark.parametrize(
    ("uri", "store", "root"),
    [
        ("zk://h:2181", "zk://h:2181/ledgers", ""),
        ("zk://h1:2181;h2:2181/pulsar", "zk://h1:2181;h2:2181/pulsar/ledgers", "/pulsar"),
        ("zk:h1:2181,h2:2181/a/b/", "zk://h1:2181;h2:2181/a/b/ledgers", "/a/b"),
        ("metadata-store:zk:h:2181", "zk://h:2181/ledgers", ""),
    ],
)
def test_uri_of_the_metadata_is_ours_or_pulsars(uri: str, store: str, root: str) -> None:
    assert parse_metadata_uri(uri) == (store, root)


@pytest.mark.parametrize("uri", ["", "zk:", "zk://", "oxia://h:6648", "etcd:http://h", "rocksdb:///x", "h:2181"])
def test_uri_of_another_store_is_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match="ZooKeeper only"):
        parse_metadata_uri(uri)


def test_nodes_below_a_path_are_found_there_only() -> None:
    store = MemoryStore()
    topic = TopicName("t", "ns", "a b")
    record = proto.ManagedLedgerInfo(ledgers=[proto.LedgerInfo(ledger_id=3)])
    path = f"/pulsar{topic.managed_ledger_path}"
    ensure_path(store.tree, path)
    store.tree.set(path, record.SerializeToString(), 0)
    nodes, elsewhere = PulsarNodes(store, "/pulsar/"), PulsarNodes(store)
    found = nodes.managed_ledger(topic)
    assert found is not None
    assert [each.ledger_id for each in found.ledgers] == [3]
    assert list(nodes.namespaces()) == [("t", "ns")]
    assert nodes.topics_of(None) == [(topic, None)]
    assert nodes.parts(topic) == [topic]
    assert elsewhere.managed_ledger(topic) is None
    with pytest.raises(NoSuchTopicError, match="no metadata"):
        elsewhere.parts(topic)
    store.close()


def test_partitions_are_listed_under_their_topic_alone() -> None:
    store = MemoryStore()
    topic = TopicName("t", "ns", "orders")
    for path, data in (
        (topic.partitions_path, b'{"partitions": 2}'),
        (topic.of_partition(0).managed_ledger_path, b""),
        (TopicName("t", "ns", "lone-partition-7").managed_ledger_path, b""),
    ):
        ensure_path(store.tree, path)
        store.tree.set(path, data, 0)
    nodes = PulsarNodes(store)
    assert nodes.topics("t", "ns") == [(TopicName("t", "ns", "lone-partition-7"), None), (topic, 2)]
    assert nodes.parts(topic) == [topic.of_partition(0), topic.of_partition(1)]
    assert nodes.may_have_transactions(topic) is False
    store.tree.set(topic.partitions_path, b"rubbish", 1)
    with pytest.raises(MetadataCorruptError, match="partitioned-topics"):
        nodes.parts(topic)
    store.close()
