# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.interop.pulsar_ends``: checks when the last message of an idle topic is shown. The topic's broker
is on our bookies, or on Apache's with ``--apache``.

Each time one message is sent to an idle topic, and no other one after it. With the broker's address a batch read, a
tail in Python and a Spark stream show the message within a second of its acknowledgement. Without the address none of
them shows it. With ``readMode=quorum`` each shows it after the settle time. The Spark stream is a query of a real
Spark.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from bk_core.blocking.topics import Topic
from bk_core.errors import ClientClosedError
from bk_core.pulsar.cluster import PulsarAccess
from tests.interop.pulsar_topics import TOPICS, World, started
from tests.interop.steps import Steps, parser, run
from tests.spark.sessions import ClassicSpark

SETTLE_MS = 5_000
WITHIN_S = 1.0
"""How many seconds after its acknowledgement a message may be shown if the broker is asked."""
SLACK_S = 5.0
"""How many seconds a message may be shown late. It is due after the settle time and the tenth of it for which a topic
must be idle."""
ROUNDS = 5
PARTITIONS = 3


class Shown:
    """Values that a reader has shown, each with the time (``time.time()``)."""

    def __init__(self) -> None:
        self._at: dict[bytes, float] = {}
        self._changed = threading.Condition()

    def add(self, values: Sequence[bytes]) -> None:
        with self._changed:
            self._at.update(dict.fromkeys(values, time.time()))
            self._changed.notify_all()

    def wait(self, value: bytes, within_s: float) -> float:
        """Return when the value was shown. Raises AssertionError."""
        with self._changed:
            assert self._changed.wait_for(lambda: value in self._at, within_s), f"{value!r} is not shown"
            return self._at[value]

    def __contains__(self, value: bytes) -> bool:
        with self._changed:
            return value in self._at


@contextmanager
def tail(topic: Topic) -> Iterator[Shown]:
    """Yield the values that a tail shows. The tail has a thread of its own."""
    shown, batches = Shown(), topic.tail(columns=["value"])

    def follow() -> None:
        with suppress(ClientClosedError):
            for batch in batches:
                shown.add(batch.column("value").to_pylist())

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        batches.close()
        thread.join(30)


@contextmanager
def query(spark: Any, world: World, name: str, checkpoint: Path, **options: str) -> Iterator[Shown]:
    """Yield the values that a Spark stream shows."""
    shown = Shown()
    source = spark.readStream.format("bookkeeper").option("metadataServiceUri", world.bookkeeper.store.uri)
    frame = source.options(topic=name, startingOffsets="earliest", columns="value", **options).load()

    def take(batch: Any, _: int) -> None:
        shown.add([bytes(row.value) for row in batch.collect()])

    running = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield shown
    finally:
        running.stop()


def ends(steps: Steps, world: World, spark: Any, path: Path) -> None:
    admin = {"pulsarAdminUrl": world.broker.web_url}
    with steps.step("with a broker's address: a batch read", go_on=True) as step:
        step.found = _batch_read(world, TOPICS + "end-batch")
    for kind in ("tail", "query"):
        with steps.step(f"with a broker's address: a {kind}", go_on=True) as step:
            name = f"{TOPICS}end-{kind}"
            _send(world, name, "first")
            with _following(kind, spark, world, name, path / f"broker-{kind}", admin) as shown:
                step.found = _within_a_second(world, name, shown)
    with steps.step("without one: readMode=quorum, a batch read of several partitions", go_on=True) as step:
        step.found = _quorum_batch(world, spark, "end-quorum")
    for kind in ("tail", "query"):
        with steps.step(f"without one: readMode=quorum, a {kind}", go_on=True) as step:
            name = f"{TOPICS}end-quorum-{kind}"
            quorum = {"readMode": "quorum", "quorumSettleMs": str(SETTLE_MS)}
            step.found = _quorum_follows(world, name, _following(kind, spark, world, name, path / kind, quorum))


def _following(kind: str, spark: Any, world: World, name: str, checkpoint: Path, options: dict[str, str]) -> Any:
    if kind == "query":
        return query(spark, world, name, checkpoint, **options)
    settle_ms = float(options["quorumSettleMs"]) if "quorumSettleMs" in options else None
    access = PulsarAccess(admin_url=options.get("pulsarAdminUrl", ""), quorum_settle_ms=settle_ms)
    return tail(world.bookkeeper.topic(name, access=access))


def _send(world: World, name: str, text: str) -> float:
    """Send one message with a producer that stays open. Return when it was acknowledged."""
    return float(world.python.call("send", topic=name, text=text)["acked"])


def _values(topic: Topic) -> list[bytes]:
    with topic:
        found: list[bytes] = topic.to_arrow(columns=["value"])["value"].to_pylist()
    return found


def _batch_read(world: World, name: str) -> str:
    took = []
    for number in range(ROUNDS):
        text = f"message {number}"
        acked = _send(world, name, text)
        assert _values(world.topic(name))[-1] == text.encode()
        took.append(time.time() - acked)
        assert len(_values(world.bookkeeper.topic(name))) == number, "without a broker the last message must be missing"
    return _times(took)


def _within_a_second(world: World, name: str, shown: Shown) -> str:
    shown.wait(b"first", 60)
    took = []
    for number in range(ROUNDS):
        time.sleep(1.5)  # the topic is idle
        text = f"message {number}"
        acked = _send(world, name, text)
        took.append(shown.wait(text.encode(), 30) - acked)
    return _times(took)


def _times(took: Sequence[float]) -> str:
    assert max(took) < WITHIN_S, f"shown {', '.join(f'{each:.2f}' for each in took)} s after the acknowledgement"
    return f"{len(took)} messages, shown at most {max(0.0, *took) * 1000:.0f} ms after the acknowledgement"


def _quorum_batch(world: World, spark: Any, local: str) -> str:
    """Read all partitions in Python and in Spark. They wait for the settle time together."""
    name = TOPICS + local
    world.broker.admin("PUT", f"persistent/public/default/{local}/partitions", b"%d" % PARTITIONS)
    wanted = list[bytes]()
    for number in range(PARTITIONS):
        for text in (f"a{number}", f"b{number}"):
            _send(world, f"{name}-partition-{number}", text)
            wanted.append(text.encode())
    assert len(_values(world.bookkeeper.topic(name))) < len(wanted), "bookies already have the LAC of the last messages"
    source = spark.read.format("bookkeeper").option("metadataServiceUri", world.bookkeeper.store.uri)
    frame = source.options(topic=name, readMode="quorum", quorumSettleMs=str(SETTLE_MS))

    def of_spark() -> list[bytes]:
        return [bytes(row.value) for row in frame.load().select("value").collect()]

    access = PulsarAccess(quorum_settle_ms=SETTLE_MS)
    found = list[str]()
    reads: dict[str, Callable[[], list[bytes]]] = {
        "Python": lambda: _values(world.bookkeeper.topic(name, access=access)),
        "Spark": of_spark,
    }
    for client, read in reads.items():
        began = time.monotonic()
        assert read() == wanted, client
        took = time.monotonic() - began
        assert SETTLE_MS / 1000 <= took < 2 * SETTLE_MS / 1000, f"{client} took {took:.1f} s"
        found.append(f"{client} {took:.1f} s")
    return f"{PARTITIONS} partitions, settle time {SETTLE_MS} ms: {', '.join(found)}"


def _quorum_follows(world: World, name: str, following: Any) -> str:
    """Follow a topic. Messages up to the LAC must come at once, and the last message after the settle time."""
    settle_s, took = SETTLE_MS / 1000, []
    _send(world, name, "first")
    with following as shown:
        shown.wait(b"first", 60 + settle_s)
        for number in range(3):
            _send(world, name, f"a{number}")
            acked = _send(world, name, f"b{number}")
            early = shown.wait(b"a%d" % number, 20) - acked
            assert early < settle_s / 2, f"a message below the LAC came {early:.1f} s late"
            assert b"b%d" % number not in shown, "bookies already have the LAC of the last message"
            took.append(shown.wait(b"b%d" % number, 2 * settle_s + SLACK_S) - acked)
    assert settle_s <= min(took), took
    assert max(took) < 1.1 * settle_s + SLACK_S, took
    return f"settle time {SETTLE_MS} ms: shown {', '.join(f'{each:.1f}' for each in took)} s after the acknowledgement"


def trial(steps: Steps, path: Path, *, apache: bool) -> None:
    with started(steps, path, apache=apache) as world:
        classic = ClassicSpark(path / "spark")
        try:
            with steps.step("Spark starts") as step:
                spark = classic.session()
                step.found = f"Spark {spark.version}"
            ends(steps, world, spark, path)
        finally:
            classic.stop()


def main() -> int:
    options = parser("tests.interop.pulsar_ends", "The last message of an idle topic of a Pulsar broker.")
    options.add_argument("--apache", action="store_true", help="on Apache's bookies instead of ours")
    ask: argparse.Namespace = options.parse_args()
    return run(ask, partial(trial, apache=ask.apache))


if __name__ == "__main__":
    sys.exit(main())
