# SPDX-License-Identifier: Apache-2.0
"""Decides how many seeds and examples a test tries: all of them, or with ``pytest --few``, as in ``scripts/check``, a
part."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest
from hypothesis import settings

# Each run tries the same examples, without a deadline, because the machine may be busy. --hypothesis-profile=explore
# tries others.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("few", settings.get_profile("repeatable"), max_examples=30)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("repeatable")

_few = False


def try_few() -> None:
    """Let tests try few seeds and examples from here on. Must be called before any test is imported."""
    global _few
    _few = True
    settings.load_profile("few")


def some(count: int, few: int) -> int:
    """Return ``count``, or ``few`` with ``pytest --few``."""
    return few if _few else count


def thorough(values: Iterable[Any], which: Container[Any]) -> list[Any]:
    """Return the values for ``parametrize``. Those in ``which`` are marked ``thorough``, so that CI leaves them out."""
    return [pytest.param(each, marks=pytest.mark.thorough) if each in which else each for each in values]


def examples(times: float) -> settings:
    """Return the settings for a test that tries ``times`` the usual number of examples. Cheap examples allow more, and
    dear ones fewer."""
    return settings(max_examples=max(1, round(times * settings().max_examples)))
