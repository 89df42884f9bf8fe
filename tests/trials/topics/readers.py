# SPDX-License-Identifier: Apache-2.0
"""The two readers of the trial: a Spark query in a process of its own, and a tail in Python. Neither learns which
faults the trial causes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa

from bk_cli.local.children import child_environment, last_lines
from bk_core.blocking.topics import Topic
from bk_core.errors import BookKeeperError
from bk_core.pulsar.model.message_id import MessageId
from tests.kit.waiting import comes_true
from tests.trials.topics.judge import Content, Id, Row, Seen

STOP_S = 60.0


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return the rows of a reader, from its columns ``__partition``, ``__messageId``, ``__key`` and ``value``."""
    found = list[Row]()
    for row in table.to_pylist():
        at = MessageId.deserialize(row["__messageId"])
        session, number, _ = bytes(row["value"]).split(b":", 2)
        id = Id(at.ledger_id, at.entry_id, at.batch_index)
        found.append(Row(row["__partition"], id, row["__key"].decode(), Content(int(session), int(number))))
    return found


class Stream:
    """The query's process, and the files that it writes. :meth:`start` continues from the checkpoint."""

    def __init__(self, where: Path, options: dict[str, str]) -> None:
        where.mkdir()
        self._where, self._options = where, options
        self.log_path = where / "stream.log"
        self.seen = Seen("the stream")
        self.starts = self.replayed = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._taken = set[str]()
        self._batches = dict[int, list[Row]]()
        """The rows of those micro-batches that may be tried again."""
        self._safe = dict[int, Id]()

    def start(self) -> None:
        self.starts += 1
        command = [sys.executable, "-m", "tests.trials.topics.stream", str(self._where), json.dumps(self._options)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=child_environment(), start_new_session=True
            )

    def wait_for_batch(self, within_s: float) -> bool:
        """Wait until a micro-batch has written its rows. A moment later Spark notes that the batch is done. Return
        whether this happened in time."""
        before = len(self._files())
        return comes_true(lambda: len(self._files()) > before, within_s, 0.005)

    def _files(self) -> list[Path]:
        return list((self._where / "rows").glob("*.arrow"))

    def stop(self) -> None:
        """Stop the query at a random moment, as its user does."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.seen.complain(f"the query did not stop within {STOP_S:.0f} s")
        self.kill()

    def kill(self) -> None:
        """Kill the driver, its JVM and the Python workers with SIGKILL."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None

    def take(self) -> None:
        """Judge the rows that came since the last call."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self.seen.complain(f"the query ended with {code}: {last_lines(self.log_path)}")
            self.kill()
        for path in sorted(self._files()):
            if path.name not in self._taken:
                self._taken.add(path.name)
                self._take_batch(int(path.name.partition("-")[0]), rows_of(pa.ipc.open_file(path).read_all()))

    def _take_batch(self, number: int, rows: list[Row]) -> None:
        if (before := self._batches.get(number)) is not None:
            self.replayed += 1
            if before != rows:
                self.seen.complain(f"micro-batch {number} had {len(before)} rows, and {len(rows)} others again")
            return
        # Spark begins a batch once all earlier ones are done
        for done in [each for each in self._batches if each < number]:
            for row in self._batches.pop(done):
                self._safe[row.partition] = row.id
        self._batches[number] = rows
        self.seen.add(rows)

    @property
    def safe(self) -> dict[int, Id]:
        """The last message of each partition that no micro-batch reads again."""
        return dict(self._safe)


class Tail:
    """A tail on a thread of its own."""

    def __init__(self, topic: Topic) -> None:
        self.seen = Seen("the tail")
        self._topic, self._is_closed = topic, False
        self._tail = topic.tail(columns=["__partition", "__messageId", "__key", "value"])
        self._arrived, self._lock = list[pa.RecordBatch](), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._tail:
                with self._lock:
                    self._arrived.append(batch)
            self.seen.complain("the tail came to an end")
        except BookKeeperError as error:
            if not self._is_closed:
                self.seen.complain(f"the tail failed: {error}")

    def take(self) -> None:
        """Judge the rows that came since the last call."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for batch in arrived:
            self.seen.add(rows_of(batch))

    def close(self) -> None:
        self._is_closed = True
        self._tail.close()
        self._thread.join(STOP_S)
        self._topic.close()
