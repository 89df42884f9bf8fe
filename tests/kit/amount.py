# SPDX-License-Identifier: Apache-2.0
"""How many seeds and examples a test tries: all of them, or with ``pytest --few`` a part, as ``scripts/check`` does."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run, and no deadline on a busy machine; --hypothesis-profile=explore looks further.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("few", settings.get_profile("repeatable"), max_examples=30)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("repeatable")

_few = False


def try_few() -> None:
    """From here on; called before any test is imported."""
    global _few
    _few = True
    settings.load_profile("few")


def some(count: int, few: int) -> int:
    """``count``, or ``few`` of them."""
    return few if _few else count


def examples(times: float) -> settings:
    """Decorates a test whose examples are cheaper, or dearer, than others: so many times the usual number of them."""
    return settings(max_examples=max(1, round(times * settings().max_examples)))
