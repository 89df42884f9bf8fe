# SPDX-License-Identifier: Apache-2.0
"""The record of the worker that keeps a cluster's logs: its name, what it spent this hour, the next log. Pure.

Its version in the store is the fence: a worker writes it before each step, by compare-and-set, and a worker that was
replaced meanwhile fails there. docs/formats.md §4 has its bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

from bk_core.errors import MetadataCorruptError

WINDOW_MS = 3600 * 1000
"""Budgets are those of an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepRecord:
    """``owner`` and ``session`` name the worker. ``window_ms``: when the hour began; ``copied_bytes`` and ``ledgers``
    are what was spent since. Compaction goes on behind the log ``turn``. ``vacuumed_ms``: when all logs were rid of
    what nothing lists; 0: never. Times are by the store's clock."""

    owner: str = ""
    session: int = 0
    window_ms: int = 0
    copied_bytes: int = 0
    ledgers: int = 0
    turn: str = ""
    vacuumed_ms: int = 0

    def at(self, now_ms: int) -> UpkeepRecord:
        """This record in the hour of ``now_ms``; one that begins later than now is of a clock that was wrong."""
        if self.window_ms <= now_ms < self.window_ms + WINDOW_MS:
            return self
        return replace(self, window_ms=now_ms, copied_bytes=0, ledgers=0)


def encode_upkeep_record(record: UpkeepRecord) -> bytes:
    return json.dumps({**asdict(record), "v": 1}, sort_keys=True, separators=(",", ":")).encode()


def decode_upkeep_record(data: bytes) -> UpkeepRecord:
    """Fields of a later version are ignored. Raises MetadataCorruptError."""
    try:
        found = json.loads(data)
        values = {each.name: found.get(each.name, each.default) for each in fields(UpkeepRecord)}
        if any(type(values[each.name]) is not type(each.default) for each in fields(UpkeepRecord)):
            raise ValueError("a field has another type")
        return UpkeepRecord(**values)
    except (ValueError, AttributeError) as error:
        raise MetadataCorruptError(
            "The record of upkeep cannot be read",
            value=str(data[:80]),
            remedy="it is made anew: it said only what was spent in this hour",
        ) from error
