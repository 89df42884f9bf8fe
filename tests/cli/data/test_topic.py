# SPDX-License-Identifier: Apache-2.0
"""``bk topic list | show | explain | read`` on both kinds of clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bk_core import blocking
from bk_core.metadata import open_store
from bk_core.metadata.tree.tree import ANY_VERSION, ensure_path
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.proto import managed_ledger_pb2 as proto
from tests.kit import offloaded
from tests.kit import pulsar_entries as kit
from tests.kit.memory_cluster import FAST
from tests.kit.metadata_worlds import tree_of
from tests.kit.s3_endpoint import S3Endpoint


@pytest.fixture
def bk(bk_served: Any) -> Any:
    return bk_served


@pytest.fixture
def namespace(served: Any) -> Iterator[str]:
    """A namespace of the test's own, with a topic ``orders`` of two messages and a topic ``parts`` of two
    partitions."""
    name = f"shop/{uuid4()}"
    store = open_store(served.uri)
    try:
        with blocking.connect(served.uri) as bookkeeper, bookkeeper.create_ledger() as ledger:
            ledger.append(kit.entry(b"one", partition_key=b"k", properties={"a": "b"}, event_time=5))
            ledger.append(kit.batch_entry([kit.single(b"two"), kit.single(b"\xff", null_value=True)]))
        info = proto.LedgerInfo(ledger_id=ledger.ledger_id, entries=2, size=100, timestamp=1_700_000_000_000)
        record = proto.ManagedLedgerInfo(ledgers=[info]).SerializeToString()
        nodes = {
            TopicName.parse(f"{name}/orders").managed_ledger_path: record,
            TopicName.parse(f"{name}/__change_events").managed_ledger_path: b"",
            TopicName.parse(f"{name}/parts").partitions_path: json.dumps({"partitions": 2}).encode(),
            TopicName.parse(f"{name}/parts-partition-1").managed_ledger_path: record,
        }
        for path, data in nodes.items():
            ensure_path(tree_of(store), path)
            tree_of(store).set(path, data, ANY_VERSION)
        yield name
    finally:
        store.close()


def test_topics_are_listed_with_their_partitions(bk: Any, namespace: str) -> None:
    found = bk.json("topic", "list", namespace)
    assert found == [
        {"topic": f"persistent://{namespace}/orders", "partitions": None},
        {"topic": f"persistent://{namespace}/parts", "partitions": 2},
    ]
    assert len(bk.json("topic", "list", namespace, "--system")) == 3
    assert bk("topic", "list") == 0
    assert f"persistent://{namespace}/orders" in bk.out
    assert bk("topic", "list", "shop/none") == 3
    assert namespace in bk.err
    assert bk("topic", "list", "shop") == 2


@pytest.fixture
def copied(served: Any, namespace: str, tmp_path: Path) -> tuple[str, Path]:
    """The topic ``orders`` with a complete copy of its ledger in a folder, which its record does not name. The endpoint
    in the record does not answer."""
    name = TopicName.parse(f"{namespace}/orders")
    store, path = open_store(served.uri), name.managed_ledger_path
    try:
        record = proto.ManagedLedgerInfo.FromString(tree_of(store).get(path)[0])
        (ledger,) = record.ledgers
        with (
            blocking.connect(served.uri) as bookkeeper,
            bookkeeper.open_ledger(ledger.ledger_id, recover=False) as reader,
        ):
            entries = [bytes(entry) for batch in reader.read(0, 1) for entry in batch.to_list()]
        context, uuid = ledger.offload_context, offloaded.uuid_of(ledger.ledger_id)
        context.uid_msb, context.uid_lsb = uuid.int >> 64, uuid.int & ((1 << 64) - 1)
        context.complete, context.driver.name = True, b"aws-s3"
        for key, value in ((b"bucket", b"cold"), (b"region", b"eu-1"), (b"serviceEndpoint", b"http://127.0.0.1:9")):
            context.driver.properties.add(key=key, value=value)
        tree_of(store).set(path, record.SerializeToString(), ANY_VERSION)
        objects = offloaded.offload({ledger.ledger_id: entries}, 2000)
        offloaded.put(tmp_path / "cold", f"{uuid}-ledger-{ledger.ledger_id}", objects)
    finally:
        store.close()
    return str(name), tmp_path / "cold"


def test_ledger_that_was_offloaded_is_read_from_the_bookies_while_they_have_it(
    bk: Any, copied: tuple[str, Path]
) -> None:
    """No host needs credentials of the object storage for that."""
    name, _ = copied
    assert [each["value"] for each in bk.json("topic", "read", name)][:2] == [{"text": "one"}, {"text": "two"}]


def test_object_storage_is_chosen_and_found_with_options(bk: Any, copied: tuple[str, Path]) -> None:
    name, folder = copied
    stored = ("topic", "read", name, "--raw", "--offloaded-read-priority", "tiered-storage-first")
    assert bk(*stored, "--offload-uri", folder.as_uri()) == 0
    assert bk.out == "one\ntwo\n\n"
    for each in folder.iterdir():
        each.unlink()
    assert bk(*stored, "--offload-uri", folder.as_uri()) == 4
    assert "BK_OFFLOAD_MISSING" in bk.err
    assert bk("topic", "read", name, "--raw", "--offload-uri", folder.as_uri()) == 0


def test_endpoint_region_and_credentials_go_to_the_storage(bk: Any, copied: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = copied
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = me\naws_secret_access_key = hush\n")
    s3 = S3Endpoint("cold")
    s3.objects = {f"cold/{each.name}": each.read_bytes() for each in folder.iterdir()}
    stored = ("--offloaded-read-priority", "tiered-storage-first", "--offload-endpoint", s3.url)
    try:
        told = (*stored, "--offload-region", "eu-2", "--offload-credentials", str(file))
        assert bk("topic", "read", name, "--raw", *told) == 0
        assert bk.out == "one\ntwo\n\n"
        assert s3.signed
        assert all("Credential=me/" in each and "/eu-2/s3/" in each for each in s3.signed)
    finally:
        s3.close()
    file.write_text("password=hush")
    assert bk("topic", "read", name, *stored, "--offload-credentials", str(file)) == 2
    assert "no credentials of object storage in line 1" in bk.err
    assert "hush" not in bk.err
    assert bk("topic", "explain", name, "--offload-endpoint", "minio:9000") == 2
    assert "http://host:port" in bk.err


@pytest.fixture
def with_schema(served: Any, namespace: str) -> str:
    """The topic ``typed`` with two versions of a JSON schema, and three messages."""
    fields = [
        {"name": "id", "type": "long"},
        {"name": "data", "type": ["null", "bytes"], "default": None},
        {"name": "counts", "type": ["null", {"type": "map", "values": "long"}], "default": None},
    ]
    both = [{"type": "record", "name": "R", "fields": fields[:count]} for count in (1, 3)]
    store, topic, index = open_store(served.uri), TopicName.parse(f"{namespace}/typed"), list[proto.SchemaIndexEntry]()
    try:
        with blocking.connect(served.uri) as bookkeeper:
            for number, each in enumerate(both):
                info = proto.SchemaInfo(type=3, schema=json.dumps(each).encode())
                entry = proto.SchemaEntry(schema_data=info.SerializeToString(), index=index)
                with bookkeeper.create_ledger() as ledger:
                    ledger.append(entry.SerializeToString())
                at = proto.Position(ledger_id=ledger.ledger_id, entry_id=0)
                index.append(proto.SchemaIndexEntry(version=number, position=at))
            with bookkeeper.create_ledger() as ledger:
                for value in (b'{"id": 1, "data": "/w==", "counts": {"a": 3}}', b'{"id": 2, "counts": {}}', b"oops"):
                    ledger.append(kit.entry(value))
        ledgers = [proto.LedgerInfo(ledger_id=ledger.ledger_id, entries=3, size=100, timestamp=1)]
        nodes = {
            topic.managed_ledger_path: proto.ManagedLedgerInfo(ledgers=ledgers).SerializeToString(),
            topic.schema_path: proto.SchemaLocator(info=index[-1], index=index).SerializeToString(),
        }
        for path, data in nodes.items():
            ensure_path(tree_of(store), path)
            tree_of(store).set(path, data, ANY_VERSION)
    finally:
        store.close()
    return str(topic)


def test_values_are_printed_as_the_schema_says(bk: Any, with_schema: str) -> None:
    read = ("topic", "read", with_schema, "--limit", "2", "--schema")
    assert [each["value"] for each in bk.json(*read, "latest")] == [
        {"id": 1, "data": {"base64": "/w=="}, "counts": {"a": 3}},
        {"id": 2, "data": None, "counts": {}},
    ]
    assert [each["value"] for each in bk.json(*read, "0")] == [{"id": 1}, {"id": 2}]
    assert bk(*read, "0") == 0
    assert bk.out.endswith('\t{"id": 2}\n')
    assert [each["value"] for each in bk.json("topic", "read", with_schema)][2] == {"text": "oops"}
    assert bk("topic", "read", with_schema, "--schema", "latest") == 6
    assert "BK_MESSAGE_SCHEMA" in bk.err
    assert len(bk.json("topic", "read", with_schema, "--schema", "latest", "--skip-corrupt")) == 2


def test_topic_is_shown(bk: Any, namespace: str) -> None:
    (found,) = bk.json("topic", "show", f"{namespace}/orders")
    (part,) = found["parts"]
    assert (part["endFrom"], part["terminated"], part["subscriptions"]) == ("closed", False, {})
    assert part["ledgers"][0]["entries"] == 2
    assert part["last"] == f"{part['ledgers'][0]['ledgerId']}:1"
    assert bk("topic", "show", f"{namespace}/parts", "--ledgers") == 0
    assert f"persistent://{namespace}/parts-partition-1" in bk.out
    assert bk("topic", "show", f"{namespace}/order") == 3
    assert "near names" in bk.err


def test_messages_are_printed(bk: Any, namespace: str) -> None:
    found = bk.json("topic", "read", f"{namespace}/orders")
    assert [each["value"] for each in found] == [{"text": "one"}, {"text": "two"}, None]
    assert found[0]["key"] == {"text": "k"}
    assert (found[0]["eventTimeMs"], found[0]["properties"]) == (5, {"a": "b"})
    ledger = int(found[0]["messageId"].split(":")[0])
    assert [each["messageId"] for each in found] == [f"{ledger}:0:-1", f"{ledger}:1:-1:0", f"{ledger}:1:-1:1"]
    assert bk("topic", "read", f"{namespace}/orders", "--from", f"{ledger}:1", "--limit", "1") == 0
    assert bk.out == f"{ledger}:1:-1:0\ttwo\n"
    assert bk("topic", "read", f"{namespace}/orders", "--raw") == 0
    assert bk.out == "one\ntwo\n\n"
    assert bk("topic", "read", f"{namespace}/parts", "--follow", "--limit", "3", "--raw") == 0
    assert bk.out == "one\ntwo\n\n"


def test_topic_and_message_are_explained(bk: Any, namespace: str) -> None:
    name = f"{namespace}/orders"
    (found,) = bk.json("topic", "explain", name)
    (part,) = found["parts"]
    ledger = part["first"].partition(":")[0]
    assert (part["last"], part["endFrom"], part["lac"], part["firstUndecided"]) == (f"{ledger}:1", "closed", None, None)
    assert bk("topic", "explain", name) == 0
    assert f"is closed: a read ends after {ledger}:1" in bk.out
    (found,) = bk.json("topic", "explain", name, f"{ledger}:1:-1:0")
    assert (found["batchSize"], found["batchIndex"], found["valueBytes"], found["producer"]) == (2, 0, 3, "p")
    assert set(found["writeSet"].values()) == {"has it"}
    assert found["findings"][0] == {"weight": "fine", "what": "a read shows it", "remedy": ""}
    assert bk("topic", "explain", name, f"{ledger}:0") == 0
    assert "ok: a read shows it" in bk.out
    assert "key              k" in bk.out
    assert bk("topic", "explain", name, f"{ledger}:2") == 2
    assert f"persistent://{name} has no entry {ledger}:2" in bk.err
    assert bk("topic", "explain", f"{namespace}/order", f"{ledger}:0") == 3
    assert "near names" in bk.err


@pytest.mark.long
@pytest.mark.rule("P15")
def test_last_message_of_an_idle_topic_is_printed_after_the_settle_time(bk: Any, namespace: str, served: Any) -> None:
    config = replace(FAST, explicit_lac_delay_ms=50_000, lac_stall_ms=50_000, lac_timeout_ms=60_000)  # as a broker
    store = open_store(served.uri)
    try:
        with blocking.connect(served.uri, config=config) as broker:
            ledger = broker.create_ledger()
            for value in (b"one", b"two"):
                ledger.append(kit.entry(value))
            path = TopicName.parse(f"{namespace}/idle").managed_ledger_path
            ensure_path(tree_of(store), path)
            record = proto.ManagedLedgerInfo(ledgers=[proto.LedgerInfo(ledger_id=ledger.ledger_id)])
            tree_of(store).set(path, record.SerializeToString(), ANY_VERSION)
            assert bk("topic", "read", f"{namespace}/idle", "--raw") == 0
            assert bk.out == "one\n"
            how = ("--quorum", "--quorum-settle-ms", "1000", "--raw")
            assert bk("topic", "read", f"{namespace}/idle", *how) == 0
            assert bk.out == "one\ntwo\n"
            assert bk("topic", "read", f"{namespace}/idle", *how, "--follow", "--limit", "2") == 0
            assert bk.out == "one\ntwo\n"
            assert bk("topic", "explain", f"{namespace}/idle") == 0
            assert f"an ack quorum of bookies has entry {ledger.ledger_id}:1, above the LAC" in bk.out
            ledger.close()
    finally:
        store.close()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("read", "orders", "--follow", "--compacted"), 2),
        (("read", "orders", "--from", "x"), 2),
        (("read", "orders", "--from", "1:1", "--subscription", "s"), 2),
        (("read", "orders", "--subscription", "none"), 2),
        (("read", "non-persistent://public/default/x"), 4),
        (("show", "orders", "--admin-url", "pulsar://x:6650"), 2),
        (("show", "orders", "--admin-url", "http://x:1", "--admin-token", "/none"), 2),
        (("list", "--pulsar-metadata-uri", "etcd://x"), 2),
        (("read", "orders", "--schema", "newest"), 2),
        (("read", "orders", "--schema", "latest", "--raw"), 2),
        (("read", "orders", "--private-key", "x"), 2),
        (("read", "orders", "--quorum", "--quorum-settle-ms", "1"), 2),
        (("explain", "orders", "1"), 2),
        (("explain", "orders", "999999:0"), 2),
        (("read", "orders", "--private-key", "x=/none"), 2),
    ],
)
def test_wrong_use_says_what_is_wrong(bk: Any, namespace: str, arguments: tuple[str, ...], code: int) -> None:
    command, *rest = arguments
    named = [f"{namespace}/{each}" if each == "orders" else each for each in rest]
    assert bk("topic", command, *named) == code, bk.err
