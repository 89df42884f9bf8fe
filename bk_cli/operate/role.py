# SPDX-License-Identifier: Apache-2.0
"""``bk role``: the table of roles, which holds the rights of clients where bookies run with ``security = "secure"``.

The table is a record of the metadata store. A client that can write there is an administrator, whatever the table says
(docs/security.md §2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core.access.roles import Anywhere, LedgerFacts, Line, Role, RolesTable, Target, scope_of
from bk_core.errors import InvalidArgumentError, MetadataConflictError

if TYPE_CHECKING:
    from bk_core.metadata.port import MetadataStore

ROLES = tuple(role.value for role in Role)
_TRIES = 5
"""The maximum number of attempts to change the table. An attempt fails if another client changes the table first."""

Command = TypeVar("Command", bound=Callable[..., object])


@click.group()
def role() -> None:
    """Roles: the rights of clients where bookies run in mode secure.

    An identity is the name in a client's certificate (tls_identity) or the subject of its token; * in it stands for any
    text. reader: may read. writer: may also write, recover and delete. operator: may inspect bookies and change how
    they run. bookie: has the rights that bookies need among each other. admin: has all rights.
    """


def _where(command: Command) -> Command:
    for name, metavar, what in (
        ("--ledgers", "KEY=VALUE", "Only on ledgers with this custom metadata (* in VALUE: any text)."),
        ("--log", "NAME", "Only on ledgers of the log of this name (* in it: any text)."),
    ):
        command = click.option(name, metavar=metavar, help=what)(command)
    return click.option("--owned", is_flag=True, help="Only on ledgers whose custom metadata bk.owner names them.")(
        command
    )


def _line(role: str, identity: str, log: str | None, ledgers: str | None, owned: bool) -> Line:
    given = [*([f"log:{log}"] if log is not None else []), *([f"ledgers:{ledgers}"] if ledgers is not None else [])]
    given += ["owner"] * owned
    if len(given) > 1:
        raise InvalidArgumentError("a role applies in one place", value=" and ".join(given), remedy="give one of them")
    return Line(identity, Role(role), scope_of(given[0] if given else "cluster"))


@role.command("grant")
@click.argument("role", type=click.Choice(ROLES))
@click.argument("identity")
@_where
@access()
@options.as_json
def grant(
    access: Access, role: str, identity: str, log: str | None, ledgers: str | None, owned: bool, as_json: bool
) -> None:
    """Give an identity a role, on the cluster or where the options say. Bookies obey within seconds."""
    line = _line(role, identity, log, ledgers, owned)
    with access.store() as store:
        changed = change_roles(store, lambda table: table.granted(line))
    _print_change(line, as_json, changed, f"now has the role {role}", f"already had the role {role}")


@role.command("revoke")
@click.argument("role", type=click.Choice(ROLES))
@click.argument("identity")
@_where
@access()
@options.as_json
def revoke(
    access: Access, role: str, identity: str, log: str | None, ledgers: str | None, owned: bool, as_json: bool
) -> None:
    """Take a role away: exactly the line that was granted. Grants that bookies have signed end within ten minutes."""
    line = _line(role, identity, log, ledgers, owned)
    with access.store() as store:
        changed = change_roles(store, lambda table: table.revoked(line))
    _print_change(
        line, as_json, changed, f"does not have the role {role} any more", f"had no such role {role} (bk role list)"
    )


@role.command("list")
@access()
@options.as_json
def list_roles(access: Access, as_json: bool) -> None:
    """Show the table of roles."""
    with access.store() as store:
        table = _table(store)
    lines = sorted(table.lines, key=lambda line: (line.identity, line.role.value, line.scope.text))
    if as_json:
        for line in lines:
            output.print_json(_shown(line))
    elif lines:
        output.print_table(("identity", "role", "on"), [(e.identity, e.role.value, e.scope.text) for e in lines])
    else:
        output.print_line("the table is empty: in mode secure no client may do anything")


@role.command("check")
@click.argument("identity")
@click.option("--ledger", "ledger_id", type=int, help="What it may do with this ledger.")
@access()
@options.as_json
def check(access: Access, identity: str, ledger_id: int | None, as_json: bool) -> None:
    """Say what an identity may do on the whole cluster, or with one ledger, and by which lines."""
    with access.store() as store:
        table, target = _table(store), Anywhere.CLUSTER
        on: Target = target
        if ledger_id is not None:
            on = LedgerFacts(ledger_id, store.read_ledger(ledger_id, fresh=True).value.custom_metadata)
    by = [line for line in table.lines if RolesTable((line,)).rights(identity, on)]
    rights = [each.name.lower() for each in table.rights(identity, on) if each.name]
    where = "the cluster" if ledger_id is None else f"ledger {ledger_id}"
    found = {"identity": identity, "ledgerId": ledger_id, "rights": rights, "by": [_shown(line) for line in by]}
    lines = "; ".join(f"{e.role.value} of {e.identity} on {e.scope.text}" for e in by)
    text = (
        f"{identity} has these rights on {where}: {', '.join(rights)} (by {lines})"
        if by
        else f"{identity} has no rights on {where}"
    )
    output.print_result(as_json, found, text)


def _table(store: MetadataStore) -> RolesTable:
    store.instance_id()  # raises the right error for a mistyped root
    store.sync()
    found = store.read_roles()
    return RolesTable() if found is None else found.value


def change_roles(store: MetadataStore, change: Callable[[RolesTable], RolesTable]) -> bool:
    """Change the table. Return whether it is different now. Raises MetadataConflictError if other clients keep changing
    it."""
    store.instance_id()
    for left in reversed(range(_TRIES)):
        store.sync()
        found = store.read_roles()
        before = RolesTable() if found is None else found.value
        after = change(before)
        if after == before:
            return False
        try:
            store.write_roles(after, None if found is None else found.version)
            return True
        except MetadataConflictError:
            if not left:
                raise
    raise AssertionError


def _shown(line: Line) -> dict[str, str]:
    return {"identity": line.identity, "role": line.role.value, "on": line.scope.text}


def _print_change(line: Line, as_json: bool, changed: bool, done: str, nothing: str) -> None:
    text = f"{line.identity} {done if changed else nothing} on {line.scope.text}"
    output.print_result(as_json, {**_shown(line), "changed": changed}, text)
