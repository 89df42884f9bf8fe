# SPDX-License-Identifier: Apache-2.0
"""``bk cluster``: makes a ledgers root of ZooKeeper a cluster, and watches and secures it."""

from __future__ import annotations

import uuid

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_cli.operate.secure_zookeeper import secure_zookeeper


@click.group()
def cluster() -> None:
    """A cluster: the ledgers root in ZooKeeper that bookies and clients share."""


@cluster.command("init")
@access()
@options.as_json
def init(access: Access, as_json: bool) -> None:
    """Make a cluster at the ledgers root of the URI, unless there is one already.

    It makes what Apache's `initnewcluster` makes, so that Apache's programs find it. A root that holds something else
    is refused. It may be run again, and by several processes at once: one of them makes the cluster.
    """
    mine = str(uuid.uuid4())
    with access.store() as store:
        found = store.initialize_cluster(mine)
        where = store.uri
    if as_json:
        output.print_json({"metadataServiceUri": where, "instanceId": found, "made": found == mine})
    elif found == mine:
        output.print_line(f"made a cluster at {where}, instance id {found}")
        output.print_note(f"start bookies, four or more: bk bookie run --data DIR --metadata-service-uri '{where}'")
    else:
        output.print_line(f"there is a cluster at {where} already, instance id {found}")


@cluster.command("top")
@click.option("--every", "every_ms", type=options.TIME, default="2s", help="Time between updates.")
@click.option("--once", is_flag=True, help="Print one table, with rates over one second.")
@access()
@options.as_json
def top(access: Access, every_ms: int, once: bool, as_json: bool) -> None:
    """Show all bookies again and again: state, space, appends and reads a second, time of commits, missing copies.

    Numbers come from the bookies' admin ports, each asked with a deadline of 1.5 s; a bookie that does not answer has a
    row that says so, and why below the table. An admin port on loopback is reached from its own host only.
    """
    from bk_cli.operate import cluster_top

    cluster_top.top(access, every_s=max(0.2, every_ms / 1000), once=once, as_json=as_json)


cluster.add_command(secure_zookeeper)
