# SPDX-License-Identifier: Apache-2.0
"""Counts the items in containers of the product's objects, so that a test finds items that are never released."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Collection, Iterator
from typing import Any

OURS = ("bk_core.", "bookie_server.")
_CONTAINERS = (dict, list, set, deque)


def held_by(*roots: object) -> Counter[str]:
    """Count the items in all containers of our objects that can be reached from ``roots``, by class and attribute.

    Class objects, modules and functions are not followed.
    """
    gc.collect()
    counts: Counter[str] = Counter()
    seen, left = set[int](), list[object](roots)
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | str | bytes | int | float):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset | deque):
            left += each
        elif type(each).__module__.startswith(OURS):
            for name, value in _attributes(each):
                if isinstance(value, _CONTAINERS) and not name.startswith("__"):
                    counts[f"{type(each).__qualname__}.{name}"] += len(value)
                left.append(value)
        elif hasattr(each, "__self__"):  # a bound method
            left.append(each.__self__)
    return counts


def grown(before: Counter[str], after: Counter[str], without: Collection[str] = ()) -> dict[str, int]:
    """Return the containers that hold more items than before, with the number of new items."""
    return {name: after[name] - before[name] for name in after if after[name] > before[name] and name not in without}


def _attributes(each: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(each, "__dict__", {}).items()
    for kind in type(each).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if hasattr(each, name):
                yield name, getattr(each, name)
