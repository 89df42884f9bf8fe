# SPDX-License-Identifier: Apache-2.0
"""``bk cluster secure-zookeeper``: gives the nodes of an existing cluster the ACLs that new nodes get."""

from __future__ import annotations

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core.errors import MetadataAccessError


@click.command("secure-zookeeper")
@click.option("--undo", is_flag=True, help="Give everybody all rights again, as with --zookeeper-acl open.")
@click.option("--force", is_flag=True, help="Do it even if bookies run that create open nodes.")
@options.dry_run
@access()
@options.as_json
def secure_zookeeper(access: Access, undo: bool, force: bool, dry_run: bool, as_json: bool) -> None:
    """Give all nodes of a cluster in ZooKeeper the rights that --zookeeper-acl says.

    First restart every bookie and client with its identity, then again with the same zookeeper_acl. This command shuts
    out a process that still runs without an identity; --undo lets it in again. It may be ended and run again at any
    time.
    """
    from bk_core.access.zookeeper_acl import parse_acl
    from bk_core.metadata.layout import parse_service_uri
    from bk_core.metadata.zookeeper import securing

    root = parse_service_uri(access.uri).root
    with access.zookeeper() as tree:
        open_bookies = [] if undo else securing.bookies_without_acls(tree, root)
        if open_bookies and not force and not dry_run:
            raise MetadataAccessError(
                "Bookies run whose nodes everybody may change; without an identity they would be shut out",
                value=", ".join(open_bookies[: securing.NAMED]) + (" …" if open_bookies[securing.NAMED :] else ""),
                remedy="restart them with zookeeper_acl (Apache's: zkEnableSecurity=true), or give --force",
            )
        acl = parse_acl(str(access.settings.get("zookeeper_acl", "")))
        looked = securing.secure(tree, root, acl, undo=undo, apply=not dry_run)
    if as_json:
        output.print_json(
            {"nodes": looked.nodes, "open": sum(looked.open_kinds.values()), "kinds": dict(looked.open_kinds)}
            | {"other": looked.other, "changed": looked.changed, "openBookies": open_bookies}
        )
        return
    for kind, count in looked.open_kinds.most_common():
        output.print_line(f"{count:>9} {kind}: everybody could change them")
    if open_bookies:
        output.print_line(f"bookies that run with zookeeper_acl=open: {', '.join(open_bookies)}")
    if dry_run:
        output.print_line(f"{looked.other} of {looked.nodes} nodes would get other rights")
        return
    output.print_line(f"{looked.changed} of {looked.nodes} nodes have other rights now")
    if looked.changed < looked.other:
        output.print_line(f"{looked.other - looked.changed} changed meanwhile: run it again")
    if not undo:
        output.print_note("undo it with: bk cluster secure-zookeeper --undo")
