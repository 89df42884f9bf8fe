# SPDX-License-Identifier: Apache-2.0
"""``bk bench``: what it counts, what it refuses, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from bk_cli import main
from bk_cli.local.children import child_environment
from bk_cli.local.cluster import LocalCluster
from bk_cli.operate.bench_load import CUSTOM_METADATA, BenchLoad, Latencies, Running
from bk_core.metadata import open_store
from tests.kit.memory_cluster import memory_cluster
from tests.kit.waiting import until

SMALL = BenchLoad(
    writers=3, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, entry_size=10, batch=5, in_flight=2,
    seconds=0.3, entries_per_s=0, bytes_max=1 << 30,
)  # fmt: skip


def test_quantiles_of_times_are_right_to_two_per_cent() -> None:
    random, times, halves = Random(7), Latencies(), [Latencies(), Latencies()]
    samples = sorted(random.lognormvariate(-5, 2) for _ in range(5_000))
    for number, each in enumerate(samples):
        halves[number % 2].add(each)
    for half in halves:
        times.merge(half)
    for share in (0.01, 0.5, 0.99, 0.999, 1.0):
        exact = samples[int(share * 5_000) - 1]
        assert exact <= (times.within_s(share) or 0) <= exact * 1.0201, share
    assert Latencies().within_s(0.5) is None


async def test_what_it_counts_is_what_is_in_its_ledgers_until_they_are_deleted() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        running = Running(client, SMALL)
        await running.create()
        records = [(await client.read_metadata(each)).value for each in running.ledgers]
        assert all(each.custom_metadata.items() >= CUSTOM_METADATA.items() for each in records)
        await running.append()
        await running.close()
        readers = [await client.open_ledger(each, recover=False) for each in running.ledgers]
        assert all(each.is_closed for each in readers)
        there = sum(each.last_add_confirmed + 1 for each in readers)
        seen = await running.read()
        assert running.total.entries == there == seen.entries > 3 * SMALL.batch
        assert running.total.payload_bytes == seen.payload_bytes == there * SMALL.entry_size
        assert 0.3 <= running.total.seconds < 5
        assert await running.delete() == []
        assert await client.list_ledgers() == []


async def test_a_rate_and_an_amount_bound_it() -> None:
    async with memory_cluster(3) as cluster:
        for load, least, most in (
            (replace(SMALL, entries_per_s=400, seconds=0.5), 100, 230),
            (replace(SMALL, bytes_max=2_000, seconds=60), 200, 230),
        ):
            running = Running(cluster.client(), load)
            await running.create()
            await running.append()
            assert least <= running.total.entries <= most
            await running.delete()


@pytest.mark.parametrize(
    "arguments",
    [
        "--writers 0", "--writers -3", "--seconds 0", "--seconds 9999999", "--seconds nan", "--entry-size 0",
        "--entry-size x", "--entry-size 6m", "--entry-size 1m --batch 65", "--batch 0", "--in-flight 0", "--rate -1",
        "--writers 10000 --in-flight 1000", "--ensemble-size 2 --write-quorum-size 3", "--ack-quorum-size 4",
        "--rate inf", "--rate nan", "--max-bytes 0", "extra",
    ],
)  # fmt: skip
def test_nonsense_is_refused_before_anything_is_connected(arguments: str, capfd: pytest.CaptureFixture[str]) -> None:
    nowhere = "zk://127.0.0.1:1/ledgers"
    assert main.run(["bench", *arguments.split(), "--metadata-service-uri", nowhere]) == 2
    assert capfd.readouterr().out == ""


@pytest.mark.e2e
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, None])
def test_a_real_cluster_is_as_before_however_it_ends(cluster: LocalCluster, blow: signal.Signals | None) -> None:
    with closing(open_store(cluster.uri)) as store:
        before = set(store.list_ledgers())
        command = [sys.executable, "-m", "bk_cli.main", "bench", "--json", "--writers", "3", "--rate", "500"]
        command += ["--seconds", "60" if blow else "2.5", "--metadata-service-uri", cluster.uri]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # where this process was told to ignore it
        )
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["part"], first["second"]) == ("second", 1)
        assert len(set(store.list_ledgers()) - before) == 3
        if blow is not None:
            os.kill(process.pid, blow)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == (0 if blow is None else 130)
        until(lambda: set(store.list_ledgers()) == before, 10)
        assert any(json.loads(line)["part"] == "append" for line in rest.splitlines()) is (blow is None)
