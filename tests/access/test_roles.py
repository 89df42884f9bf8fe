# SPDX-License-Identifier: Apache-2.0
"""The table of roles: who may what, and its record."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from bk_core.access.needs import LANES, Need, On, allowed
from bk_core.access.roles import (
    LINES_MAX,
    RIGHTS,
    Anywhere,
    LedgerFacts,
    Line,
    Right,
    Role,
    RolesTable,
    Scope,
    Where,
    decode_roles,
    encode_roles,
    matches,
    scope_of,
)
from bk_core.errors import InvalidArgumentError, MetadataCorruptError

ORDERS = LedgerFacts(7, {"bk.log": b"orders-eu", "bk.owner": b"CN=ingest", "team": b"sales"})
OTHER = LedgerFacts(8, {"bk.log": b"invoices", "bk.owner": b"CN=billing", "team": b"finance"})
BARE = LedgerFacts(9)


def table(*lines: tuple[str, str, str]) -> RolesTable:
    return RolesTable(tuple(Line(identity, Role(role), scope_of(on)) for identity, role, on in lines))


def test_nobody_may_anything_that_no_line_gives() -> None:
    empty = RolesTable()
    for target in (ORDERS, BARE, *Anywhere):
        assert empty.rights("CN=ingest", target) is Right.NONE
        assert table(("CN=other", "admin", "cluster")).rights("CN=ingest", target) is Right.NONE
        assert table(("*", "admin", "cluster")).rights("", target) is Right.NONE, "no identity, no right"


def test_an_admin_may_all_and_an_operator_reads_no_entry() -> None:
    every = Right.LOOK | Right.READ | Right.WRITE | Right.RECOVER | Right.HINT | Right.OPERATE
    assert RIGHTS[Role.ADMIN] == every
    assert RIGHTS[Role.OPERATOR] | every == every
    assert not RIGHTS[Role.OPERATOR] & (Right.READ | Right.WRITE | Right.RECOVER)
    assert RIGHTS[Role.READER] == Right.LOOK | Right.READ
    for role in (Role.READER, Role.WRITER, Role.BOOKIE):
        assert Right.OPERATE not in RIGHTS[role]


@pytest.mark.parametrize(
    ("on", "orders", "other", "bare"),
    [
        ("cluster", True, True, True),
        ("log:orders-*", True, False, False),
        ("log:orders", False, False, False),
        ("log:*", True, True, False),
        ("ledgers:team=sales", True, False, False),
        ("ledgers:team=*", True, True, False),
        ("owner", True, False, False),
    ],
)
def test_a_role_counts_where_it_was_given(on: str, orders: bool, other: bool, bare: bool) -> None:
    roles = table(("CN=ingest", "reader", on))
    found = [Right.READ in roles.rights("CN=ingest", each) for each in (ORDERS, OTHER, BARE)]
    assert found == [orders, other, bare]
    assert (Right.LOOK in roles.rights("CN=ingest", Anywhere.CLUSTER)) is (on == "cluster")
    assert Right.LOOK in roles.rights("CN=ingest", Anywhere.ANYWHERE)


def test_a_value_that_is_no_text_fits_no_pattern() -> None:
    assert table(("a", "reader", "log:*")).rights("a", LedgerFacts(1, {"bk.log": b"\xff\xfe"})) is Right.NONE


def test_lines_add_up() -> None:
    roles = table(("CN=*", "reader", "cluster"), ("CN=ingest", "writer", "log:orders-*"))
    assert Right.WRITE in roles.rights("CN=ingest", ORDERS)
    assert Right.WRITE not in roles.rights("CN=ingest", OTHER)
    assert roles.rights("CN=report", ORDERS) == RIGHTS[Role.READER]


def test_a_star_stands_for_any_text_and_nothing_else_has_a_meaning() -> None:
    assert matches("CN=a*,O=x", "CN=abc,O=x")
    for pattern, text in (("CN=[ab]", "CN=a"), ("CN=?", "CN=a"), ("CN=a", "cn=a"), ("CN=a", "CN=ab"), ("a*", "A1")):
        assert not matches(pattern, text)
    assert matches("CN=[a]*?", "CN=[a]1?")


def test_what_needs_a_ledger_is_never_allowed_without_one() -> None:
    roles = table(("a", "admin", "cluster"))
    assert allowed(roles, "a", LANES["Read"]["id"], ORDERS)
    assert not allowed(roles, "a", LANES["Read"]["id"])
    assert not allowed(roles, "a", Need(On.CLUSTER)), "a need that names no right is an oversight"


def test_an_identity_is_enough_where_the_table_of_needs_says_so_and_no_identity_never_is() -> None:
    assert allowed(RolesTable(), "a", Need(On.IDENTITY))
    assert not allowed(RolesTable(), "", Need(On.IDENTITY))
    assert allowed(RolesTable(), "", Need(On.FREE))


# --- the record ---


def test_the_record_keeps_what_a_later_version_wrote_in_it() -> None:
    written: dict[str, Any] = {
        "v": 1,
        "note": {"by": "a later version"},
        "roles": [{"identity": "CN=a", "role": "reader", "on": "log:x*", "since": 5}],
    }
    found = decode_roles(json.dumps(written).encode())
    assert found.lines == (Line("CN=a", Role.READER, Scope(Where.LOG, "x*")),)
    again = found.granted(Line("CN=ö", Role.ADMIN))
    kept = json.loads(encode_roles(again))
    assert kept["note"] == written["note"]
    assert kept["roles"][0] == written["roles"][0]
    assert decode_roles(encode_roles(again)) == again
    assert again.revoked(Line("CN=a", Role.READER, Scope(Where.LOG, "x*"))).lines == (Line("CN=ö", Role.ADMIN),)


def test_a_line_that_is_given_twice_stands_once() -> None:
    line = Line("a", Role.READER)
    assert RolesTable().granted(line).granted(Line("a", Role.READER)).lines == (line,)


GOOD = {"identity": "a", "role": "reader", "on": "cluster"}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"v":2,"roles":[]}',
        b'{"v":1}',
        b'{"v":1,"roles":{}}',
        b"[" * 100_000,
        *(
            json.dumps({"v": 1, "roles": [line]}).encode()
            for line in (
                5,
                {},
                {**GOOD, "role": "root"},
                {**GOOD, "role": None},
                {**GOOD, "on": "host:x"},
                {**GOOD, "on": "cluster:x"},
                {**GOOD, "on": "log"},
                {**GOOD, "on": "ledgers:team"},
                {**GOOD, "on": "owner:x"},
                {**GOOD, "role": "admin", "on": "log:x"},
                {**GOOD, "identity": ""},
                {**GOOD, "identity": "a\n"},
                {**GOOD, "identity": "a" * 1025},
            )
        ),
    ],
)
def test_a_record_that_is_not_understood_wholly_is_refused(bad: bytes) -> None:
    with pytest.raises(MetadataCorruptError, match="all access is denied"):
        decode_roles(bad)


def test_operators_bookies_and_admins_are_of_the_whole_cluster() -> None:
    for role, on in product((Role.OPERATOR, Role.BOOKIE, Role.ADMIN), ("log:x", "owner", "ledgers:a=b")):
        with pytest.raises(InvalidArgumentError, match="on the cluster only"):
            Line("a", role, scope_of(on))


def test_the_table_has_a_bound() -> None:
    full = RolesTable(tuple(Line(f"a{n}", Role.READER) for n in range(LINES_MAX)))
    with pytest.raises(InvalidArgumentError, match="lines at most"):
        full.granted(Line("b", Role.READER))


def test_each_role_has_exactly_the_rights_of_its_line_in_the_documents() -> None:
    """docs/security.md, the table of roles."""
    names = {role: {right.name for right in Right if right and right in rights} for role, rights in RIGHTS.items()}
    use = {"LOOK", "READ", "WRITE", "RECOVER", "HINT"}
    assert names == {
        Role.READER: {"LOOK", "READ"},
        Role.WRITER: use,
        Role.OPERATOR: {"LOOK", "HINT", "OPERATE"},
        Role.BOOKIE: use,
        Role.ADMIN: use | {"OPERATE"},
    }
