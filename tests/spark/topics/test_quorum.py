# SPDX-License-Identifier: Apache-2.0
"""``readMode=quorum`` of topics: the last messages of an idle topic, without a broker."""

from __future__ import annotations

import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.lookup.nodes import SNAPSHOTS
from bk_spark.options.options import Use, parse_options
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_world import plain
from tests.pulsar.test_topic import marker, txn
from tests.spark.topics.world import NAME, SparkWorld, Stream

pytestmark = pytest.mark.rule("P15")
QUORUM = {"readmode": "quorum", "quorumsettlems": "1000"}


def next_values(stream: Stream, within_s: float = 10.0) -> list[bytes | None]:
    """The values of the next micro-batch that has some."""
    deadline = time.monotonic() + within_s
    while not (found := stream.step()):
        assert time.monotonic() < deadline, "no row came"
        time.sleep(0.05)
    return found


def test_a_batch_waits_for_all_partitions_together(world: SparkWorld) -> None:
    world.pulsar.partitioned(NAME, 10)
    for number in range(10):
        world.ledger(f"{NAME}-partition-{number}", plain(b"a%d" % number, b"b%d" % number), is_open=True)
    assert world.values() == [b"a%d" % number for number in range(10)]
    began = time.monotonic()
    assert world.values(**QUORUM) == [b"%b%d" % (each, number) for number in range(10) for each in (b"a", b"b")]
    assert time.monotonic() - began < 5


def test_a_batch_that_ends_before_does_not_wait(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a", b"b"), is_open=True)
    ending = f'{{"{NAME}":"{written.ledger_id}:1"}}'
    assert world.values(readmode="quorum", quorumsettlems="600000", endingoffsets=ending) == [b"a"]


def test_a_stream_shows_what_is_confirmed_at_once_and_the_rest_after_the_settle_time(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a", b"b"), is_open=True)
    began = time.monotonic()
    stream = world.stream(**QUORUM).begin()
    start = stream.at
    assert stream.step() == [b"a"]
    assert time.monotonic() - began < 1
    assert next_values(stream) == [b"b"]
    assert time.monotonic() - began >= 1
    end = stream.at
    assert stream.restart(start).rows(start, end) == [b"a", b"b"], "a repeated batch has the same rows"
    world.call(world.pulsar.roll(NAME, written))
    world.ledger(NAME, plain(b"c"))
    again = stream.restart(end)
    assert again.step() == [b"c"]


def test_available_now_waits_for_the_end_once(world: SparkWorld) -> None:
    world.ledger(NAME, plain(b"a", b"b"), is_open=True)
    stream = world.stream(**QUORUM).begin()
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.step(ReadAllAvailable()) == [b"a", b"b"]
    began = time.monotonic()
    assert stream.step(ReadAllAvailable()) == []
    assert time.monotonic() - began < 1


def test_a_batch_with_outcomes_above_the_lac_is_repeated_after_a_restart(world: SparkWorld) -> None:
    world.pulsar.set(f"/managed-ledgers/public/default/persistent/{SNAPSHOTS}", b"")
    world.ledger(NAME, [txn(b"a", 1), kit.entry(b"b"), marker(22, 1)], is_open=True)
    stream = world.stream(**QUORUM).begin()
    start = stream.at
    assert stream.step() == []
    assert next_values(stream) == [b"b"]
    again: Stream = stream.restart(start)
    assert again.rows(start, stream.at) == [b"b"]


def test_modes_that_make_no_sense_for_topics_are_refused_by_name() -> None:
    given = {"metadataServiceUri": "memory://x", "topic": "orders"}
    for use in (Use.READ, Use.STREAM):
        options = parse_options({**given, "readMode": "quorum", "quorumSettleMs": "5000"}, use)
        assert options.topics is not None
        assert options.topics.quorum_settle_ms == 5000
        for mode in ("fence", "closedOnly"):
            with pytest.raises(InvalidArgumentError, match=f"readMode={mode} is not for topics.*pulsarAdminUrl"):
                parse_options({**given, "readMode": mode}, use)
        lac = parse_options({**given, "readMode": "lac"}, use).topics
        assert lac is not None
        assert lac.quorum_settle_ms is None
