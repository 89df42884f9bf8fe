# SPDX-License-Identifier: Apache-2.0
"""Names of topics and the nodes that belong to them."""

from __future__ import annotations

import pytest

from bk_core.errors import InvalidArgumentError, UnsupportedTopicError
from bk_core.pulsar.model.topic_name import TopicName


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("shop/eu/orders", "persistent://shop/eu/orders"),
        ("persistent://shop/eu/orders", "persistent://shop/eu/orders"),
        ("persistent://shop/eu/a b", "persistent://shop/eu/a b"),
    ],
)
def test_short_names_stand_for_full_ones(name: str, full: str) -> None:
    assert str(TopicName.parse(name)) == full
    assert TopicName.parse(full) == TopicName.parse(name)


@pytest.mark.parametrize(
    "name", ["", "a/b", "persistent://", "persistent://a", "persistent://a/b/", "kafka://a/b/c", "a//c"]
)
def test_names_that_no_topic_can_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        TopicName.parse(name)


@pytest.mark.parametrize("tenant", ["..", "a b", "ü/"])
def test_tenants_that_would_leave_their_folder_are_refused(tenant: str) -> None:
    with pytest.raises(InvalidArgumentError):
        TopicName.of_parts(tenant, "default", "x")


@pytest.mark.parametrize("name", ["non-persistent://public/default/x", "persistent://prop/cluster/ns/topic"])
def test_topics_without_ledgers_and_of_pulsar_1_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedTopicError, match=name):
        TopicName.parse(name)


@pytest.mark.parametrize(
    ("local", "node"),
    [
        ("orders", "orders"),
        ("a b", "a+b"),
        ("a+b%c:d", "a%2Bb%25c%3Ad"),
        ("ü", "%C3%BC"),
        ("*-._", "*-._"),
        ("a~b", "a%7Eb"),
    ],
)
def test_nodes_are_encoded_as_java_does(local: str, node: str) -> None:
    name = TopicName("t", "ns", local)
    assert name.node == node
    assert TopicName.of_node("t", "ns", node) == name
    assert name.managed_ledger_path == f"/managed-ledgers/t/ns/persistent/{node}"
    assert name.partitions_path == f"/admin/partitioned-topics/t/ns/persistent/{node}"


def test_partitions_belong_to_a_topic() -> None:
    topic = TopicName.parse("orders")
    assert topic.partition == -1
    partition = topic.of_partition(12)
    assert (str(partition), partition.partition, partition.whole) == (
        "persistent://public/default/orders-partition-12",
        12,
        topic,
    )
    assert partition.schema_path == topic.schema_path == "/schemas/public/default/orders"


@pytest.mark.parametrize("local", ["orders-partition-", "orders-partition-x", "orders-partition-01", "-partition-1"])
def test_names_that_only_look_like_partitions_are_topics(local: str) -> None:
    name = TopicName("t", "ns", local)
    assert (name.partition, name.whole) == (-1, name)


@pytest.mark.parametrize(
    ("local", "is_system"),
    [("__change_events", True), ("__transaction_buffer_snapshot-partition-3", True), ("orders", False),
     ("orders-sub__transaction_pending_ack", True)],
)  # fmt: skip
def test_topics_of_brokers_are_told_apart(local: str, is_system: bool) -> None:
    assert TopicName("public", "default", local).is_system is is_system
    assert TopicName("pulsar", "system", local).is_system
