# SPDX-License-Identifier: Apache-2.0
"""Pulsar's Python client as a process that reads topics for measurements. The Python of a venv that has
``pulsar-client`` runs it."""

from __future__ import annotations

import time
from typing import Any

import pulsar

from tests.interop.pulsar_calls import SEND_S, serve

RECEIVE_MS = 60_000
QUEUE = 10_000
"""The number of messages that the client fetches ahead. With its default of 1,000 it is slower."""


class ReaderCalls:
    """The commands of this process. Each public method is one."""

    def __init__(self) -> None:
        self._client: Any = None

    def connect(self, url: str) -> dict[str, Any]:
        self._client = pulsar.Client(url, operation_timeout_seconds=SEND_S, logger=pulsar.ConsoleLogger())
        return {}

    def drain(self, topic: str, count: int) -> dict[str, Any]:
        """Read the first ``count`` messages of the topic. Return the seconds that this takes, and the total size of the
        messages' values in bytes."""
        began, size = time.perf_counter(), 0
        reader = self._client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=QUEUE)
        for _ in range(count):
            size += len(reader.read_next(RECEIVE_MS).data())
        seconds = time.perf_counter() - began
        reader.close()
        return {"seconds": seconds, "bytes": size}


if __name__ == "__main__":
    serve(ReaderCalls())
