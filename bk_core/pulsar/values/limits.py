# SPDX-License-Identifier: Apache-2.0
"""The limits for arrays and maps in values. A few bytes may stand for very many values: an item of two bytes may be a
record of thousands of fields. So values are counted before anything is made of them."""

from __future__ import annotations

VALUES_MAX = 1 << 25
"""The maximum number of values in the arrays and maps of one call, each item counted with all types inside it. Calls
for fewer messages follow if several have more together; one that has more is bad."""
OBJECTS_MAX = 1 << 22
"""The same for several messages whose values become objects of Python before they become columns. Such a value takes
about ten times as much memory."""


def too_many() -> str:
    """Return why a value that has more cannot be decoded."""
    return f"its arrays and maps have more than {VALUES_MAX} values"
