# SPDX-License-Identifier: Apache-2.0
"""Positions: the short form that users write and the canonical one in checkpoints (RULES N7, formats.md §5). Pure.

A position is the *next* entry id or log offset to read, so starts are inclusive and ends exclusive everywhere.
Spark compares offsets as JSON text, so the same position must always give the same keys in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bk_core.errors import ClusterMismatchError, InvalidArgumentError
from bk_spark.errors import bad_value
from bk_spark.selection import LedgerSelection, LogSelection, Selection

EARLIEST = -2
LATEST = -1
OFFSET_VERSION = 1

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class LogCursor:
    """A position in one log: its identity, epoch and next offset."""

    uuid: str
    epoch: int
    next: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Positions in the logs and ledgers of one cluster."""

    cluster: str
    logs: Mapping[str, LogCursor] = field(default_factory=dict)
    ledgers: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The checkpoint form: keys sorted at every level, numbers as integers."""
        body: dict[str, Any] = {"cluster": self.cluster}
        if self.ledgers:
            body["ledgers"] = {key: self.ledgers[int(key)] for key in sorted(map(str, self.ledgers))}
        if self.logs:
            body["logs"] = {
                name: {"epoch": cursor.epoch, "next": cursor.next, "uuid": cursor.uuid}
                for name, cursor in sorted(self.logs.items())
            }
        body["v"] = OFFSET_VERSION
        return body

    def canonical(self) -> str:
        """The one line of JSON of docs/formats.md §5."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def from_json(data: Mapping[str, Any]) -> StreamOffset:
    """Read a checkpoint offset. Raises InvalidArgumentError if it is not one of ours or of a newer version."""
    try:
        version = int(data["v"])
        if version != OFFSET_VERSION:
            raise InvalidArgumentError(
                "the checkpoint was written by another version of the connector",
                value=f"offset version {version}, this one reads {OFFSET_VERSION}",
                remedy="use the version that wrote it, or a newer one",
            )
        logs = {
            str(name): LogCursor(str(c["uuid"]), int(c["epoch"]), int(c["next"]))
            for name, c in data.get("logs", {}).items()
        }
        ledgers = {int(key): int(value) for key, value in data.get("ledgers", {}).items()}
        return StreamOffset(str(data["cluster"]), logs, ledgers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            "the checkpoint holds no offset of this connector",
            value=json.dumps(data, default=str)[:200],
            remedy="use another checkpointLocation for this query",
        ) from error


def next_of(offset: StreamOffset, selection: Selection, cluster: str) -> int:
    """The next entry id or log offset of ``selection``; the log's identity is checked where its head is at hand.

    Raises ClusterMismatchError for another cluster, InvalidArgumentError for another ledger or log.
    """
    if offset.cluster != cluster:
        raise ClusterMismatchError(
            "the checkpoint belongs to another cluster",
            value=f"checkpoint {offset.cluster}, metadataServiceUri {cluster}",
            remedy="point metadataServiceUri at the first cluster, or use another checkpointLocation",
        )
    if isinstance(selection, LedgerSelection) and set(offset.ledgers) == {selection.ledger_id}:
        return offset.ledgers[selection.ledger_id]
    if isinstance(selection, LogSelection) and set(offset.logs) == {selection.name}:
        return offset.logs[selection.name].next
    held = ", ".join([*(f"ledger {i}" for i in offset.ledgers), *(f"log {n}" for n in offset.logs)])
    raise InvalidArgumentError(
        "the checkpoint belongs to something else",
        value=f"checkpoint {held}, the query reads {selection}",
        remedy="use another checkpointLocation for this query",
    )


def parse_bound(option: str, text: str, selection: Selection) -> int:
    """``earliest``, ``latest``, or the short form ``{"events":1000234}`` or ``{"17":23}``; a number may be −2
    (earliest) or −1 (latest).

    Raises InvalidArgumentError for anything else: a missing or a further key, a number below −2, the checkpoint form.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    expected = f'earliest, latest or {{"{selection.key}":N}} with N the next to read'
    try:
        data = json.loads(text)
    except ValueError:
        raise bad_value(option, text, expected) from None
    if not isinstance(data, dict) or set(data) != {selection.key}:
        raise bad_value(option, text, expected)
    number = data[selection.key]
    if isinstance(number, bool) or not isinstance(number, int) or number < EARLIEST:
        raise bad_value(option, text, expected)
    return number


def resolve_bound(bound: int, earliest: int, latest: int) -> int:
    """A bound as a number: sentinels replaced by what the log or ledger has now."""
    if bound == EARLIEST:
        return earliest
    return latest if bound == LATEST else bound
