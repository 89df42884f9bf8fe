# SPDX-License-Identifier: Apache-2.0
"""Numbers the schemas of a log, and decides which schema may follow another. Pure (K8).

A schema is stored once, in an immutable page of the log, and numbered from 1; extents name it by number. Its bytes are
Arrow's JSON form of a schema (docs/formats.md §7) in a canonical form: equal schemas have equal bytes. All columns are
nullable, so older entries can be read with a schema that has more columns; the new columns are null in their rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bk_core.errors import InvalidArgumentError, MetadataCorruptError, SchemaMismatchError
from bk_core.logs.model.codec import encode_page, page_name
from bk_core.logs.model.head import PAGE_BYTES_MAX, SCHEMAS_MAX, LogHead, LogPage, Schema
from bk_core.logs.model.paging import NewPage, Nonce, Pages, PagesNeeded

Field = Mapping[str, Any]
TypeName = Callable[[Field], str]
"""A function that returns the name of a field's type, for error messages."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The number of a schema, the head that lists it, and the page to create. ``page`` is None if the log already had
    the schema."""

    head: LogHead
    number: int
    page: NewPage | None = None


def encode(fields: list[dict[str, Any]]) -> bytes:
    """Return the canonical bytes of a schema with these fields, in Arrow's JSON form."""
    return json.dumps({"fields": fields}, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fields_of(schema: bytes) -> dict[str, Field]:
    """Return the fields of a schema, by name, in order. Raises MetadataCorruptError for bytes that are not a schema."""
    try:
        fields = json.loads(schema)["fields"]
        named = {str(field["name"]): field for field in fields}
        if not all(isinstance(field["type"]["name"], str) for field in fields) or len(named) != len(fields):
            raise ValueError("each field needs a type and a unique name")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MetadataCorruptError(
            "cannot read the schema of a log", value=str(error), remedy="a newer version wrote it or it is damaged"
        ) from error
    return named


def merged(newest: bytes | None, wanted: bytes, merge: bool, *, named: TypeName | None = None) -> bytes:
    """Return the schema for new entries. It has the columns of the log's ``newest`` schema in their order and then,
    with ``merge``, the new columns of ``wanted``. ``named`` names types in errors; the default gives Arrow's names.

    Raises SchemaMismatchError, which names every column that is missing, of another type, or, without ``merge``, new.
    """
    if newest is None or newest == wanted:
        return wanted
    known, given = fields_of(newest), fields_of(wanted)
    new = [field for name, field in given.items() if name not in known]
    problems = [f"{name} is missing" for name in known if name not in given]
    problems += [
        f"{name} is {(named or shown)(given[name])} and was {(named or shown)(field)}"
        for name, field in known.items()
        if name in given and given[name] != field
    ]
    if not merge:
        problems += [f"{field['name']} is new" for field in new]
    if problems:
        only_new = not merge and len(problems) == len(new)
        raise SchemaMismatchError(
            "the columns are not those of the log",
            value=", ".join(problems),
            remedy='merge_schema=True, in Spark .option("mergeSchema", "true"), adds new columns'
            if only_new
            else "select and cast the log's columns",
        )
    return encode([dict(field) for field in (*known.values(), *new)])


def shown(field: Field) -> str:
    """Return Arrow's name of a field's type, such as ``int64`` or ``list<utf8>``."""
    kind, children = field["type"], field.get("children", ())
    name = str(kind["name"])
    if children:
        return f"{name}<{', '.join(_named(child, name) for child in children)}>"
    details = [f"{kind[key]}" for key in ("bitWidth", "precision", "scale", "unit", "timezone") if key in kind]
    if name == "int":
        return f"{'int' if kind.get('isSigned', True) else 'uint'}{kind.get('bitWidth')}"
    return f"{name}({', '.join(details)})" if details else name


def newest(head: LogHead) -> Schema | None:
    """Return the log's newest schema, or None if it has no schema."""
    return max(head.schemas, key=lambda schema: schema.number, default=None)


def schema_in(pages: Pages, schema: Schema) -> bytes:
    """Return the bytes of a schema. Raises PagesNeeded, and MetadataCorruptError for a page that holds no schema."""
    if schema.page not in pages:
        raise PagesNeeded([schema.page])
    if not pages[schema.page].schema:
        raise MetadataCorruptError(f"page {schema.page} of the log holds no schema", value=f"schema {schema.number}")
    return pages[schema.page].schema


def registered(
    head: LogHead, wanted: bytes, merge: bool, *, nonce: Nonce, pages: Pages, named: TypeName | None = None
) -> Registered:
    """Return the schema ``wanted`` with its number in the log. A new schema gets the next number if it may follow the
    newest schema.

    If the log has an equal schema, the result has its number, even if there are newer schemas. Raises PagesNeeded,
    SchemaMismatchError, and InvalidArgumentError for a schema that is too large, or if the log already has SCHEMAS_MAX
    schemas.
    """
    last = newest(head)
    if last is None:
        return _appended(head, wanted, 1, nonce)
    before = schema_in(pages, last)
    if before == wanted:
        return Registered(head, last.number)
    if missing := [schema.page for schema in head.schemas if schema.page not in pages]:
        raise PagesNeeded(missing)
    for schema in head.schemas:
        if schema_in(pages, schema) == wanted:
            return Registered(head, schema.number)
    if merged(before, wanted, merge, named=named) != wanted:
        raise SchemaMismatchError(
            "the log's schema was changed by another job meanwhile",
            value=f"schema {last.number} is newer than the one this job was planned with",
            remedy="run the job again",
        )
    return _appended(head, wanted, last.number + 1, nonce)


def _appended(head: LogHead, wanted: bytes, number: int, nonce: Nonce) -> Registered:
    fields_of(wanted)
    if len(head.schemas) >= SCHEMAS_MAX:
        raise InvalidArgumentError(
            f"a log has at most {SCHEMAS_MAX} schemas", value=f"this would be schema {number}", remedy="begin a new log"
        )
    page = LogPage(schema=wanted)
    data = encode_page(page)
    if len(data) > PAGE_BYTES_MAX:
        raise InvalidArgumentError(
            "the schema is too large", value=f"{len(data)} bytes, at most {PAGE_BYTES_MAX}", remedy="use fewer columns"
        )
    new = NewPage(page_name(nonce(), data), data, page)
    schemas = (*head.schemas, Schema(number=number, page=new.name))
    return Registered(replace(head, schemas=schemas), number, new)


def _named(child: Field, parent: str) -> str:
    return f"{child['name']}: {shown(child)}" if parent == "struct" else shown(child)
