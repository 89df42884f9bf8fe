# SPDX-License-Identifier: Apache-2.0
"""Schemas of a log: which may follow which, and under which number a publish finds its own (RULES K8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError, MetadataCorruptError, SchemaMismatchError
from bk_core.logs.model import schemas
from bk_core.logs.model.head import SCHEMAS_MAX, LogHead, LogPage, Schema
from bk_core.logs.model.paging import PagesNeeded

INT: dict[str, Any] = {"name": "int", "bitWidth": 64, "isSigned": True}
TEXT: dict[str, Any] = {"name": "utf8"}


def schema(**columns: dict[str, Any]) -> bytes:
    return schemas.encode(
        [{"name": name, "nullable": True, "type": kind, "children": []} for name, kind in columns.items()]
    )


A, AB, BA = schema(a=INT), schema(a=INT, b=TEXT), schema(b=TEXT, a=INT)
ABC = schema(a=INT, b=TEXT, c=TEXT)
EMPTY = LogHead(uuid="12345678-9abc-def0-1234-56789abcdef0", created_ms=1, ledger_key=b"k")


def register_all(wanted: Sequence[bytes], *, merge: bool = True) -> tuple[LogHead, dict[str, LogPage], list[int]]:
    head, pages, numbers = EMPTY, dict[str, LogPage](), []
    for each in wanted:
        found = schemas.registered(head, each, merge, nonce=lambda: len(pages), pages=pages)
        head = found.head
        numbers.append(found.number)
        if found.page is not None:
            pages[found.page.name] = found.page.page
    return head, pages, numbers


@pytest.mark.rule("K8")
def test_a_write_takes_the_logs_order_and_adds_only_when_asked() -> None:
    assert schemas.merged(None, BA, False) == BA
    assert schemas.merged(AB, BA, False) == AB
    assert schemas.merged(A, BA, True) == AB
    assert schemas.merged(AB, schema(c=TEXT, b=TEXT, a=INT), True) == ABC


@pytest.mark.rule("K8")
@pytest.mark.parametrize(
    ("newest", "wanted", "merge", "named", "remedy"),
    [
        (AB, ABC, False, "c is new", "mergeSchema"),
        (AB, A, True, "b is missing", "select"),
        (ABC, schema(b=INT, d=TEXT), False, "a is missing, c is missing, b is int64 and was utf8, d is new", "select"),
        (
            A,
            schema(a={"name": "decimal", "precision": 9, "scale": 2}),
            True,
            r"a is decimal\(9, 2\) and was int64",
            "cast",
        ),
    ],
)
def test_columns_that_do_not_fit_are_all_named(
    newest: bytes, wanted: bytes, merge: bool, named: str, remedy: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=f"{named}.*{remedy}"):
        schemas.merged(newest, wanted, merge)


@pytest.mark.rule("K8")
def test_equal_schemas_share_a_number_and_new_ones_get_the_next() -> None:
    head, pages, numbers = register_all([A, A, AB, A, ABC, AB])
    assert numbers == [1, 1, 2, 1, 3, 2]
    assert [schema.number for schema in head.schemas] == [1, 2, 3]
    assert [schemas.schema_in(pages, schema) for schema in head.schemas] == [A, AB, ABC]
    assert head.problem() is None


@pytest.mark.rule("K8")
def test_a_schema_that_another_job_overtook_is_refused() -> None:
    head, pages, _ = register_all([A, schema(a=INT, z=INT)])
    for merge in (True, False):
        with pytest.raises(SchemaMismatchError):
            schemas.registered(head, AB, merge, nonce=lambda: 9, pages=pages)


def test_pages_are_asked_for_newest_first() -> None:
    head, pages, _ = register_all([A, AB])
    with pytest.raises(PagesNeeded) as first:
        schemas.registered(head, A, False, nonce=lambda: 9, pages={})
    assert first.value.names == (head.schemas[1].page,)
    with pytest.raises(PagesNeeded) as rest:
        schemas.registered(head, A, False, nonce=lambda: 9, pages={name: pages[name] for name in first.value.names})
    assert rest.value.names == (head.schemas[0].page,)


def test_a_log_has_only_so_many_schemas() -> None:
    columns = {f"c{n}": INT for n in range(SCHEMAS_MAX + 1)}
    grown = [schema(**dict(list(columns.items())[:n])) for n in range(1, SCHEMAS_MAX + 2)]
    register_all(grown[:-1])
    with pytest.raises(InvalidArgumentError, match=f"at most {SCHEMAS_MAX} schemas"):
        register_all(grown)


def test_a_schema_must_fit_a_page() -> None:
    with pytest.raises(InvalidArgumentError, match="too large"):
        register_all([schema(**{f"column_{n:09}": INT for n in range(9000)})])


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"fields":[{}]}', b'{"fields":[1]}', b"\xff", b"[" * 100_000])
def test_damaged_schemas_are_corrupt_metadata(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError):
        schemas.fields_of(data)


def test_a_page_without_a_schema_is_corrupt_metadata() -> None:
    with pytest.raises(MetadataCorruptError, match="holds no schema"):
        schemas.schema_in({"p": LogPage()}, Schema(number=1, page="p"))


def test_schema_numbers_must_rise() -> None:
    from dataclasses import replace

    for numbers in ((0,), (2, 1), (1, 1)):
        head = replace(EMPTY, schemas=tuple(Schema(number=n, page="p") for n in numbers))
        assert head.problem() == f"schemas are numbered {list(numbers)}"
