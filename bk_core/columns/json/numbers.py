# SPDX-License-Identifier: Apache-2.0
"""Removes the quotes of numbers in JSON. Spark's ``to_json`` writes ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` with
quotes, because JSON has no such numbers. Arrow's parser reads them only without quotes.

A member is changed only if its type is a floating-point number, or a list of such numbers. If a text, or a list of
texts, has the same name elsewhere in the type, members of that name are not changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

_NAMED = "NaN|-?Infinity"
_TOKEN = re.compile(f'"({_NAMED})"(?!\\s*:)'.encode())
"""A quoted number that is not the name of a member."""
_IN_LIST = r'\s*:\s*\[[\[\]\s,\w.+"-]*:?'
"""A pattern for a list of numbers, up to the next colon. No value of another kind matches it."""


def unquoted(values: pa.Array, kind: pa.StructType) -> pa.Array | None:
    """Return JSON texts with bare numbers in place of quoted numbers, or None if no text has to be changed. ``values``
    and the result are binary arrays."""
    numbers, lists = _patterns(kind)
    if numbers is None and lists is None:
        return None
    quoted = pc.match_substring_regex(values, f'"({_NAMED})"')
    if not pc.any(quoted).as_py():
        return None
    if numbers is not None:
        values = pc.replace_substring_regex(values, numbers, r"\1\2")
    if lists is None:
        return values
    pattern = re.compile(lists.encode())
    changed = [
        pattern.sub(lambda found: _TOKEN.sub(rb"\1", found[0]), value.as_py()) if is_quoted else value.as_py()
        for value, is_quoted in zip(values, quoted.to_pylist(), strict=True)
    ]
    return pa.array(changed, values.type)


@lru_cache(maxsize=64)
def _patterns(kind: pa.StructType) -> tuple[str | None, str | None]:
    """Return a regular expression for a member that is a quoted number, and one for a member that is a list of numbers.
    An expression is None if ``kind`` has no such member."""
    members = list(_members(kind))
    single = {name for name, inside in members if pa.types.is_floating(inside)}
    listed = {name for name, inside in members if pa.types.is_list(inside) and pa.types.is_floating(_element(inside))}
    others = {name for name, inside in members if pa.types.is_string(inside)}
    listed_texts = {
        name for name, inside in members if pa.types.is_list(inside) and pa.types.is_string(_element(inside))
    }
    numbers = _any_of(single - others)
    lists = _any_of(listed - listed_texts)
    return (
        None if numbers is None else f'({numbers}\\s*:\\s*)"({_NAMED})"',
        None if lists is None else f"{lists}{_IN_LIST}",
    )


def _any_of(names: set[str]) -> str | None:
    found = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in sorted(names))
    return f"(?:{found})" if found else None


def _members(kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            field = kind.field(place)
            yield field.name, field.type
            yield from _members(field.type)
    elif pa.types.is_list(kind):
        yield from _members(kind.value_type)


def _element(kind: pa.DataType) -> pa.DataType:
    """Return the type of a list's elements. For a list of lists, return the type of the innermost elements."""
    return _element(kind.value_type) if pa.types.is_list(kind) else kind
