# SPDX-License-Identifier: Apache-2.0
"""The plan of one reading task, in a compact form. It has all that the task needs, so that the task asks no metadata
store (RULES K3). Pure.

Theory. Spark keeps every partition of a plan as bytes on the driver and sends each to its task. In a log of small
ledgers, a task has tens of thousands of ranges. So ranges travel as columns of the narrowest integers that hold them,
and values that many ranges share (log names, layouts) travel once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from bk_core.model import BookieId, BookieServiceInfo
from bk_spark.plan.packing import LedgerRange, PartitionLayout

if TYPE_CHECKING:
    import numpy.typing as npt

NONE = -1
"""The value that stands for None in a column. No position, time or index is negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """The ranges of one task, in order; they may be of several logs.

    ``bookies`` holds the endpoints of the ensembles in their layouts. ``schemas`` are those that the ranges name, by
    log and number (RULES K8). ``version`` is the package's on the driver. ``prefer`` spreads tasks over replicas.
    """

    version: str
    instance_id: str
    ranges: tuple[LedgerRange, ...]
    bookies: Mapping[BookieId, BookieServiceInfo]
    prefer: int = 0
    schemas: Mapping[tuple[str, int], bytes] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Callable[..., TaskPlan], tuple[Any, ...]]:
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "ranges"}
        return _unpacked, (others, _table_of(self.ranges))


_INTEGERS: tuple[str, ...] = ("ledger_id", "first", "last", "bytes", "offset", "schema_number", "created_ms", "closed")


@dataclass(frozen=True, slots=True)
class _Table:
    """Ranges as columns: integers by name, and indices into ``logs`` and ``layouts``."""

    columns: Mapping[str, tuple[int, npt.NDArray[np.unsignedinteger[Any]]]]
    logs: tuple[str | None, ...]
    layouts: tuple[PartitionLayout | None, ...]


def _table_of(ranges: Sequence[LedgerRange]) -> _Table:
    logs: dict[str | None, int] = {}
    layouts: dict[int, int] = {}  # by identity: planning makes equal ones the same object
    kept: list[PartitionLayout | None] = []
    log_at, layout_at = [], []
    for each in ranges:
        log_at.append(logs.setdefault(each.log, len(logs)))
        index = layouts.setdefault(id(each.layout), len(kept))
        if index == len(kept):
            kept.append(each.layout)
        layout_at.append(index)
    columns = {name: _narrow([getattr(each, name) for each in ranges]) for name in _INTEGERS}
    columns |= {"log": _narrow(log_at), "layout": _narrow(layout_at)}
    return _Table(columns, tuple(logs), tuple(kept))


def _unpacked(others: Mapping[str, Any], table: _Table) -> TaskPlan:
    columns = {name: _widened(*column) for name, column in table.columns.items()}
    columns["log"] = [table.logs[index] for index in columns["log"]]
    columns["layout"] = [table.layouts[index] for index in columns["layout"]]
    for name in ("offset", "created_ms"):
        columns[name] = [None if value == NONE else value for value in columns[name]]
    columns["closed"] = list(map(bool, columns["closed"]))
    names = tuple(columns)
    ranges = (LedgerRange(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True))
    return TaskPlan(ranges=tuple(ranges), **others)


def _narrow(values: Sequence[int | None]) -> tuple[int, npt.NDArray[np.unsignedinteger[Any]]]:
    """Return the least value and the distance of each value from it, in the narrowest unsigned integers."""
    column = np.array([NONE if value is None else value for value in values], dtype=np.int64)
    least = int(column.min(initial=np.iinfo(np.int64).max)) if len(values) else 0
    above = (column - least).view(np.uint64)
    return least, above.astype(np.min_scalar_type(int(above.max(initial=0))))


def _widened(least: int, above: npt.NDArray[np.unsignedinteger[Any]]) -> list[Any]:
    values: list[Any] = (above.astype(np.uint64).view(np.int64) + least).tolist()
    return values
