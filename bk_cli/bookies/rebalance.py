# SPDX-License-Identifier: Apache-2.0
"""``bk rebalance``: moves copies of closed ledgers, so that the bookies' disks are filled evenly."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from bk_cli import exit_codes, options, output
from bk_cli.access import Access, access
from bk_core.errors import BookieUnreachableError, InvalidArgumentError, MetadataCorruptError

if TYPE_CHECKING:
    from bk_core.client.config import ClientConfig
    from bk_core.client.repairing.mover import Moved
    from bk_core.cluster.bookie_answers import Said
    from bk_core.metadata.port import MetadataStore
    from bk_core.model import BookieId, BookieServiceInfo
    from bk_core.placement import Landscape
    from bk_core.protocol.replication.balance import Assigned, Disk, MovePlan

REACH_TIMEOUT_S = 2.0
"""The seconds that each bookie has to report its free space."""
_FILE = click.Path(exists=True, dir_okay=False)
MOVES_SHOWN = 20
"""The maximum number of moves in the table for people. ``--json`` lists all of them."""


@click.command("rebalance")
@options.dry_run
@click.option("--rate", type=options.SIZE, default="50m", help="Bytes a second it copies.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 100),
    default=5.0,
    help="Stop once the used shares of the disks differ by at most this many per cent.",
)
@click.option("--max-bytes", type=options.SIZE, help="Plan to move at most this much.  [default: all]")
@click.option("--at-once", type=click.IntRange(1, 64), default=4, help="Ledgers that are moved at once.")
@click.option("--rack-file", type=_FILE, help="File of the bookies' racks, as the writers have it (docs/python.md).")
@click.option("--rack-script", type=_FILE, help="Script that prints the bookies' racks.")
@options.as_json
@access()
def rebalance(
    access: Access,
    dry_run: bool,
    rate: int,
    tolerance: float,
    max_bytes: int | None,
    at_once: int,
    rack_file: str | None,
    rack_script: str | None,
    as_json: bool,
) -> int:
    """Move copies of closed ledgers from full bookies to empty ones.

    A bookie counts as full by the bytes that the records of ledgers assign to it, relative to its disk. The bookie
    itself frees its disk later. The record of a ledger changes only when the copy is durable on its new bookie. Ctrl-C
    is safe at any moment: run the command again to go on.
    """
    config = access.config(rack_file=rack_file or "", rack_script=rack_script or "")
    look = _look(access, config)
    plan = look.plan(tolerance / 100, max_bytes)
    _print_plan(look, plan, dry_run, as_json)
    if dry_run or not plan.moves:
        return 0
    return asyncio.run(_carry_out(access, config, plan, rate, at_once, as_json))


@dataclass(frozen=True, slots=True)
class BalanceLook:
    """The state of a cluster before a plan. ``mute`` are registered bookies that did not report the size of their disk;
    they are left out."""

    disks: Sequence[Disk]
    assigned: Assigned
    landscape: Landscape
    mute: Sequence[BookieId]
    unreadable: int

    def plan(self, tolerance: float, max_bytes: int | None) -> MovePlan:
        from bk_core.protocol.replication.balance import plan_moves

        return plan_moves(self.disks, self.assigned, landscape=self.landscape, tolerance=tolerance, bytes_max=max_bytes)


def _look(access: Access, config: ClientConfig) -> BalanceLook:
    from bk_core.cluster.bookie_answers import Said, ask_bookies

    with access.store() as store:
        store.sync()
        orders = store.bookie_orders()
        writable, read_only = store.writable_bookies(), store.read_only_bookies()
        registered = {**read_only, **writable}
        if len(registered) < 2:
            raise InvalidArgumentError(
                "there are no two bookies to balance", value=", ".join(registered) or "none is registered"
            )
        caller = access.caller(store.instance_id(), "bk rebalance")
        said = ask_bookies(list(registered.values()), caller, timeout_s=REACH_TIMEOUT_S)
        sizes = {name: each for name, each in said.items() if isinstance(each, Said)}
        mute = sorted(set(registered) - set(sizes))
        if len(sizes) < 2:
            raise BookieUnreachableError(
                "Fewer than two bookies say how large their disks are",
                value=f"silent: {', '.join(mute)}",
                remedy="bk bookie list says why",
            )
        takes = [name for name in writable if name not in orders]
        disks = _disks(sizes, takes)
        assigned, unreadable = _read_records(store)
        return BalanceLook(disks, assigned, _landscape(config, registered), mute, unreadable)


def _disks(sizes: Mapping[BookieId, Said], takes: Iterable[BookieId]) -> list[Disk]:
    from bk_core.protocol.replication.balance import Disk

    return [Disk(name, said.info.total_bytes, takes=name in takes) for name, said in sorted(sizes.items())]


def _read_records(store: MetadataStore) -> tuple[Assigned, int]:
    """Return what the records of all ledgers assign to bookies, and how many records cannot be read. A ledger that
    lacks copies is not moved."""
    from bk_core.metadata.scan import scan_ledgers
    from bk_core.protocol.replication.balance import Assigned

    assigned, unreadable = Assigned(), 0
    marked = {ledger_id for ledger_id, _ in store.list_underreplicated()}
    for ledger_id, found in scan_ledgers(store):
        if isinstance(found, MetadataCorruptError):
            unreadable += 1
        else:
            assigned.add(ledger_id, found.value, may_move=ledger_id not in marked)
    return assigned, unreadable


def _landscape(config: ClientConfig, registered: Mapping[BookieId, BookieServiceInfo]) -> Landscape:
    from bk_core.client.running.surveyor import racks_of

    return racks_of(config, registered)


def _print_plan(look: BalanceLook, plan: MovePlan, dry_run: bool, as_json: bool) -> None:
    from bk_core.protocol.replication.balance import shares

    before, after = shares(plan.before, look.disks), shares(plan.after, look.disks)
    if as_json:
        for move in plan.moves if dry_run else ():
            output.print_json(
                {"ledgerId": move.ledger_id, "from": move.source, "to": move.target, "bytes": move.size,
                 "fragments": list(move.fragments)}
            )  # fmt: skip
        if dry_run or not plan.moves:
            output.print_json(
                {
                    "moves": len(plan.moves),
                    "bytes": plan.size,
                    "even": plan.is_even,
                    "before": {name: round(share, 6) for name, share in before.items()},
                    "after": {name: round(share, 6) for name, share in after.items()},
                }
            )
    else:
        rows = [
            (disk.bookie, output.in_words(disk.total), f"{before[disk.bookie]:.1%}", f"{after[disk.bookie]:.1%}")
            for disk in look.disks
            if disk.bookie in before
        ]
        output.print_table(("bookie", "disk ", "assigned ", "planned "), rows)
        _print_moves(plan, dry_run)
    for what in _notes(look, plan):
        output.print_note(what)


def _print_moves(plan: MovePlan, dry_run: bool) -> None:
    if not plan.moves:
        output.print_line("nothing to move" + (": the bookies are filled evenly" if plan.is_even else ""))
        return
    if dry_run:
        rows = [(move.ledger_id, move.source, move.target, output.in_words(move.size)) for move in plan.moves]
        output.print_table(("ledger ", "from", "to", "bytes "), rows[:MOVES_SHOWN])
        if len(rows) > MOVES_SHOWN:
            output.print_note(f"{len(rows) - MOVES_SHOWN} more: --json")
    output.print_line(f"{len(plan.moves):,} moves, {output.in_words(plan.size)}")


def _notes(look: BalanceLook, plan: MovePlan) -> list[str]:
    found = []
    if look.mute:
        found.append(f"left out, because they do not answer: {', '.join(look.mute)}")
    if look.unreadable:
        found.append(f"{look.unreadable:,} records cannot be read, and their ledgers stay")
    if look.assigned.left_out:
        found.append(f"only the longest ledgers are planned; {look.assigned.left_out:,} stay: run it again afterwards")
    if not plan.is_even:
        found.append("the plan does not reach the tolerance: a limit is reached, or nothing more can be moved")
    return found


async def _carry_out(
    access: Access, config: ClientConfig, plan: MovePlan, rate: int, at_once: int, as_json: bool
) -> int:
    from bk_core.client.repairing.mover import Mover
    from bk_core.client.repairing.repair import ByteRate

    done: list[Moved] = []
    async with await access.connect(config) as client:
        began = time.monotonic()
        mover = Mover(client, f"rebalance {socket.gethostname()}:{os.getpid()}", ByteRate(rate))
        moves = iter(plan.moves)

        async def work() -> None:
            for move in moves:
                moved = await mover.carry_out(move)
                done.append(moved)
                _print_moved(moved, as_json)
                advance(move.size)

        with output.progress("moving copies", plan.size) as advance:
            await asyncio.gather(*(work() for _ in range(at_once)))
    made = [moved for moved in done if not moved.why]
    size, took_s = sum(moved.size for moved in done), time.monotonic() - began
    output.print_result(
        as_json,
        {"moved": len(made), "failed": len(done) - len(made), "bytes": size, "tookS": round(took_s, 1)},
        f"{len(made):,} of {len(plan.moves):,} moves made, {output.in_words(size)} in {took_s:.0f} s; "
        "the bookies free the space later, when they collect garbage",
    )
    return 0 if len(made) == len(plan.moves) else exit_codes.UNAVAILABLE


def _print_moved(moved: Moved, as_json: bool) -> None:
    move = moved.move
    if as_json:
        told = {"ledgerId": move.ledger_id, "from": move.source, "to": move.target, "bytes": moved.size}
        output.print_json({**told, "moved": not moved.why, "why": moved.why or None})
    elif moved.why:
        output.print_note(f"ledger {move.ledger_id} stays on {move.source}: {moved.why}")
