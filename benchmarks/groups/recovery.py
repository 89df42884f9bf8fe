# SPDX-License-Identifier: Apache-2.0
"""Group ``recovery``: the time that a reader or a new leader waits after the old writer is gone."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from benchmarks.measurement import Measurement, Peer
from benchmarks.peers import apache
from benchmarks.peers.apache import Apache
from benchmarks.report.figures import Run, percentile
from benchmarks.running.doomed import doomed
from benchmarks.running.world import World, connected
from bk_core import client
from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame
from bk_core.logs.named_log import NamedLog
from bk_core.model import DigestType, LedgerId
from bk_core.protocol.ends.lac import verified_lac
from bk_core.protocol.events import LacAnswered

ENTRIES, ENTRY_BYTES = 100_000, 100
DURABLE_S = 30.0
TAKEOVERS = 30
LEAD_S = 0.05  # how long the old leader appends before it is killed, stopped or superseded
FATES = (signal.SIGKILL, signal.SIGSTOP, None)


# --- recovery ---


def recovering(world: World) -> Callable[[], Run]:
    """Recover a ledger whose writer was killed. No bookie has a LAC for it."""
    entries = world.scaled(ENTRIES)
    return lambda: Run.of(asyncio.run(recovery_s(world, entries)))


def java_recovering(world: World) -> Callable[[], Run]:
    java, entries = world.of(Apache).client(), world.scaled(ENTRIES)
    return lambda: java.recover(java.leave(ENTRY_BYTES, entries), entries)


async def recovery_s(world: World, entries: int) -> float:
    """Return the seconds of one recovering open by a client that has no connection to a bookie yet."""
    with doomed("ledger", world.cluster.uri, world.lane, str(entries), str(ENTRY_BYTES)) as (writer, line):
        ledger_id = int(line)
        async with await connected(world) as bookkeeper:
            await durable_everywhere(bookkeeper, ledger_id, entries - 1)
        writer.kill()
        writer.wait()
    async with await connected(world) as bookkeeper:
        began = time.perf_counter()
        reader = await bookkeeper.open_ledger(ledger_id, recover=True)
        took = time.perf_counter() - began
        assert reader.is_closed
        assert (reader.last_add_confirmed, reader.length) == (entries - 1, entries * ENTRY_BYTES)
    return took


async def durable_everywhere(bookkeeper: client.BookKeeper, ledger_id: LedgerId, last: int) -> None:
    """Wait until every bookie of the ledger serves its last entry and proves no LAC, which is the case to measure."""
    metadata = (await bookkeeper.read_metadata(ledger_id)).value
    digester = Digester(DigestType.CRC32C, b"", ledger_id)
    await bookkeeper.refresh_bookies()
    async with asyncio.timeout(DURABLE_S):
        for index, bookie in enumerate(metadata.last_fragment.ensemble):
            while True:
                said = await bookkeeper.transport.link(bookie).read_lac(ledger_id, deadline_s=DURABLE_S)
                proven = verified_lac(
                    LacAnswered(index, said.last_entry_frame, said.lac_body, said.lac_frame), digester
                )[0]
                if said.last_entry_frame and decode_frame(said.last_entry_frame).last_entry_id == last and proven == -1:
                    break
                await asyncio.sleep(0.01)


# --- takeover ---


def takeovers(world: World) -> Callable[[], Run]:
    """Take over one log again and again. The new leader finds the old one killed, stopped or alive, in turn."""
    rounds = max(world.scaled(TAKEOVERS), len(FATES))

    def run() -> Run:
        samples = [
            asyncio.run(takeover_ms(world, "taken-over", FATES[number % len(FATES)])) for number in range(rounds)
        ]
        return Run(tuple(percentile(samples, share) for share in (0.5, 0.99)))

    return run


async def takeover_ms(world: World, name: str, blow: signal.Signals | None) -> float:
    """Return the milliseconds from ``lead()`` to the first ack of the new leader, by a client that has just
    connected."""
    with doomed("leader", world.cluster.uri, world.lane, name) as (old, _):
        await asyncio.sleep(LEAD_S)
        async with await connected(world) as bookkeeper:
            if blow is not None:
                old.send_signal(blow)
            began = time.perf_counter()
            leader = await NamedLog(bookkeeper, name).lead()
            await leader.append(b"mine")
            took = time.perf_counter() - began
            await leader.close()
    return took * 1e3


LEFT = f"open_ledger(recover=True) of {ENTRIES:,} entries of {ENTRY_BYTES} B, 3/3/2, whose writer was killed"
MEASUREMENTS = (
    Measurement(
        ("recovery_100k",), "s", recovering, less_is_better=True,
        note=f"{LEFT} with all of them in flight; they are on all bookies, of which none knows a LAC",
        peers=(
            Peer("apache", java_recovering, (1 / 0.04,),
                 note=f"{apache.NOTE}; its client left the ledger open with all entries in flight"),
        ),
    ),
    Measurement(
        ("takeover_p50", "takeover_p99"), "ms", takeovers, wanted=(None, 1000),
        less_is_better=True,
        note="from the call of lead() to the first ack, of a log whose leader was appending until it was killed or "
        "stopped, or goes on, in turn",
    ),
)  # fmt: skip
