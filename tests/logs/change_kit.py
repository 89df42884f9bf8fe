# SPDX-License-Identifier: Apache-2.0
"""Machines that change a log's head, brought to where a test begins."""

from __future__ import annotations

import itertools

from bk_core.errors import (
    MetadataUnavailableError,
    Outcome,
)
from bk_core.logs import commit
from bk_core.logs.head import LogHead, NewExtent, PublishId
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.publication import Publication, Publish
from bk_core.logs.machines.transactions import PublishOptions
from bk_core.logs.machines.vacuum import Vacuum
from bk_core.model import Versioned

NONCE = itertools.count().__next__
EMPTY = commit.create(uuid="12345678-9abc-def0-1234-56789abcdef0", created_ms=1, ledger_key=b"")
LOST = MetadataUnavailableError("lost", outcome=Outcome.UNKNOWN)
AWAY = MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED)


def extent(ledger_id: int) -> NewExtent:
    return NewExtent(
        ledger_id=ledger_id,
        entry_count=2,
        size_bytes=2,
        created_ms=1,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
    )


def publication(*ledgers: int, **more: object) -> Publication:
    extents = tuple(extent(each) for each in ledgers)
    return Publication(Publish(extents, PublishId.job("j"), 5, NONCE, PublishOptions(**more)))


def published(head: LogHead, ledger: int, job: str) -> LogHead:
    return commit.publish(head, [extent(ledger)], PublishId.job(job), now_ms=1, nonce=NONCE).head


def run(machine: HeadChange[object] | Publication | Vacuum, *events: ev.Event) -> list[ev.Effect]:
    effects: list[ev.Effect] = []
    for event in events:
        effects = machine.step(event)
    return effects


def writing(machine: Publication, version: int = 0) -> Publication:
    effects = run(machine, ev.Start(), ev.HeadRead(Versioned(EMPTY, version)), ev.LedgersChecked())
    assert isinstance(effects[-1], ev.WriteHead)
    return machine
