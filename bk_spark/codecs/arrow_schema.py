# SPDX-License-Identifier: Apache-2.0
"""Merges the Arrow schemas of several logs, and checks the columns of a read against them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from bk_core.columns.arrow_schema import from_bytes
from bk_core.errors import InvalidArgumentError, SchemaMismatchError
from bk_spark.codecs import spelling
from bk_spark.codecs.spark_types import name_of

if TYPE_CHECKING:
    from bk_spark.codecs.codec import LogSchemas
    from bk_spark.codecs.read_columns import ReadColumns


def together(logs: LogSchemas) -> pa.Schema:
    """Return the columns of the logs' newest schemas as one schema. Raises InvalidArgumentError if no log has a schema,
    and SchemaMismatchError if a column has different types in two logs."""
    found: pa.Schema | None = None
    for log in sorted(logs):
        if not logs[log]:
            continue
        mine = from_bytes(logs[log][max(logs[log])])
        if found is None:
            found = mine
        held = {name: found.field(spelt).type for name in mine.names if (spelt := spelling.found(name, found.names))}
        wrong = [
            f"{f.name} {name_of(f.type)} and {name_of(held[f.name])}"
            for f in mine
            if held.get(f.name, f.type) != f.type
        ]
        if wrong:
            raise SchemaMismatchError(
                f"log {log} has columns of other types than the logs before it",
                value=", ".join(wrong),
                remedy="read the logs one by one and cast",
            )
        found = pa.schema([*found, *(f for f in mine if f.name not in held)])
    if found is None:
        raise InvalidArgumentError(
            "nothing was written with codec arrow yet, so there are no columns",
            value=", ".join(sorted(logs)) or "no log",
            remedy='write first, or read the bytes: .option("codec", "raw")',
        )
    return found


def check_columns(columns: ReadColumns, stored: pa.Schema, missing: str | None) -> None:
    """Check the data columns against ``stored``. Raises SchemaMismatchError for a column that ``stored`` has with
    another type and, if ``missing`` (the message) is given, for a column that it does not have."""
    problems = []
    for name in columns.data:
        kind = columns.kind(name)
        spelt = spelling.found(name, stored.names)
        if spelt is None:
            problems += [f"{name}: {missing}"] if missing else []
        elif stored.field(spelt).type != kind:
            problems.append(f"{name} is {name_of(stored.field(spelt).type)}, asked for as {name_of(kind)}")
    if problems:
        raise SchemaMismatchError(
            "the columns are not those of the log",
            value=", ".join(problems),
            remedy=f"leave .schema(…) out, or choose from {', '.join(stored.names)}",
        )
