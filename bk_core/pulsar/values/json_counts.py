# SPDX-License-Identifier: Apache-2.0
"""Counts the values in the arrays and maps of JSON, by the schema, before columns are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.entries.batch import I64
from bk_core.pulsar.values.avro.schema import Node

Count: TypeAlias = Callable[[Any], int]
_BEFORE_ITEMS = ",[{"
"""Each item of an array and each value of a map has one of these before it."""


def widest(node: Node) -> int:
    """Return the number of types in the widest item of an array or a map, or 0 if the type has neither."""
    inside = [*(each.node for each in node.fields), *node.branches]
    own = node.inside.count if node.kind in ("array", "map") else 0
    return max([own, *map(widest, inside)])


def items_at_most(texts: pa.Array) -> I64:
    """Return, for each text, an upper limit of the number of items in its arrays and maps."""
    found = np.zeros(len(texts), dtype=np.int64)
    for each in _BEFORE_ITEMS:
        found += pc.count_substring(texts, each).to_numpy(zero_copy_only=False)
    return found


def counter(node: Node) -> Count | None:
    """Return a function that counts the values in the arrays and maps of a parsed value. An item counts as many values
    as it has types. Return None for a type that has no arrays and maps."""
    if node.kind == "union":
        branches = [found for each in node.branches if (found := counter(each)) is not None]
        return (lambda value: max(each(value) for each in branches)) if branches else None
    if node.kind == "record":
        members = [(each.name, found) for each in node.fields if (found := counter(each.node)) is not None]
        return (lambda value: _of_members(value, members)) if members else None
    if node.kind not in ("array", "map"):
        return None
    width, inside, kind = node.inside.count, counter(node.inside), list if node.kind == "array" else dict

    def count(value: Any) -> int:
        if not isinstance(value, kind):
            return 0
        items = value.values() if isinstance(value, dict) else value
        return len(value) * width + (sum(map(inside, items)) if inside is not None else 0)

    return count


def _of_members(value: Any, members: list[tuple[str, Count]]) -> int:
    return sum(count(value.get(name)) for name, count in members) if isinstance(value, Mapping) else 0
