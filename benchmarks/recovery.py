# SPDX-License-Identifier: Apache-2.0
"""Groups ``recovery`` and ``takeover``: what a reader or a new leader waits for after the old writer is gone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.figures import Figure, percentile
from bk_cli.children import child_environment
from bk_cli.cluster import LocalCluster
from bk_core import client
from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame
from bk_core.logs.named_log import NamedLog
from bk_core.model import DigestType, LedgerId
from bk_core.protocol.events import LacAnswered
from bk_core.protocol.lac import verified_lac

ENTRIES, ENTRY_BYTES = 100_000, 100
DURABLE_S = 30.0
TAKEOVERS = 60
LEAD_S = 0.05  # how long the old leader appends before it is struck
FATES = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "alive": None}


@contextmanager
def doomed(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """A process of :mod:`benchmarks.doomed` and its first line; dead afterwards."""
    command = [sys.executable, "-m", "benchmarks.doomed", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"benchmarks.doomed {arguments} ended before it wrote"
            yield process, line
        finally:
            process.kill()


# --- recovery ---


def recovery_group(cluster: LocalCluster, runs: int, scale: float) -> list[Figure]:
    entries = int(ENTRIES * scale)
    what = f"open_ledger(recover=True) of {entries:,} entries of {ENTRY_BYTES} B, 3/3/2, on all three bookies on disk"
    figures = []
    for name, lac, wanted, peer in (
        ("recovery_open", "silent", 1.0, "Apache 4.17.3: 8.5 to 13 s"),
        ("recovery_open_confirmed", "hint", None, "Apache 4.17.3: 2 s"),
    ):
        values = [asyncio.run(recovery_s(cluster.uri, entries, lac)) for _ in range(runs + 1)][1:]
        note = (
            f"{what}, after SIGKILL of its writer; LAC of each bookie {-1 if lac == 'silent' else 'at the end'}; {peer}"
        )
        figures.append(Figure(name, "s", values, wanted=wanted, less_is_better=True, note=note))
    return figures


async def recovery_s(uri: str, entries: int, lac: str) -> float:
    """Seconds of one recovering open by a client that has no connection to a bookie yet."""
    with doomed("ledger", uri, str(entries), str(ENTRY_BYTES), lac) as (writer, line):
        ledger_id = int(line)
        async with await client.connect(uri) as bookkeeper:
            await durable_everywhere(bookkeeper, ledger_id, entries - 1, -1 if lac == "silent" else entries - 1)
        writer.kill()
        writer.wait()
    async with await client.connect(uri) as bookkeeper:
        began = time.perf_counter()
        reader = await bookkeeper.open_ledger(ledger_id, recover=True)
        took = time.perf_counter() - began
        assert reader.is_closed
        assert (reader.last_add_confirmed, reader.length) == (entries - 1, entries * ENTRY_BYTES)
    return took


async def durable_everywhere(bookkeeper: client.BookKeeper, ledger_id: LedgerId, last: int, lac: int) -> None:
    """Wait until every bookie of the ledger serves its last entry and proves exactly ``lac``: the case to measure."""
    metadata = (await bookkeeper.read_metadata(ledger_id)).value
    digester = Digester(DigestType.CRC32C, b"", ledger_id)
    await bookkeeper.refresh_bookies()
    async with asyncio.timeout(DURABLE_S):
        for index, bookie in enumerate(metadata.last_fragment.ensemble):
            while True:
                said = await bookkeeper.transport.read_lac(bookie, ledger_id, deadline_s=DURABLE_S)
                proven = verified_lac(
                    LacAnswered(index, said.last_entry_frame, said.lac_body, said.lac_frame), digester
                )[0]
                if (
                    said.last_entry_frame
                    and decode_frame(said.last_entry_frame).last_entry_id == last
                    and proven == lac
                ):
                    break
                await asyncio.sleep(0.01)


# --- takeover ---


def takeover_group(cluster: LocalCluster, _runs: int, scale: float) -> list[Figure]:
    """One figure a share of all takeovers: a run is a takeover here."""
    rounds = max(int(TAKEOVERS * scale), len(FATES))
    samples: dict[str, list[float]] = {fate: [] for fate in FATES}
    asyncio.run(takeover_ms(cluster.uri, "warm-up", "killed"))
    for number in range(rounds):
        fate = list(FATES)[number % len(FATES)]
        samples[fate].append(asyncio.run(takeover_ms(cluster.uri, "taken-over", fate)))
    every = [value for values in samples.values() for value in values]
    medians = ", ".join(f"{fate} {percentile(values, 0.5):.0f} ms" for fate, values in samples.items())
    note = (
        f"from the call of lead() to the first ack, {rounds} takeovers of one log whose leader was appending: "
        f"killed, stopped or alive in turn (medians: {medians})"
    )
    return [
        Figure(name, "ms", [percentile(every, share)], wanted=wanted, less_is_better=True, note=note)
        for name, share, wanted in (
            ("takeover_p50", 0.5, None),
            ("takeover_p99", 0.99, 1000.0),
            ("takeover_max", 1.0, None),
        )
    ]


async def takeover_ms(uri: str, name: str, fate: str) -> float:
    """Milliseconds from ``lead()`` to the first ack of the new leader, by a client that has just connected."""
    with doomed("leader", uri, name) as (old, _):
        await asyncio.sleep(LEAD_S)
        async with await client.connect(uri) as bookkeeper:
            blow = FATES[fate]
            if blow is not None:
                old.send_signal(blow)
            began = time.perf_counter()
            leader = await NamedLog(bookkeeper, name).lead()
            await leader.append(b"mine")
            took = time.perf_counter() - began
            await leader.close()
    return took * 1e3
