# SPDX-License-Identifier: Apache-2.0
"""Pulsar's own Python client as a process that makes topics of many kinds, and returns what a reader gets from them.

``tests/interop/pulsar_topics.py`` runs it with the Python of a venv that has ``pulsar-client``.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
from pulsar import schema as pulsar_schema

from tests.interop.pulsar_calls import RECEIVE_MS, SEND_S, serve

COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


class Order(pulsar_schema.Record):  # type: ignore[misc]  # pulsar-client has no types
    """The record of topics with a schema."""

    number = pulsar_schema.Integer()
    item = pulsar_schema.String()


class TopicCalls:
    """The commands of the process. Each has a thread of its own."""

    def __init__(self) -> None:
        self._client: Any = None
        self._kept: dict[str, Any] = {}  # the producers of send, which stay open

    def connect(self, url: str) -> dict[str, Any]:
        self._client = pulsar.Client(url, operation_timeout_seconds=SEND_S, logger=pulsar.ConsoleLogger())
        return {}

    def produce(self, topic: str, kind: str, count: int, seed: int = 1) -> dict[str, Any]:
        """Produce messages of a kind. All are acknowledged when this returns."""
        dice = random.Random(f"{kind} {seed}")
        producer = self._client.create_producer(topic, **_producer(kind))
        sent = 0
        for content, options in _MESSAGES.get(kind, _plain)(dice, count):
            if kind in ("avro", "json"):
                content = Order(number=sent, item=content.hex()[:20])
            producer.send_async(content, _ignore, **options)
            sent += 1
            if sent % 50 == 0 and kind != "single batch":
                producer.flush()
        producer.flush()
        producer.close()
        return {"sent": sent}

    def send(self, topic: str, text: str) -> dict[str, Any]:
        """Send one message alone with a producer that stays open. Return when it was acknowledged."""
        producer = self._kept.get(topic)
        if producer is None:
            producer = self._kept[topic] = self._client.create_producer(topic, **_producer("one"))
        producer.send(text.encode())
        return {"acked": time.time()}

    def read(self, topic: str, give_up_s: float, compacted: bool = False, key: str = "") -> dict[str, Any]:
        """Return the messages that a reader gets from a topic without partitions, or from one partition, from begin to
        end."""
        more: dict[str, Any] = {}
        if key:
            more["crypto_key_reader"] = pulsar.CryptoKeyReader(key.replace("private", "public"), key)
        reader = self._client.create_reader(
            topic, pulsar.MessageId.earliest, receiver_queue_size=200, is_read_compacted=compacted, **more
        )
        rows = list[dict[str, Any]]()
        deadline = time.monotonic() + give_up_s
        while time.monotonic() < deadline and reader.has_message_available():
            try:
                message = reader.read_next(RECEIVE_MS)
            except pulsar.Timeout:
                continue
            rows.append(_row(message))
        reader.close()
        return {"rows": rows}


def _ignore(*_: object) -> None:
    pass


def _producer(kind: str) -> dict[str, Any]:
    """Return the arguments for a producer of this kind."""
    found: dict[str, Any] = {
        "producer_name": f"producer of {kind}",
        "send_timeout_millis": SEND_S * 1000,
        "block_if_queue_full": True,
        "batching_enabled": kind not in ("plain", "chunked", "one"),
        "batching_max_messages": 20,
        "batching_max_publish_delay_ms": 50,
    }
    if kind in COMPRESSIONS:
        found["compression_type"] = COMPRESSIONS[kind]
    if kind == "plain zstd":
        found["compression_type"], found["batching_enabled"] = pulsar.CompressionType.ZSTD, False
    if kind == "chunked":
        found |= {"chunking_enabled": True, "compression_type": pulsar.CompressionType.LZ4}
    if kind == "avro":
        found["schema"] = pulsar_schema.AvroSchema(Order)
    if kind == "json":
        found["schema"] = pulsar_schema.JsonSchema(Order)
    if kind.startswith("encrypted "):
        private = kind.partition(" ")[2]
        found |= {
            "encryption_key": "client-rsa",
            "crypto_key_reader": pulsar.CryptoKeyReader(private.replace("private", "public"), private),
        }
    return found


Made = Iterator[tuple[bytes, dict[str, Any]]]


def _plain(dice: random.Random, count: int) -> Made:
    for number in range(count):
        yield dice.randbytes(dice.randrange(200)), {"properties": {"n": str(number)} if number % 3 else {}}


def _keyed(dice: random.Random, count: int) -> Made:
    for number in range(count):
        yield (
            dice.randbytes(dice.randrange(50)),
            {
                "partition_key": f"key {dice.randrange(10)} é",
                "ordering_key": f"o{number % 3}",
                "event_timestamp": 1_700_000_000_000 + number,
                "properties": {"é": "ü", "empty": ""},
            },
        )


def _for_compaction(dice: random.Random, count: int) -> Made:
    for number in range(count):
        content = b"" if number % 17 == 0 else dice.randbytes(20)
        yield content, {"partition_key": f"key {dice.randrange(30)}"} if number % 11 else {}


def _large(dice: random.Random, count: int) -> Made:
    for number in range(count):
        yield dice.randbytes(12_000_000 if number % 3 == 0 else 100), {}


_MESSAGES: dict[str, Callable[[random.Random, int], Made]] = {
    "keyed": _keyed,
    "compacted": _for_compaction,
    "chunked": _large,
}


def _row(message: Any) -> dict[str, Any]:
    return {
        "id": base64.b64encode(message.message_id().serialize()).decode(),
        "value": base64.b64encode(message.data()).decode(),
        "key": message.partition_key(),
        "topic": message.topic_name(),
        "publish_time": message.publish_timestamp(),
        "event_time": message.event_timestamp(),
        "properties": message.properties(),
        "producer": message.producer_name() if hasattr(message, "producer_name") else None,
    }


if __name__ == "__main__":
    serve(TopicCalls())
