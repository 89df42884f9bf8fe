# SPDX-License-Identifier: Apache-2.0
"""Pulsar's own Python client as a process that reads and writes lines of JSON, as java/Lines.java does.

``tests/interop/pulsar.py`` runs it with the Python of a venv that has ``pulsar-client`` and nothing of this project.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar

from tests.interop.pattern import Pattern, checksum

SEND_S = 120
RECEIVE_MS = 500


class Calls:
    """The commands, and their state between calls. Each command has a thread of its own."""

    def __init__(self) -> None:
        self._client: Any = None
        self._consumers: dict[str, Any] = {}
        self._acked = 0

    def connect(self, url: str) -> dict[str, Any]:
        self._client = pulsar.Client(url, operation_timeout_seconds=SEND_S, logger=pulsar.ConsoleLogger())
        return {}

    def produce(
        self, topic: str, name: str, first: int, count: int, window: int, pattern: dict[str, int]
    ) -> dict[str, Any]:
        """Produce messages of the pattern, whose sequence ids are their numbers. ``acked`` is the first number without
        an ack."""
        producer = self._client.create_producer(
            topic,
            producer_name=name,
            initial_sequence_id=first - 1,
            send_timeout_millis=SEND_S * 1000,
            max_pending_messages=window,
            block_if_queue_full=True,
            batching_max_messages=50,
        )
        payloads, self._acked, failures = Pattern(**pattern), first, list[str]()
        done = threading.Semaphore(0)

        def sent(number: int) -> Callable[[Any, Any], None]:
            def told(result: Any, _: Any) -> None:
                if result == pulsar.Result.Ok and number == self._acked and not failures:
                    self._acked += 1  # acks come in order, on one thread of the library
                elif result != pulsar.Result.Ok or number != self._acked:
                    failures.append(f"message {number}: {result}")
                done.release()

            return told

        for number in range(first, first + count):
            producer.send_async(payloads.payload(number), sent(number), sequence_id=number)
        for _ in range(count):
            if not done.acquire(timeout=SEND_S):
                failures.append("a message was not answered")
                break
        producer.close()
        return {"acked": self._acked, "failures": failures[:5]}

    def acked(self) -> dict[str, Any]:
        return {"acked": self._acked}

    def subscribe(self, topic: str, subscription: str) -> dict[str, Any]:
        """Open a durable subscription, from the first message on or from where its last consumer stopped."""
        self._consumers[subscription] = self._client.subscribe(
            topic, subscription, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=100
        )
        return {}

    def consume(self, subscription: str, count: int, give_up_s: float) -> dict[str, Any]:
        """Consume the next messages, and acknowledge each."""
        consumer = self._consumers[subscription]
        numbers: list[int] = []
        payloads: list[bytes] = []
        deadline = time.monotonic() + give_up_s
        while len(numbers) < count and time.monotonic() < deadline:
            try:
                message = consumer.receive(RECEIVE_MS)
            except pulsar.Timeout:
                continue
            numbers.append(_number(message.data()))
            payloads.append(message.data())
            consumer.acknowledge(message)
        return _found(numbers, payloads)

    def leave(self, subscription: str) -> dict[str, Any]:
        """Close the consumer. The subscription stays."""
        self._consumers.pop(subscription).close()
        return {}

    def read(self, topic: str, count: int, give_up_s: float) -> dict[str, Any]:
        """Read the topic from its first message on with a reader."""
        reader = self._client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=500)
        numbers: list[int] = []
        payloads: list[bytes] = []
        deadline = time.monotonic() + give_up_s
        while len(numbers) < count and time.monotonic() < deadline:
            try:
                message = reader.read_next(RECEIVE_MS)
            except pulsar.Timeout:
                continue
            numbers.append(_number(message.data()))
            payloads.append(message.data())
        more = reader.has_message_available()
        reader.close()
        return {**_found(numbers, payloads), "more": more}


def _number(payload: bytes) -> int:
    return int.from_bytes(payload[:8], "big")


def _found(numbers: list[int], payloads: list[bytes]) -> dict[str, Any]:
    first = numbers[0] if numbers else -1
    wrong = next((number for at, number in enumerate(numbers) if number != first + at), -1)
    return {"count": len(numbers), "first": first, "wrong": wrong, "checksum": checksum(payloads)}


def serve(calls: Any) -> None:
    """Carry out commands. Each calls the method of its name."""
    # The library prints to this process's standard output. So answers go to a copy of it, and the output itself
    # elsewhere.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(answer: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    def run(command: dict[str, Any]) -> None:
        number, name = command.pop("id"), command.pop("do")
        try:
            send({"id": number, "ok": getattr(calls, name)(**command)})
        except Exception as error:
            send({"id": number, "error": {"name": type(error).__name__, "message": str(error)}})

    send({"id": 0, "ok": {}})
    for line in sys.stdin:
        threading.Thread(target=run, args=(json.loads(line),), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    serve(Calls())
