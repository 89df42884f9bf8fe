# SPDX-License-Identifier: Apache-2.0
"""``bk placement explain``: gathers bookies, racks and free space as a client would, and prints the findings of
``placement_findings.py``."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import click

from bk_cli import options, output
from bk_cli.access import Access, access

if TYPE_CHECKING:
    from bk_cli.explain.placement_findings import PlacementSeen
    from bk_core.client.config import ClientConfig
    from bk_core.model import LedgerId


@click.group()
def placement() -> None:
    """Explain which bookies ledgers get, and why."""


@placement.command("explain")
@click.option("--ledger", "ledger_id", type=int, help="Explain the ensembles of this ledger, and take its sizes.")
@options.quorum
@click.option("--rack-script", default="", metavar="FILE", help="As the client setting rack_script.")
@click.option("--rack-file", default="", metavar="FILE", help="As the client setting rack_file.")
@click.option("--racks-min", type=click.IntRange(min=1), default=2, help="Racks that a write set should have.")
@click.option("--enforce-racks", is_flag=True, help="As the client setting enforce_racks.")
@click.option("--disk-weight", is_flag=True, help="As the client setting disk_weight_placement.")
@access()
@options.as_json
def explain(
    access: Access,
    ledger_id: int | None,
    ensemble_size: int,
    write_quorum_size: int,
    ack_quorum_size: int,
    rack_script: str,
    rack_file: str,
    racks_min: int,
    enforce_racks: bool,
    disk_weight: bool,
    as_json: bool,
) -> None:
    """Say which bookies a ledger got, or the next one would get, and which are left out and why.

    Racks and weights are settings of each client: give those that the writers have. A client also avoids bookies whose
    failures it has seen lately; this command has seen none.
    """
    from bk_cli.explain.findings import as_objects, print_findings
    from bk_cli.explain.placement_findings import explain_placement

    config = access.config(
        rack_script=rack_script,
        rack_file=rack_file,
        racks_min=racks_min,
        enforce_racks=enforce_racks,
        disk_weight_placement=disk_weight,
    )
    seen = asyncio.run(_see(access, config, ledger_id, (ensemble_size, write_quorum_size, ack_quorum_size)))
    findings = explain_placement(seen, random.Random())
    if as_json:
        output.print_json(
            {
                "ledgerId": ledger_id,
                "ensembleSize": seen.ensemble_size,
                "writeQuorumSize": seen.write_quorum_size,
                "ackQuorumSize": seen.ack_quorum_size,
                "bookies": dict(sorted(seen.states.items())),
                "racks": dict(seen.landscape.racks),
                "freeBytes": dict(seen.landscape.weights),
                "findings": as_objects(findings),
            }
        )
        return
    print_findings(findings)


async def _see(
    access: Access, config: ClientConfig, ledger_id: LedgerId | None, sizes: tuple[int, int, int]
) -> PlacementSeen:
    """Gather the facts. ``sizes`` are E, Qw and Qa of a new ledger. Raises NoSuchLedgerError."""
    from bk_cli.explain.placement_findings import PlacementSeen
    from bk_core.cluster.bookies import states_of

    async with await access.connect(config) as client:
        record = (await client.read_metadata(ledger_id)).value if ledger_id is not None else None
        said, store = await client.bookies_for_repair(), client.store
        known = await asyncio.to_thread(store.known_bookies)
        read_only = await asyncio.to_thread(store.read_only_bookies)
    named = {bookie for fragment in record.fragments for bookie in fragment.ensemble} if record is not None else ()
    states = dict.fromkeys(named, "gone") | states_of(store, said.writable, read_only, known)
    if record is not None:
        sizes = (record.ensemble_size, record.write_quorum_size, record.ack_quorum_size)
    return PlacementSeen(states, said.landscape, *sizes, said.quarantined, ledger_id, record)
