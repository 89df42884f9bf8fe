# SPDX-License-Identifier: Apache-2.0
"""Makes the classes of objects that are built for every entry or message.

A frozen dataclass refuses assignments at run time, and for that its constructor makes a call per field: it takes four
times as long as that of a plain one. The type checker refuses the same assignments without any cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

T = TypeVar("T")


FIXED: set[type] = set()
"""The classes that :func:`fixed` made."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fixed(*, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a dataclass with slots. Only the constructor sets its fields; mypy refuses every
    later assignment. ``eq`` and ``kw_only`` mean the same as for a dataclass. Objects that are compared by their fields
    are also hashed by them."""

    def make(kind: type[T]) -> type[T]:
        made = dataclass(slots=True, eq=eq, unsafe_hash=eq, kw_only=kw_only)(kind)
        FIXED.add(made)
        return made

    return make


if TYPE_CHECKING:

    @fixed()
    class _Example:
        number: int

    def _assign(example: _Example) -> None:
        """Test that mypy refuses this assignment: it reports an ignored error that it does not find."""
        example.number = 3  # type: ignore[misc]
