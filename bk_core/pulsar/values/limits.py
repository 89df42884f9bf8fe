# SPDX-License-Identifier: Apache-2.0
"""The limits for arrays and maps in values. A few bytes may stand for very many values: an item of two bytes may be a
record of thousands of fields. So values are counted before anything is made of them."""

from __future__ import annotations

VALUES_MAX = 1 << 25
"""The maximum number of values in the arrays and maps of one call. An item counts as many values as it has types. If
several messages have more together, the caller calls again with fewer of them. A single message that has more is
bad."""
OBJECTS_MAX = 1 << 22
"""The maximum number of values in one call for several messages if the values become Python objects before they become
columns. It is smaller than ``VALUES_MAX``, because such a value takes about ten times as much memory."""


def too_many() -> str:
    """Return the reason why a value with more than ``VALUES_MAX`` values in its arrays and maps cannot be decoded."""
    return f"its arrays and maps have more than {VALUES_MAX} values"
