# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.interop.pulsar_topics``: topics of many kinds, for which our rows are compared with those of
Pulsar's own clients.

A Pulsar broker, unchanged, keeps its topics on our bookies, or on Apache's with ``--apache``. Its Python client and its
Java client produce. Then each topic is read from the ledgers, and by one of these clients through the broker. Message
ids, values, keys, times and properties must be equal, one by one. ``--golden FILE`` keeps some entries of each topic
with their rows, which tests without a broker read.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bk_cli.access import Access
from bk_cli.explain.message_findings import explain_message
from bk_cli.explain.message_seen import see_message
from bk_cli.local.cluster import LocalCluster
from bk_core.blocking import BookKeeper
from bk_core.blocking.topics import Topic
from bk_core.cluster.finding import Weight
from bk_core.errors import BookKeeperError, MessageEncryptedError
from bk_core.pulsar.cluster import PulsarAccess
from bk_core.pulsar.messages.rows import TYPES
from bk_core.pulsar.model.message_id import MessageId
from bk_core.pulsar.offloaded.access import BY_THE_RECORD, OffloadStorage
from tests.interop.jars import PULSAR, toolchain
from tests.interop.java_process import JavaProgram, Program
from tests.interop.pulsar import Broker, Client, broker_settings, install_client
from tests.interop.pulsar_offloaded import BUCKET, ENVIRONMENT, offloaded, settings
from tests.interop.pulsar_schemas import schema_kinds
from tests.interop.steps import Steps, parser, run
from tests.kit.pulsar_rows import base64_of, rows_of
from tests.kit.s3_endpoint import S3Endpoint

TOPICS = "persistent://public/default/"
CLIENT = "pulsar-client[avro]"
WITHIN_S = 120.0
GOLDEN_ENTRIES, GOLDEN_BATCHES = 20, 2
"""The number of entries that are kept of a topic, and of a topic with large batches."""
LARGE_BATCHES = ("none", "lz4", "zlib", "zstd", "snappy", "keyed", "avro", "json")
SETTINGS = {
    "transactionCoordinatorEnabled": "true",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "brokerDeduplicationEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMaxLedgerRolloverTimeMinutes": "60",
    "maxMessageSize": str(1 << 20),
    "managedLedgerInfoCompressionType": "ZSTD",
    "managedLedgerInfoCompressionThresholdInBytes": "0",
    "managedCursorInfoCompressionType": "LZ4",
    "managedCursorInfoCompressionThresholdInBytes": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerEntryMetadataInterceptors": "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
    "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor",
}
PYTHON_KINDS = ("plain", "none", "lz4", "zlib", "zstd", "snappy", "plain zstd", "keyed", "avro", "json")
OBJECTS = "pulsar-offloaded.json"
"""The file with the objects of a ledger. It lies beside the file with entries."""
SENT = 300
QUORUM_SETTLE_MS = 2000
EXPLAINED = 30
"""The number of entries at the end of a topic that are explained."""


def as_python_says(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the form of the Python client, which has no nulls and no ordering keys, and whose keys are
    text."""
    found = []
    for row in rows:
        key = base64.b64decode(row["key"] or b"").decode()
        more = {name: row[name] for name in ("id", "topic", "publish_time", "event_time", "properties", "producer")}
        found.append({**more, "value": row["value"] or "", "key": key})
    return found


def with_ids(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the Java client with our bytes of ids. Java's have a batch size of 0 where other clients write
    none."""
    same = {each["id"]: MessageId.deserialize(base64.b64decode(each["id"])).serialize() for each in rows}
    return [{**each, "id": base64_of(same[each["id"]])} for each in rows]


def compare(theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], least: int = 1) -> str:
    """Compare rows. Raises AssertionError at the first message that differs."""
    for at, (a, b) in enumerate(zip(theirs, ours, strict=False)):
        differs = {name: (str(a[name])[:200], str(b[name])[:200]) for name in a if a[name] != b[name]}
        assert not differs, f"message {at}: {differs}"
    assert len(theirs) == len(ours) >= least, f"{len(theirs)} messages of Pulsar's client, {len(ours)} of ours"
    return f"{len(ours)} messages, equal"


class World:
    """A broker, its two clients, and our client."""

    def __init__(
        self,
        cluster: LocalCluster,
        broker: Broker,
        bookkeeper: BookKeeper,
        python: Program,
        java: Program,
        keys: Path,
        s3: S3Endpoint,
    ) -> None:
        self.cluster, self.broker, self.bookkeeper = cluster, broker, bookkeeper
        self.python, self.java, self.keys = python, java, keys
        self.s3 = s3
        self.golden: list[dict[str, Any]] = []
        self.objects: dict[str, Any] = {}

    def topic(self, name: str, **access: Any) -> Topic:
        return self.bookkeeper.topic(name, access=PulsarAccess(admin_url=self.broker.web_url, **access))

    def ours(
        self,
        name: str,
        private_keys: dict[str, bytes] | None = None,
        offload: OffloadStorage = BY_THE_RECORD,
        **how: Any,
    ) -> list[dict[str, Any]]:
        with self.topic(name, private_keys=private_keys, offload=offload) as topic:
            return rows_of(topic.to_arrow(columns=list(TYPES), **how))

    def produce(self, name: str, kind: str, count: int = SENT, seed: int = 1) -> None:
        self.python.call("produce", within_s=WITHIN_S, topic=name, kind=kind, count=count, seed=seed)

    def python_reads(self, name: str, **how: Any) -> list[dict[str, Any]]:
        rows = self.python.call("read", within_s=WITHIN_S, topic=name, give_up_s=WITHIN_S / 2, **how)["rows"]
        return [{key: value for key, value in row.items() if value is not None} for row in rows]

    def java_reads(self, name: str, **how: Any) -> list[dict[str, Any]]:
        return with_ids(self.java.call("read", within_s=WITHIN_S, topic=name, **how)["rows"])

    def keep(self, kind: str, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Keep the first entries of a topic, with their rows."""
        with self.topic(name) as topic:
            (plan,) = topic.plan()
        first = plan.ranges[0]
        last = min(first.last, (GOLDEN_BATCHES if kind in LARGE_BATCHES else GOLDEN_ENTRIES) - 1)
        with self.bookkeeper.open_ledger(first.ledger_id, recover=False) as reader:
            batches = reader.read(0, last, unconfirmed=not reader.is_closed)  # the broker has confirmed them
            entries = [each for batch in batches for each in batch.to_list()]
        kept = [each for each in rows if _is_up_to(each["id"], first.ledger_id, last)]
        made = [base64_of(each) for each in entries]
        self.golden.append({"kind": kind, "ledgerId": first.ledger_id, "entries": made, "rows": kept})


def _is_up_to(message_id: str, ledger_id: int, last: int) -> bool:
    found = MessageId.deserialize(base64.b64decode(message_id))
    return found.ledger_id == ledger_id and found.entry_id <= last


def python_kinds(steps: Steps, world: World, kinds: Sequence[str] = PYTHON_KINDS) -> None:
    for kind in kinds:
        with steps.step(f"{kind}, as the Python client reads it", go_on=True) as step:
            name = TOPICS + kind.replace(" ", "-")
            world.produce(name, kind)
            ours = world.ours(name)
            step.found = compare(world.python_reads(name), as_python_says(ours), SENT)
            world.keep(kind, name, ours)
    with steps.step("chunked, several megabytes", go_on=True) as step:
        world.produce(TOPICS + "large", "chunked", 4)
        step.found = compare(world.python_reads(TOPICS + "large"), as_python_says(world.ours(TOPICS + "large")), 4)
    with steps.step("encrypted", go_on=True) as step:
        name, private = TOPICS + "encrypted", world.keys / "private.pem"
        world.produce(name, f"encrypted {private}", 120)
        ours = world.ours(name, private_keys={"client-rsa": private.read_bytes()})
        step.found = compare(world.python_reads(name, key=str(private)), as_python_says(ours), 120)
        with pytest.raises(MessageEncryptedError, match="client-rsa"):
            world.ours(name)


def java_kinds(steps: Steps, world: World) -> None:
    odd = {"odd": {}, "odd in batches": {"batched": True}, "odd in batches by key": {"batched": True, "by_key": True}}
    for kind, how in odd.items():
        with steps.step(f"{kind}: null values, keys of bytes, delays", go_on=True) as step:
            name = TOPICS + kind.replace(" ", "-")
            world.java.call("odd", within_s=WITHIN_S, topic=name, count=100, **how)
            ours = world.ours(name)
            step.found = compare(world.java_reads(name), ours, 100)
            world.keep(kind, name, ours)
    with steps.step("small chunks of two producers", go_on=True) as step:
        name = TOPICS + "chunked"
        world.java.call("chunked", within_s=WITHIN_S, topic=name, count=60)
        ours = world.ours(name)
        step.found = compare(world.java_reads(name), ours, 60)
        world.keep("chunked", name, ours)
    for number, (batched, outcomes) in enumerate(
        [
            (True, ["commit", "abort", "none", "commit"]),
            (False, ["abort", "none", "commit"]),
            (False, ["none", "commit", "leave", "abort"]),
        ]
    ):
        with steps.step(f"transactions: {', '.join(outcomes)}", go_on=True) as step:
            name = f"{TOPICS}transactions-{number}"
            world.java.call("transact", within_s=WITHIN_S, topic=name, count=60, batched=batched, outcomes=outcomes)
            ours, everything = world.ours(name), world.ours(name, isolation="read_uncommitted")
            step.found = compare(world.java_reads(name), ours) + f"; {len(everything)} uncommitted"
            assert len(everything) == 60


def states(steps: Steps, world: World) -> None:
    """Compare topics after operations on them, such as a trim."""
    admin = world.broker.admin
    with steps.step("compacted, as the Java client reads it", go_on=True) as step:
        name = TOPICS + "compacted"
        world.produce(name, "compacted")
        admin("PUT", "persistent/public/default/compacted/compaction")
        _wait(lambda: json.loads(admin("GET", "persistent/public/default/compacted/compaction"))["status"] == "SUCCESS")
        step.found = compare(world.java_reads(name, compacted=True), world.ours(name, compacted=True), 20)
        world.produce(name, "compacted", 30, seed=2)
        step.found += "; and more behind: " + compare(
            world.java_reads(name, compacted=True), world.ours(name, compacted=True), 50
        )
        step.found += "; whole: " + compare(world.java_reads(name), world.ours(name), SENT + 30)
    with steps.step("partitioned", go_on=True) as step:
        name = TOPICS + "partitioned"
        admin("PUT", "persistent/public/default/partitioned/partitions", b"3")
        world.produce(name, "keyed")
        theirs = [row for number in range(3) for row in world.python_reads(f"{name}-partition-{number}")]
        step.found = compare(theirs, as_python_says(world.ours(name)), SENT)
    with steps.step("terminated", go_on=True) as step:
        name = TOPICS + "terminated"
        world.produce(name, "none", 120)
        admin("POST", "persistent/public/default/terminated/terminate")
        step.found = compare(world.python_reads(name), as_python_says(world.ours(name)), 120)
        with world.topic(name) as topic, topic.tail() as tail:
            assert sum(batch.num_rows for batch in tail) == 120
    with steps.step("trimmed", go_on=True) as step:
        name = TOPICS + "trimmed"
        world.produce(name, "plain", 170)
        before = {row["id"] for row in world.ours(name)}
        retention = '{{"retentionTimeInMinutes":{0},"retentionSizeInMB":{0}}}'
        admin("POST", "namespaces/public/default/retention", retention.format(0).encode())

        def is_trimmed() -> bool:
            admin("POST", "persistent/public/default/trimmed/trim")  # repeated until the broker uses the new retention
            return 0 < len(world.ours(name)) < 170

        _wait(is_trimmed)
        admin("POST", "namespaces/public/default/retention", retention.format(-1).encode())
        ours = world.ours(name)
        step.found = compare(world.python_reads(name), as_python_says(ours), 1)
        assert {row["id"] for row in ours} < before
    with steps.step("the last message of an idle topic", go_on=True) as step:
        step.found = _idle(world, TOPICS + "idle")


def explained(steps: Steps, world: World) -> None:
    """Check that ``bk topic explain`` says that an entry is shown if, and only if, a read has a row of it."""
    for name in ("transactions-0", "transactions-2", "chunked", "plain", "lz4"):
        with steps.step(f"{name}: what is said of entries is what reads show", go_on=True) as step:
            ids = [MessageId.deserialize(base64.b64decode(row["id"])) for row in world.ours(TOPICS + name)]
            rows = {each.entry for each in ids} | {each.first_chunk for each in ids if each.first_chunk is not None}
            with world.topic(TOPICS + name) as topic:
                last = topic.plan(isolation="read_uncommitted")[0].ranges[-1]
            access, shown = PulsarAccess(admin_url=world.broker.web_url), 0
            for entry_id in range(max(0, last.last + 1 - EXPLAINED), last.last + 1):
                wanted = MessageId(last.ledger_id, entry_id)
                look = partial(see_message, name=TOPICS + name, wanted=wanted, access=access)
                seen = world.bookkeeper.begin(look).result()
                finding = explain_message(seen)[0]
                is_between = seen.chunks is not None and wanted.entry not in rows
                assert is_between or (finding.weight is Weight.FINE) == (wanted.entry in rows), (wanted, finding)
                shown += finding.weight is Weight.FINE
            step.found = f"{shown} of {last.last + 1 - max(0, last.last + 1 - EXPLAINED)} entries are shown"


def _idle(world: World, name: str) -> str:
    world.produce(name, "one", 3)
    with world.bookkeeper.topic(name) as alone:
        without = alone.to_arrow(columns=["value"]).num_rows
    with world.topic(name) as topic, topic.tail(columns=["value"]) as tail:
        seen = 0
        while seen < 3:
            seen += next(tail).num_rows
        world.produce(name, "one", 1)
        acked = time.monotonic()
        assert next(tail).num_rows == 1
        took = time.monotonic() - acked
    assert took < 1, f"the message came {took:.2f} s after its acknowledgement"
    with world.bookkeeper.topic(name, access=PulsarAccess(quorum_settle_ms=QUORUM_SETTLE_MS)) as alone:
        assert alone.to_arrow(columns=["value"]).num_rows == 4, (
            "the read misses the last message, which an ack quorum of bookies has"
        )
    return (
        f"shown {max(0.0, took) * 1000:.0f} ms after its producer was closed; without a broker {without} of 3 messages"
    )


class Tail:
    """A tail of a topic on a thread of its own."""

    def __init__(self, topic: Topic) -> None:
        self._tail = topic.tail(columns=["__messageId", "__partition"])
        self.seen: dict[int, list[bytes]] = {}
        self.count, self.error = 0, ""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._tail:
                for row in batch.to_pylist():
                    self.seen.setdefault(row["__partition"], []).append(row["__messageId"])
                self.count += batch.num_rows
        except BookKeeperError as error:
            self.error = "" if self._is_closed else str(error)

    def close(self) -> None:
        self._is_closed = True
        self._tail.close()
        self._thread.join(WITHIN_S)


def followed(steps: Steps, world: World) -> None:
    """Check that a tail sees each message once, in order, whatever happens to the topic and to its processes."""
    name, admin = TOPICS + "followed", world.broker.admin
    path = "persistent/public/default/followed/partitions"
    with steps.step(
        "a tail while ledgers roll, bookies and the broker die, and partitions are added", go_on=True
    ) as step:
        admin("PUT", path, b"2")
        with world.topic(name) as topic:
            tail = Tail(topic)
            for number, disturb in enumerate((None, _kill_bookie, _kill_broker, None, _kill_bookie)):
                producing = world.python.submit("produce", topic=name, kind="followed", count=2000, seed=number)
                if disturb is not None:
                    time.sleep(0.3)
                    disturb(world, number)
                world.python.result(producing, WITHIN_S, "produce")
                if number == 2:
                    admin("POST", path, b"4")
            table = topic.to_arrow(columns=["__messageId", "__partition"])
            _wait(lambda: tail.count >= table.num_rows or tail.error)
            tail.close()
        assert not tail.error, tail.error
        written = dict[int, list[bytes]]()
        for row in table.to_pylist():
            written.setdefault(row["__partition"], []).append(row["__messageId"])
        assert tail.seen == written
        step.found = f"{table.num_rows} messages of {len(written)} partitions, each once, in order"


def _kill_bookie(world: World, number: int) -> None:
    victim = world.cluster.bookies[number % len(world.cluster.bookies)]
    victim.kill()
    time.sleep(2)
    victim.start()
    world.cluster.wait_ready([victim])


def _kill_broker(world: World, number: int) -> None:
    world.broker.kill()
    world.broker.start()


def _wait(is_done: Any) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_done():
        assert time.monotonic() < deadline, "the condition was not true in time"
        time.sleep(0.2)


@contextmanager
def started(steps: Steps, path: Path, *, apache: bool) -> Iterator[World]:
    with steps.step("jars and client") as step:
        tools = toolchain(PULSAR)
        python, version = install_client(path / "venv", CLIENT)
        step.found = f"{PULSAR}; {CLIENT} {version}"
    with LocalCluster(path / "cluster", bookies=4, port=0, zookeeper_port=0, apache=apache) as cluster:
        s3, programs = S3Endpoint(BUCKET), list[Program]()
        changed = broker_settings({**SETTINGS, **settings(s3, path)})
        broker = Broker(cluster, changed, environment=ENVIRONMENT)
        try:
            with steps.step("the broker starts") as step:
                broker.initialize()
                broker.initialize_transactions()
                broker.start()
                programs.append(Client(python, cluster, broker, "python", "tests.interop.pulsar_topic_calls"))
                programs.append(JavaProgram(tools, "TopicCalls", cluster.data_dir / "java.log"))
                programs[1].call("connect", url=broker.url)
                step.found = f"on {'Apache' if apache else 'our'} bookies"
            _make_keys(path)
            with Access(cluster.uri).client() as bookkeeper:
                yield World(cluster, broker, bookkeeper, programs[0], programs[1], path, s3)
        finally:
            for program in programs:
                program.kill()
            broker.kill()
            s3.close()


def _make_keys(path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (path / "private.pem").write_bytes(private)
    (path / "public.pem").write_bytes(public)


def trial(steps: Steps, path: Path, *, apache: bool, golden: Path | None) -> None:
    with started(steps, path, apache=apache) as world:
        python_kinds(steps, world)
        java_kinds(steps, world)
        states(steps, world)
        explained(steps, world)
        schema_kinds(steps, world)
        offloaded(steps, world)
        followed(steps, world)
        if golden is not None:
            golden.write_text("".join(json.dumps(each) + "\n" for each in world.golden), encoding="utf-8")
            golden.with_name(OBJECTS).write_text(json.dumps(world.objects) + "\n", encoding="utf-8")


def main() -> int:
    options = parser("tests.interop.pulsar_topics", "Topics of a Pulsar broker, read from the bookies.")
    options.add_argument("--apache", action="store_true", help="on Apache's bookies instead of ours")
    options.add_argument("--golden", type=Path, metavar="FILE", help="keep some entries of each topic with their rows")
    ask: argparse.Namespace = options.parse_args()
    return run(ask, partial(trial, apache=ask.apache, golden=ask.golden))


if __name__ == "__main__":
    sys.exit(main())
