# SPDX-License-Identifier: Apache-2.0
"""Kafka as Spark's users tune it: spark-sql-kafka in the process that measures, its topics on the broker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

CONNECTOR_JARS = "BENCH_KAFKA_CONNECTOR"
"""Environment variable: the directory with spark-sql-kafka and what it needs."""

PRODUCER = {"acks": "all", "linger.ms": "50", "batch.size": str(1 << 20), "buffer.memory": str(128 << 20)}
TUNED_CONSUMER = {
    "max.poll.records": "10000",
    "fetch.max.bytes": str(64 << 20),
    "max.partition.fetch.bytes": str(16 << 20),
    "receive.buffer.bytes": str(1 << 20),
}
ADMIN_TIMEOUT_MS = "30000"


def kafka_classpath() -> str:
    """Return the class path of the connector's jars that pyspark does not bring itself."""
    import pyspark

    brought = {jar.name for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    jars = [jar for jar in sorted(Path(os.environ[CONNECTOR_JARS]).glob("*.jar")) if jar.name not in brought]
    return os.pathsep.join(map(str, jars))


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics with ``partitions`` partitions on a broker."""

    spark: Any
    broker: str
    partitions: int

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Make an empty topic, and delete it afterwards."""
        name = self.create()
        try:
            yield name
        finally:
            self._admin(lambda admin, names: admin.deleteTopics(names).all().get(), name)

    def create(self) -> str:
        """Make an empty topic."""
        name = f"bench-{uuid4().hex[:8]}"
        java = self.spark._jvm

        def create(admin: Any, _: Any) -> None:
            topics = java.java.util.ArrayList()
            topics.add(java.org.apache.kafka.clients.admin.NewTopic(name, self.partitions, 1))
            admin.createTopics(topics).all().get()

        self._admin(create, name)
        return name

    def filled(self, frame: Any, rows: int) -> str:
        """Make a topic with these rows, read it once and check their number."""
        name = self.create()
        self.write(frame, name)
        found = self.read(name, {}).count()
        assert found == rows, f"{found} rows of {rows} in the topic"
        return name

    def write(self, frame: Any, topic: str) -> None:
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.broker).option("topic", topic)
        writer.options(**{f"kafka.{name}": value for name, value in PRODUCER.items()}).save()

    def read(self, topic: str, consumer: Mapping[str, str]) -> Any:
        """Return whole rows of a topic. ``consumer`` are settings of the consumer."""
        return self._source(self.spark.read, topic, consumer)

    def stream(self, topic: str, consumer: Mapping[str, str]) -> Any:
        """Return a stream of a topic, from its beginning."""
        return self._source(self.spark.readStream, topic, consumer)

    def _source(self, reader: Any, topic: str, consumer: Mapping[str, str]) -> Any:
        source = reader.format("kafka").option("kafka.bootstrap.servers", self.broker).option("subscribe", topic)
        tuned = {f"kafka.{name}": value for name, value in consumer.items()}
        return source.option("startingOffsets", "earliest").options(**tuned).load()

    def _admin(self, work: Any, topic: str) -> None:
        java = self.spark._jvm
        settings = java.java.util.Properties()
        settings.put("bootstrap.servers", self.broker)
        settings.put("request.timeout.ms", ADMIN_TIMEOUT_MS)
        names = java.java.util.ArrayList()
        names.add(topic)
        admin = java.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            work(admin, names)
        finally:
            admin.close()
