# SPDX-License-Identifier: Apache-2.0
"""Kafka as a Python user uses it: confluent-kafka on one broker with one partition, which keeps one copy unsynced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from benchmarks.peers import install
from benchmarks.peers.broker import kafka_broker
from benchmarks.report.figures import Run, elapsed
from benchmarks.running.processes import BROKER
from bk_core.errors import BookKeeperError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

    from benchmarks.running.world import World

QUEUED_MESSAGES_MAX = 1_000_000
PRODUCER = {
    "acks": "all",
    "linger.ms": 20,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
    "queue.buffering.max.kbytes": 256 << 10,
    "compression.type": "none",
}
CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.message.max.bytes": 8 << 20,
    "fetch.max.bytes": 64 << 20,
    "queued.min.messages": 1_000_000,  # with the default, 100,000, it pauses for a second whenever as many wait
    "queued.max.messages.kbytes": 256 << 10,
    "fetch.queue.backoff.ms": 10,
    "check.crcs": True,
}
AT_ONCE = 10_000
"""The number of messages that one call of ``consume`` returns, and that are produced between two calls of ``poll``."""
PATIENCE_S = 60.0
NOTE = (
    f"Kafka {install.KAFKA}, confluent-kafka, one broker, one partition, one copy, no sync, acks=all, a CRC a batch; "
    f"producer: produce a message, linger {PRODUCER['linger.ms']} ms, batches of 1 MiB; consumer: consume({AT_ONCE:,})"
)


class Kafka:
    """A broker, and topics on it."""

    def __init__(self, world: World) -> None:
        self._world = world
        with world.processes.born(BROKER):
            jars = install.broker_jars()
            self.address = world.stack.enter_context(kafka_broker(jars, world.folder / "kafka"))
        self._failures: list[str] = []

    def produce(self, size: int, total: int) -> Run:
        """Return the bytes per second, from the first ``produce`` to the answer to the last."""
        with self._topic() as topic:
            return Run.of(total / self._send_s(topic, size, total), total)

    def consuming(self, size: int, total: int) -> Callable[[], Run]:
        """Fill a topic. Return a function that measures the bytes per second of consuming it."""
        topic, count = self._world.during.enter_context(self._topic()), total // size
        self._send_s(topic, size, total)
        return lambda: Run.of(total / self._receive_s(topic, count), total)

    def _send_s(self, topic: str, size: int, total: int) -> float:
        """Produce messages of ``total`` bytes. Return the seconds without those of connecting."""
        from confluent_kafka import Producer

        payloads = self._world.data.messages(size, total)
        producer = Producer({"bootstrap.servers": self.address, **PRODUCER, "error_cb": self._on_error})
        producer.list_topics(topic, timeout=PATIENCE_S)
        return elapsed(lambda: self._send(producer, topic, payloads, total // size))

    def _send(self, producer: Producer, topic: str, payloads: list[bytes], count: int) -> None:
        for number, payload in enumerate(itertools.islice(itertools.cycle(payloads), count)):
            try:
                producer.produce(topic, payload)
            except BufferError:
                while len(producer) >= QUEUED_MESSAGES_MAX // 2:
                    producer.poll(0.1)
                producer.produce(topic, payload)
            if number % AT_ONCE == 0:
                producer.poll(0)
        left = producer.flush(PATIENCE_S)
        self._check(not left, f"{left} messages were not answered")

    def _receive_s(self, topic: str, count: int) -> float:
        """Consume ``count`` messages. Return the seconds without those of connecting."""
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": topic, **CONSUMER})
        try:
            consumer.list_topics(topic, timeout=PATIENCE_S)
            return elapsed(lambda: self._receive(consumer, topic, count))
        finally:
            consumer.close()

    def _receive(self, consumer: Consumer, topic: str, count: int) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        seen = 0
        while seen < count:
            messages = consumer.consume(min(AT_ONCE, count - seen), timeout=PATIENCE_S)
            self._check(bool(messages), f"{seen} of {count} messages of {topic} arrived")
            self._check(messages[0].error() is None, str(messages[0].error()))
            seen += len(messages)

    def _on_error(self, error: KafkaError) -> None:
        self._failures.append(str(error))

    def _check(self, right: bool, what: str) -> None:
        if not right:
            raise BookKeeperError("Kafka failed", value="; ".join([what, *self._failures[-1:]]))

    @contextmanager
    def _topic(self) -> Iterator[str]:
        """Make an empty topic, and delete it afterwards."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin, name = AdminClient({"bootstrap.servers": self.address}), f"bench-{uuid4().hex[:8]}"
        for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
            made.result(PATIENCE_S)
        try:
            yield name
        finally:
            for gone in admin.delete_topics([name]).values():
                gone.result(PATIENCE_S)
