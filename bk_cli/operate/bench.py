# SPDX-License-Identifier: Apache-2.0
"""``bk bench``: puts a load on a running cluster for a bounded time, and reports how fast the cluster takes it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from bk_cli import options, output
from bk_cli.access import Access, access

if TYPE_CHECKING:
    from bk_cli.operate.bench_load import BenchLoad, LoadSeen

WRITERS_MAX, IN_FLIGHT_MAX, BATCH_MAX, SECONDS_MAX = 10_000, 1_000, 100_000, 86_400
COLUMNS = ("", "entries ", "entries/s ", "bytes/s ", "p50 ", "p99 ", "p99.9 ", "most ")


@click.command()
@click.option("--seconds", type=click.FloatRange(0.1, SECONDS_MAX), default=10.0, help="How long it appends.")
@click.option("--writers", type=click.IntRange(1, WRITERS_MAX), default=1, help="Ledgers that are written at once.")
@options.quorum
@click.option("--entry-size", type=options.SIZE, default="1k", help="Bytes of an entry.")
@click.option("--batch", type=click.IntRange(1, BATCH_MAX), default=100, help="Entries that are appended together.")
@click.option(
    "--in-flight", type=click.IntRange(1, IN_FLIGHT_MAX), default=4, help="Batches that a writer has in flight."
)
@click.option(
    "--rate", type=click.FloatRange(0), default=0.0, help="Entries a second of all writers; 0: as fast as possible."
)
@click.option("--max-bytes", type=options.SIZE, default="10g", help="Append at most about this much.")
@click.option("--read", "reads", is_flag=True, help="Read all of it back afterwards.")
@click.option("--keep", is_flag=True, help="Keep the ledgers, and name them.")
@options.as_json
@access()
def bench(
    access: Access,
    seconds: float,
    writers: int,
    ensemble_size: int,
    write_quorum_size: int,
    ack_quorum_size: int,
    entry_size: int,
    batch: int,
    in_flight: int,
    rate: float,
    max_bytes: int,
    reads: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Append to new ledgers for some seconds and report the speed, to compare clusters, disks and settings.

    The load takes all that the cluster can do, so other clients become slower; --rate bounds it. Each time is that of
    one batch, from its append until all of it is confirmed. With --rate it counts from the moment at which the batch
    was due. The ledgers are deleted at the end, also after Ctrl-C and SIGTERM. With --json it prints an object for each
    second, and then one for the whole run.
    """
    from bk_cli.operate.bench_load import BenchLoad

    load = BenchLoad(
        writers=writers,
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
        entry_size=entry_size,
        batch=batch,
        in_flight=in_flight,
        seconds=seconds,
        entries_per_s=rate,
        bytes_max=max_bytes,
    )
    try:
        asyncio.run(_run(access, load, reads=reads, keep=keep, as_json=as_json))
    except asyncio.CancelledError as error:  # SIGTERM
        raise KeyboardInterrupt from error


async def _run(access: Access, load: BenchLoad, *, reads: bool, keep: bool, as_json: bool) -> None:
    from bk_cli.operate.bench_load import Running

    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with await access.connect() as client:
        running, is_whole = Running(client, load), False
        try:
            await running.create()
            telling = asyncio.create_task(_tell(running.seconds(), as_json))
            await running.append()
            await telling
            await running.close()
            seen = {"append": running.total, **({"read": await running.read()} if reads else {})}
            is_whole = True
        finally:
            if not (keep and is_whole):
                _name("these ledgers could not be deleted", await running.delete())
    if as_json:
        for part, each in seen.items():
            kept = {"ledgerIds": running.ledgers} if keep else {}
            output.print_json({"part": part, **each.as_object(), **kept})
        return
    output.print_table(COLUMNS, [_row(part, each) for part, each in seen.items()])
    if keep:
        _name("the ledgers are kept", running.ledgers)


async def _tell(seconds: AsyncIterator[LoadSeen], as_json: bool) -> None:
    """Print the figures of each second while the load runs: for programs on stdout, otherwise on stderr."""
    number = 0
    async for seen in seconds:
        number += 1
        if as_json:
            output.print_json({"part": "second", "second": number, **seen.as_object()})
        else:
            _, _, rate, size, *times = _row("", seen)
            output.print_note(f"{number} s: {rate} entries/s, {size}/s, p99 {times[1]}")


def _row(part: str, seen: LoadSeen) -> tuple[str, ...]:
    found = seen.as_object()
    times = (found[f"{name}Ms"] for name in ("p50", "p99", "p999", "max"))
    in_ms = ("-" if each is None else f"{each:,.1f} ms" for each in times)
    took_s = seen.seconds or 1e-9
    rates = f"{seen.entries / took_s:,.0f}", output.in_words(seen.payload_bytes / took_s)
    return part, f"{seen.entries:,}", *rates, *in_ms


def _name(what: str, ledger_ids: list[int]) -> None:
    if ledger_ids:
        output.print_note(f"{what}: {', '.join(map(str, sorted(ledger_ids)))}")
