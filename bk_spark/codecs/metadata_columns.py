# SPDX-License-Identifier: Apache-2.0
"""The columns that say where a row comes from. Every codec has them beside its own. ``includeMetadata=true`` adds some
of them to the default schema (``MORE``, ``ROW_INDEX``); ``.schema(…)`` may name any of them."""

from __future__ import annotations

from collections.abc import Sequence

from bk_core.columns import row_origins as places
from bk_core.columns.row_origins import ENTRY_LENGTH
from bk_core.errors import InvalidArgumentError

PLACES: dict[str, str] = {"log": "string", "ledger_id": "bigint", "entry_id": "bigint", "offset": "bigint"}
"""The columns that are always there, with Spark's types, in the order of the default schema."""
MORE: dict[str, str] = {ENTRY_LENGTH: "int", "ledger_ctime": "timestamp", "ledger_closed": "boolean"}
"""The columns that ``includeMetadata`` adds."""
ROW_INDEX: dict[str, str] = {"row_index": "int"}
"""The column that ``includeMetadata`` also adds if an entry may hold several rows."""
LOG_ONLY = ("log", "offset")
RESERVED = frozenset(places.TYPES)
"""Names that a data column must not have in a codec whose columns are not fixed."""


def check_nullable(columns: Sequence[tuple[str, str, bool]], *, has_log: bool) -> None:
    """Check that no column that will be null, given as (name, type, nullable), is NOT NULL. Raises
    InvalidArgumentError."""
    for name, _, nullable in columns:
        if not nullable and name in LOG_ONLY and not has_log:
            raise InvalidArgumentError(
                "a bare ledger has no value for this column",
                value=f"{name} NOT NULL",
                remedy=f"declare {name} nullable",
            )
