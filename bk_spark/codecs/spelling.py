# SPDX-License-Identifier: Apache-2.0
"""Names of columns as Spark compares them: case does not matter. Pure.

Spark tells a Python source nothing of ``spark.sql.caseSensitive``: no worker gets the session's settings. So a name
means the column of exactly this name, or the only one that differs from it in case alone. A session in which case
matters gets what it asks for too, because no codec has two columns that only case tells apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bk_core.errors import InvalidArgumentError


def found(name: str, known: Collection[str]) -> str | None:
    """The column of ``known`` that ``name`` means, or None. Raises InvalidArgumentError if it may mean several."""
    if name in known:
        return name
    folded = name.lower()
    alike = [each for each in known if each.lower() == folded]
    if len(alike) > 1:
        raise InvalidArgumentError(
            "several columns differ only in case", value=f"{name} may mean {', '.join(alike)}", remedy="rename one"
        )
    return alike[0] if alike else None


def respelled(names: Iterable[str], known: Collection[str]) -> list[str]:
    """``names`` as ``known`` spells them; names that it does not have stay as they are."""
    return [found(name, known) or name for name in names]
