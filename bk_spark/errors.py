# SPDX-License-Identifier: Apache-2.0
"""Messages only Spark users see, built from :mod:`bk_core.errors` (RULES E1).

Spark shows the last line of a Python traceback, so each message is one line that says what to type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from bk_core.errors import InvalidArgumentError, NotBuiltError, PackageMismatchError

SHOWN_MAX = 10


def shown(names: Iterable[str], most: int = SHOWN_MAX) -> str:
    """Names for a message: the first few and how many more."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def unknown_option(name: str, known: Iterable[str]) -> InvalidArgumentError:
    """An option that no table lists; names the nearest one."""
    near = get_close_matches(name.lower(), {k.lower(): k for k in known}, n=1, cutoff=0.6)
    spelled = {k.lower(): k for k in known}
    remedy = f"did you mean {spelled[near[0]]}?" if near else "docs/spark.md lists the options"
    return InvalidArgumentError("no such option", value=f"{name}", remedy=remedy)


def bad_value(name: str, value: str, expected: str) -> InvalidArgumentError:
    """An option whose value cannot be read."""
    return InvalidArgumentError(
        f"option {name} has a bad value", value=f"{name}={value!r}", remedy=f"expected {expected}"
    )


def not_built(what: str, value: str, remedy: str) -> NotBuiltError:
    """Something the documentation plans and this version does not do."""
    return NotBuiltError(f"{what} is not built yet", value=value, remedy=remedy)


def no_value_column(columns: Sequence[tuple[str, str]], log: str) -> InvalidArgumentError:
    """A DataFrame that is not exactly one binary or string column ``value``; prints the ``select`` to paste.

    ``columns`` are (name, Spark type) in order.
    """
    shown = ", ".join(f"{name} {kind}" for name, kind in columns) or "no columns"
    return InvalidArgumentError(
        f"log {log} takes one column, value BINARY or STRING",
        value=f"the DataFrame has {shown}",
        remedy=f"write {_select_to_paste(columns)}",
    )


def _select_to_paste(columns: Sequence[tuple[str, str]]) -> str:
    kinds = dict(columns)
    if kinds.get("value") in ("binary", "string"):
        return 'df.select("value")'
    if len(columns) == 1:
        name, kind = columns[0]
        if kind in ("binary", "string"):
            return f'df.selectExpr("`{name}` AS value")'
        if kind.startswith(("struct", "map", "array")):
            return f'df.selectExpr("to_json(`{name}`) AS value")'
        return f'df.selectExpr("CAST(`{name}` AS STRING) AS value")'
    return 'df.selectExpr("to_json(struct(*)) AS value")'


def fence_by_pushdown(selection: str) -> InvalidArgumentError:
    """``readMode=fence`` while filter push-down is on: then explaining a query would end a writer (RULES K2)."""
    return InvalidArgumentError(
        "readMode=fence does not go with filter push-down, by which explain() alone would fence",
        value=selection,
        remedy='spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")',
    )


def fence_from_table(selection: str) -> InvalidArgumentError:
    """``readMode=fence`` among the options of a stored table: any reader of it would end a writer (RULES K2)."""
    return InvalidArgumentError(
        "readMode=fence cannot be stored in a table",
        value=selection,
        remedy="give it to the one read that is to fence: spark.read.option",
    )


def package_mismatch(planned: str, here: str) -> PackageMismatchError:
    """A worker runs another version of the package than the driver planned with."""
    return PackageMismatchError(
        "this Spark worker has another version of pyspark-bookkeeper than the driver",
        value=f"driver {planned}, worker {here}",
        remedy="install the same version on every node, or ship one archive with spark.archives",
    )
