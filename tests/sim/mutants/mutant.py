# SPDX-License-Identifier: Apache-2.0
"""A known defect of the product, and the catalogue in which each part of the product lists its own.

A mutant replaces attributes of the product's classes and modules while it is planted; the product has no switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

Function = TypeVar("Function", bound=Callable[..., Any])
Change = tuple[Any, str, Any]
"""A class or module, the name of its attribute, and the attribute's value while the mutant is planted."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect, and the rule it breaks. ``shown_by`` names the scope, script or story that shows it, where the engine
    of its part has several or would show it too rarely."""

    name: str
    rule: str
    changes: tuple[Change, ...]
    shown_by: str = ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Put the defect into the product while the context lasts."""
        with pytest.MonkeyPatch.context() as patch:
            for change in self.changes:
                patch.setattr(*change)
            yield


class Mutants(list[Mutant]):
    """The mutants of one part of the product."""

    def add(self, name: str, rule: str, *changes: Change, shown_by: str = "") -> None:
        """Add a mutant that makes these changes."""
        self.append(Mutant(name, rule, changes, shown_by))

    def instead(
        self, owner: Any, attribute: str, name: str, rule: str, *also: Change, shown_by: str = ""
    ) -> Callable[[Function], Function]:
        """Add a mutant in which the decorated function runs instead of a function or property of ``owner``. Other
        changes may come with it."""

        def add(function: Function) -> Function:
            self.add(name, rule, changed(owner, attribute, function), *also, shown_by=shown_by)
            return function

        return add


def changed(owner: Any, attribute: str, function: Callable[..., Any]) -> Change:
    """Return the change that calls ``function`` instead of a function or property of ``owner``. Its first argument is
    the original."""
    original = owner.__dict__[attribute]

    def replacement(*args: Any, **named: Any) -> Any:
        return function(original, *args, **named)

    return owner, attribute, property(replacement) if isinstance(original, property) else replacement
