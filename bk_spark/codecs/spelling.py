# SPDX-License-Identifier: Apache-2.0
"""Compares column names as Spark does: case does not matter. Pure.

A Python source cannot read ``spark.sql.caseSensitive``, because Spark passes the session's settings to no worker. So a
name means the column with exactly this name, or else the only column that differs from it in case alone. A session in
which case matters also gets the columns that it asks for, because no codec has two columns that differ only in case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bk_core.errors import InvalidArgumentError


def found(name: str, known: Collection[str]) -> str | None:
    """Return the column of ``known`` that ``name`` means, or None. Raises InvalidArgumentError if it may mean
    several."""
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
    """Return ``names`` as ``known`` spells them. Names that ``known`` does not have stay as they are."""
    return [found(name, known) or name for name in names]
