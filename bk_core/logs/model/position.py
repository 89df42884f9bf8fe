# SPDX-License-Identifier: Apache-2.0
"""Positions in logs and ledgers, as they are stored outside the cluster (N7, docs/formats.md §5). Pure.

A position is the *next* log offset or entry id to read. A position in a log names the cluster, the log's uuid and its
epoch. So a reader notices that the log was overwritten, or that it was deleted and another log has its name, and stops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bk_core.errors import InvalidArgumentError, LogOverwrittenError, LogRecreatedError
from bk_core.logs.model.head import LogHead
from bk_core.model import EntryId, LedgerId

VERSION = 1
OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The next offset to read in one log."""

    uuid: str
    epoch: int
    next: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Positions in logs, or in ledgers, of one cluster, as a checkpoint stores them."""

    cluster: str
    logs: Mapping[str, LogPosition] = field(default_factory=dict)
    ledgers: Mapping[LedgerId, EntryId] = field(default_factory=dict)


def encode_offset(offset: StreamOffset) -> str:
    """Encode positions as one canonical line of JSON, with keys sorted as text and without spaces. Equal positions give
    equal texts."""
    body: dict[str, Any] = {"cluster": offset.cluster, "v": VERSION}
    if offset.logs:
        body["logs"] = {name: {"epoch": at.epoch, "next": at.next, "uuid": at.uuid} for name, at in offset.logs.items()}
    if offset.ledgers:
        body["ledgers"] = {str(ledger_id): entry_id for ledger_id, entry_id in offset.ledgers.items()}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def decode_offset(text: str) -> StreamOffset:
    """Decode a text of :func:`encode_offset`. Raises InvalidArgumentError for any other text, and for a newer
    version."""
    try:
        body = json.loads(text)
        if body["v"] != VERSION:
            raise ValueError(f"version {body['v']}, this one reads {VERSION}")
        if set(body) - {"cluster", "ledgers", "logs", "v"}:
            raise ValueError(f"unknown keys in {sorted(body)}")
        logs = {
            str(name): LogPosition(_text(at["uuid"]), _number(at["epoch"]), _number(at["next"]))
            for name, at in body.get("logs", {}).items()
        }
        ledgers = {_id(key): _number(value) for key, value in body.get("ledgers", {}).items()}
        return StreamOffset(_text(body["cluster"]), logs, ledgers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            "this is not a position in a log", value=f"{text[:200]}: {error}", remedy="start from another checkpoint"
        ) from None


def check_position(position: LogPosition, head: LogHead, *, name: str) -> int:
    """Return the offset at which a reader continues. Raises LogRecreatedError if ``head`` belongs to another log, and
    LogOverwrittenError if it has another epoch."""
    if position.uuid != head.uuid:
        raise LogRecreatedError(
            f"the position belongs to another log named {name}",
            value=f"uuid {position.uuid}, the log now has {head.uuid}",
            remedy="start from a new checkpoint",
        )
    if position.epoch != head.epoch:
        raise LogOverwrittenError(
            f"log {name} was overwritten since",
            value=f"epoch {position.epoch}, the log is at {head.epoch}",
            remedy=f"start again at offset {head.start_offset}, or ask to skip the entries that were replaced",
        )
    return position.next


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return value


def _id(key: str) -> int:
    if str(int(key)) != key:
        raise ValueError(f"{key!r} is not a ledger id")
    return int(key)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value
