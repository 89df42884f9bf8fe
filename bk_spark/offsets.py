# SPDX-License-Identifier: Apache-2.0
"""Positions as Spark and its users write them; :mod:`bk_core.logs.position` has the canonical form (RULES N7). Pure.

A position is the *next* entry id or log offset to read, so starts are inclusive and ends exclusive everywhere.
Spark compares offsets as JSON text, so the same position must always give the same keys in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bk_core.errors import ClusterMismatchError, InvalidArgumentError
from bk_core.logs.position import StreamOffset, decode_offset, encode_offset
from bk_spark.errors import bad_value
from bk_spark.selection import LedgerSelection, LogSelection, Selection

EARLIEST = -2
LATEST = -1

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """What Spark writes into its checkpoint: the canonical form as a dict whose keys stand in their order."""
    body: dict[str, Any] = json.loads(encode_offset(offset))
    return body


def from_json(data: Mapping[str, Any]) -> StreamOffset:
    """Read a checkpoint offset. Raises InvalidArgumentError if it is not one of ours or of a newer version."""
    try:
        return decode_offset(json.dumps(data))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            "the checkpoint holds no offset that this version can read",
            value=error.value,
            remedy="use the version that wrote it, or another checkpointLocation for this query",
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
