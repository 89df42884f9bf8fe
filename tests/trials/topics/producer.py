# SPDX-License-Identifier: Apache-2.0
"""Pulsar's own Python client as a process that produces at a steady rate, session after session.

The Python of a venv that has ``pulsar-client`` runs it (tests/interop/pulsar.py). For each acknowledged message it
writes a line to a file: the message's number, and its partition, ledger, entry and batch index, or −1 for all of these
if the broker had the message already.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pulsar

from tests.interop.pulsar_calls import SEND_S, serve

TICK_S = 0.02


class Session:
    """A producer with a name of its own. Message N has the sequence id N, so the broker drops a message that comes
    again."""

    def __init__(self, producer: Any, session: int, keys: int, size: int, acks: Path) -> None:
        self._producer, self._session, self._keys, self._size = producer, session, keys, size
        self._acks, self._lock = acks.open("w", encoding="utf-8"), threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = self.acked = 0
        self.failures = list[str]()

    def begin(self, per_second: float) -> None:
        self._thread = threading.Thread(target=self._run, args=(per_second,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Send no more, and wait until all sent messages are answered."""
        self._ends.set()
        assert self._thread is not None
        self._thread.join()
        self._producer.flush()
        deadline = time.monotonic() + SEND_S
        while self.acked + len(self.failures) < self.sent and time.monotonic() < deadline:
            time.sleep(TICK_S)
        self._producer.close()
        with self._lock:
            self._acks.close()

    def _run(self, per_second: float) -> None:
        began = time.monotonic()
        while not self._ends.is_set():
            for number in range(self.sent, int((time.monotonic() - began) * per_second)):
                self._send(number)
            time.sleep(TICK_S)

    def _send(self, number: int) -> None:
        value = f"{self._session}:{number}:".encode()
        self.sent = number + 1
        self._producer.send_async(
            value + b"x" * (number * 7919 % self._size),
            lambda result, message_id: self._told(number, result, message_id),
            sequence_id=number,
            partition_key=f"key {number % self._keys}",
        )

    def _told(self, number: int, result: Any, at: Any) -> None:
        with self._lock:
            if result != pulsar.Result.Ok:
                self.failures.append(f"message {number}: {result}")
                return
            self.acked += 1
            place = f"{at.partition()} {at.ledger_id()} {at.entry_id()} {at.batch_index()}"
            self._acks.write(f"{number} {place if at.ledger_id() >= 0 else '-1 -1 -1 -1'}\n")


class ProducerCalls:
    """The commands of this process. Each runs on a thread of its own."""

    def __init__(self) -> None:
        self._client: Any = None
        self._sessions = dict[int, Session]()

    def connect(self, url: str) -> dict[str, Any]:
        self._client = pulsar.Client(url, operation_timeout_seconds=SEND_S, logger=pulsar.ConsoleLogger())
        return {}

    def begin(
        self, topic: str, session: int, keys: int, per_second: float, size: int, kind: str, acks: str
    ) -> dict[str, Any]:
        """Begin to produce: ``plain`` messages, ``batched`` ones, or batches compressed with ``lz4``."""
        more = {"compression_type": pulsar.CompressionType.LZ4} if kind == "lz4" else {}
        producer = self._client.create_producer(
            topic,
            producer_name=f"session {session}",
            initial_sequence_id=-1,
            send_timeout_millis=SEND_S * 1000,
            max_pending_messages=2000,
            block_if_queue_full=True,
            batching_enabled=kind != "plain",
            batching_max_messages=20,
            **more,
        )
        made = self._sessions[session] = Session(producer, session, keys, size, Path(acks))
        made.begin(per_second)
        return {}

    def end(self, session: int) -> dict[str, Any]:
        """End a session. All its messages are then acknowledged, or have failed."""
        ended = self._sessions.pop(session)
        ended.end()
        return {"sent": ended.sent, "acked": ended.acked, "failures": ended.failures[:5]}


if __name__ == "__main__":
    serve(ProducerCalls())
