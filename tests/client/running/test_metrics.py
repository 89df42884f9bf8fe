# SPDX-License-Identifier: Apache-2.0
"""What a client counts, and what it logs of slow operations."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import fields, replace
from functools import partial

import pytest

from bk_core.client.running.metrics import METRICS, ClientMetrics
from bk_core.errors import LedgerFencedError
from bk_core.observe.slow_log import BURST, SlowLog
from tests.kit.canaries import PASSWORD
from tests.kit.memory_cluster import FAST, hold, memory_cluster, release
from tests.kit.prometheus_text import parse
from tests.kit.waiting import eventually


async def test_client_counts_what_it_did_and_gives_it_as_text() -> None:
    async with memory_cluster(5) as cluster:
        client = cluster.client()
        writer = await client.create_ledger(password=PASSWORD)
        for n in range(10):
            await writer.append(b"x" * 100 if n else b"")
        early = client.metrics()
        cluster.kill(writer.metadata.last_fragment.ensemble[0])
        for _ in range(5):
            await writer.append(b"y")
        await eventually(lambda: client.metrics().ensemble_changes == 1)
        second = cluster.client()
        async with await second.open_ledger(writer.ledger_id, recover=True, password=PASSWORD) as reader:
            assert sum([len(batch) async for batch in reader.read(0, 14)]) == 15
        with pytest.raises(LedgerFencedError):
            await writer.append(b"late")
        found, other = client.metrics(), second.metrics()
        assert (early.appended_entries, early.confirmed_entries, early.appended_bytes) == (10, 10, 900)
        assert (found.appended_entries, found.confirmed_entries, found.ledgers_created) == (16, 15, 1)
        assert sum(early.append_seconds.counts) == early.appended_frames == 10
        assert found.sessions_broken + found.sessions_refused > 0
        assert found.writers_failed == {"BK_LEDGER_FENCED": 1}
        assert (other.recoveries, other.recoveries_failed, other.ledgers_opened) == (1, 0, 1)
        assert (other.read_entries, other.read_bytes, sum(other.read_seconds.counts)) == (15, 905, 1)
        await second.delete_ledger(writer.ledger_id)
        assert (second.metrics().ledgers_deleted, other.ledgers_deleted) == (1, 0), "a snapshot stays"
        families = parse(found.text({"app": "test"}))
        assert families["bookkeeper_client_confirmed_entries_total"].value(app="test") == 15
        failed = families["bookkeeper_client_writers_failed_total"]
        assert failed.value(app="test", code="BK_LEDGER_FENCED") == 1
        assert families["bookkeeper_client_append_seconds"].kind == "histogram"


def test_every_counter_has_a_metric() -> None:
    assert len(METRICS) == len(fields(ClientMetrics))
    families = parse(ClientMetrics(writers_failed={"X": 1}).text())
    assert set(families) == {metric.name for metric in METRICS}


async def test_slow_append_is_logged_with_its_sessions(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client(replace(FAST, slow_operation_ms=30))
        writer = await client.create_ledger(password=PASSWORD)
        await writer.append(b"fast")
        assert client.metrics().slow_operations == 0
        hold(cluster)
        slow = asyncio.ensure_future(writer.append(b"slow"))
        await asyncio.sleep(0.05)
        release(cluster)
        await slow
        assert client.metrics().slow_operations == 1
        await writer.close()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "bk_core.client.slow"]
    assert line.startswith("slow: append to ledger 0, entries 1 to 1, ")
    assert all(f"{name} session " in line for name in ("b0", "b1", "b2"))


def test_slow_log_has_a_rate_and_counts_what_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = SlowLog(logging.getLogger("slow"), 1.0, lambda: now[0])
    made: list[int] = []

    def text(n: int) -> str:
        made.append(n)
        return f"number {n}"

    for n in range(100):
        log.say(partial(text, n))
    now[0] = 0.6
    log.say(lambda: text(100))
    assert made == [*range(int(BURST)), 100]
    assert caplog.records[-1].getMessage() == "slow: number 100 (90 slow operations before it were left out)"
    assert log.count == 101
    assert SlowLog(logging.getLogger("slow"), 0).threshold_s == float("inf")


async def test_a_slow_recovery_is_counted_and_logged_with_its_ledger(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger(password=PASSWORD)
        await writer.append(b"x")
        quick = cluster.client(replace(FAST, slow_operation_ms=60_000))
        await quick.open_ledger(writer.ledger_id, recover=True, password=PASSWORD)
        assert quick.metrics().slow_operations == 0
        second = await cluster.client().create_ledger(password=PASSWORD)
        await second.append(b"x")
        slow = cluster.client(replace(FAST, slow_operation_ms=20))
        hold(cluster)
        opening = asyncio.ensure_future(slow.open_ledger(second.ledger_id, recover=True, password=PASSWORD))
        await asyncio.sleep(0.05)
        release(cluster)
        await opening
        assert slow.metrics().slow_operations >= 1
    said = [record.getMessage() for record in caplog.records if record.name == "bk_core.client.slow"]
    assert [line for line in said if line.startswith("slow: recovery of ledger 1 took ")], said
