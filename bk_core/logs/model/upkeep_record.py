# SPDX-License-Identifier: Apache-2.0
"""The record of the worker that does the upkeep of a cluster's logs. It has the worker's name, the budget that was used
in this hour, and the log whose turn is next. Pure.

The record fences old workers. A worker writes the record by compare-and-set before each step, and fails if another
worker has written it since. docs/formats.md §4 defines its bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

from bk_core.errors import MetadataCorruptError

WINDOW_MS = 3600 * 1000
"""The time for which a budget counts, in milliseconds. It is an hour, as the names of the settings say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepRecord:
    """The record of upkeep. Times are by the store's clock.

    ``owner`` and ``session`` name the elected worker. The hour of the budget began at ``window_ms``, and
    ``copied_bytes`` and ``ledgers`` were used since then. Compaction continues with the log after ``turn``.
    ``vacuumed_ms`` is the time at which all garbage of all logs was last deleted, or 0 if it never was.
    """

    owner: str = ""
    session: int = 0
    window_ms: int = 0
    copied_bytes: int = 0
    ledgers: int = 0
    turn: str = ""
    vacuumed_ms: int = 0

    def at(self, now_ms: int) -> UpkeepRecord:
        """Return this record, with a new hour if its hour is over at ``now_ms``. An hour that begins in the future
        comes from a wrong clock, and is replaced, too."""
        if self.window_ms <= now_ms < self.window_ms + WINDOW_MS:
            return self
        return replace(self, window_ms=now_ms, copied_bytes=0, ledgers=0)


def encode_upkeep_record(record: UpkeepRecord) -> bytes:
    return json.dumps({**asdict(record), "v": 1}, sort_keys=True, separators=(",", ":")).encode()


def decode_upkeep_record(data: bytes) -> UpkeepRecord:
    """Decode the record. Fields of a later version are ignored. Raises MetadataCorruptError."""
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
            remedy="it is written again: it only counted the spending of this hour",
        ) from error
