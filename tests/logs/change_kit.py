# SPDX-License-Identifier: Apache-2.0
"""Sequences that change a log's head, brought to where a test begins."""

from __future__ import annotations

import itertools
from typing import Any

from bk_core.errors import (
    MetadataConflictError,
    MetadataUnavailableError,
    Outcome,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.change import HeadChange, Intent
from bk_core.logs.machines.publication import Publish, PublishOptions
from bk_core.logs.machines.upkeep import Vacuum
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import LogHead, LogTransactions, NewExtent, PublishId
from bk_core.model import Versioned
from tests.kit.extents import new_extent
from tests.kit.sequences import Told

LOG = "events"
NONCE = itertools.count().__next__
EMPTY = LogHead(uuid="12345678-9abc-def0-1234-56789abcdef0", created_ms=1, ledger_key=b"")
LOST = MetadataUnavailableError("lost", outcome=Outcome.UNKNOWN)
AWAY = MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED)
CONFLICT = MetadataConflictError("another version")


def extent(ledger_id: int) -> NewExtent:
    return new_extent(ledger_id, 2, 2)


def published(head: LogHead, ledger: int, job: str) -> LogHead:
    return commit.publish(head, [extent(ledger)], PublishId.job(job), now_ms=1, nonce=NONCE).head


def changing(intent: Intent[Any], **limits: int) -> Told:
    return Told(lambda: HeadChange({LOG: intent}, **limits))


def publication(*ledgers: int, **more: Any) -> Told:
    return changing(Publish(tuple(map(extent, ledgers)), PublishId.job("j"), 5, NONCE, PublishOptions(**more)))


def vacuuming(uuid: str = EMPTY.uuid, **more: int) -> Told:
    return Told(lambda: Vacuum(LOG, uuid, 100, NONCE, **more))


def head_read(head: LogHead, version: int = 0, transactions: Versioned[LogTransactions] | None = None) -> ask.HeadRead:
    return ask.HeadRead(Versioned(head, version), transactions)


def run(told: Told, *answers: Any) -> Any:
    """Answer so: what is asked of the one log is answered by that log. Returns what :func:`now` does."""
    for answer in answers:
        told.tell({LOG: answer} if isinstance(told.request, ask.ForLogs) else answer)
    return now(told)


def now(told: Told) -> Any:
    """What is asked, of the one log; in the end the result, of the one log, or the error."""
    if isinstance(told.request, ask.ForLogs):
        return told.request.requests[LOG]
    if isinstance(told.request, ask.WriteHeads):
        return told.request.writes[LOG]
    if told.request is not None:
        return told.request
    if told.error is not None:
        return told.error
    return told.result[LOG] if isinstance(told.made, HeadChange) else told.result


def writing(told: Told, version: int = 0) -> Told:
    """Its compare-and-set with this version of an empty log is under way."""
    assert isinstance(run(told, head_read(EMPTY, version), None), ask.WriteHead)
    return told
