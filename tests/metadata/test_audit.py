# SPDX-License-Identifier: Apache-2.0
"""What clients and ``bk`` say to their audit log, because it happens in the metadata store, where no bookie sees it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from bk_core.access.roles import Line, Role, RolesTable, scope_of
from bk_core.client import BookKeeper
from bk_core.errors import BookKeeperError, MetadataConflictError, MetadataUnavailableError, NoSuchLedgerError, Outcome
from bk_core.logs.machines.publication import PublishOptions
from bk_core.logs.model.head import PublishId
from bk_core.logs.named_log import publish_to_logs
from bk_core.metadata.records import BookieOrder, Order
from tests.kit.canaries import PASSWORD
from tests.kit.memory_cluster import memory_cluster
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.kit.metadata_worlds import a_ledger
from tests.logs.leader_kit import log_of
from tests.logs.test_named_log import values, write


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The events, without who and when."""
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "bk_core.audit"]
    assert all((line.pop("user"), line.pop("pid")) == (os.getuid(), os.getpid()) for line in lines)
    return [{name: value for name, value in line.items() if name not in ("time", "host")} for line in lines]


def test_what_an_administrator_changes_in_the_store_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bk_core.audit")
    store = MemoryStore(MemoryCluster())
    store.initialize_cluster()
    ledger_id, _ = store.create_ledger(a_ledger(password=PASSWORD))
    table = RolesTable((Line("CN=a", Role.READER, scope_of("cluster")),))
    store.write_roles(table, None)
    with pytest.raises(MetadataConflictError):
        store.write_roles(table, None)
    store.write_bookie_order("b1:3181", BookieOrder(Order.DRAIN, 0))
    store.write_bookie_order("b1:3181", None)
    store.enable_replication(False)
    store.enable_replication(True)
    store.set_lost_bookie_recovery_delay_s(30)
    store.delete_cookie("b1:3181")
    store.delete_ledger(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        store.delete_ledger(ledger_id)
    store.close()
    assert told(caplog) == [
        {"did": "set-roles", "outcome": "done", "count": 1},
        {"did": "set-roles", "outcome": "refused", "why": "BK_METADATA_CONFLICT", "count": 1},
        {"did": "order-bookie", "outcome": "done", "bookie": "b1:3181", "order": "DRAIN"},
        {"did": "order-bookie", "outcome": "done", "bookie": "b1:3181", "order": "none"},
        {"did": "disable-replication", "outcome": "done"},
        {"did": "enable-replication", "outcome": "done"},
        {"did": "set-lost-bookie-delay", "outcome": "done", "seconds": 30},
        {"did": "delete-cookie", "outcome": "done", "bookie": "b1:3181"},
        {"did": "delete-ledger", "outcome": "done", "ledger": ledger_id},
        {"did": "delete-ledger", "outcome": "refused", "why": "BK_NO_SUCH_LEDGER", "ledger": ledger_id},
    ]


def test_a_deletion_whose_answer_is_lost_is_unknown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "bk_core.audit")
    store = MemoryStore(MemoryCluster())
    store.initialize_cluster()

    def lost(*_: object) -> None:
        raise MetadataUnavailableError("the answer was lost", outcome=Outcome.UNKNOWN)

    monkeypatch.setattr(store, "_delete_settled", lost)
    with pytest.raises(MetadataUnavailableError):
        store.delete_ledger(7)
    store.close()
    assert told(caplog) == [
        {"did": "delete-ledger", "outcome": "unknown", "why": "BK_METADATA_UNAVAILABLE", "ledger": 7}
    ]


async def test_what_becomes_of_a_log_and_of_a_ledger_that_is_taken_over_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "bk_core.audit")

    ids: list[int] = []
    async with memory_cluster() as cluster:
        bookkeeper: BookKeeper = cluster.client()
        log = log_of(bookkeeper)
        await log.create()
        await log.publish([await write(bookkeeper, log, values(0, 10))], PublishId.job("a"))
        assert told(caplog) == [], "what is only added changes nothing that was there"
        await log.overwrite([await write(bookkeeper, log, values(10, 10))], PublishId.job("b"))
        last = await write(bookkeeper, log, values(20, 10))
        options = PublishOptions(overwrite=True)
        await publish_to_logs(bookkeeper, {"events": [last]}, PublishId.job("c"), password=PASSWORD, options=options)
        await log.trim(25)
        await log.set_retention(retention_bytes=7)
        await log.forget_transactions("app")
        writer = await bookkeeper.create_ledger(password=PASSWORD)
        await bookkeeper.open_ledger(writer.ledger_id, recover=True, password=PASSWORD)
        await bookkeeper.delete_ledger(writer.ledger_id)
        with pytest.raises(BookKeeperError):
            await writer.close()
        ids.append(writer.ledger_id)
    events = told(caplog)
    assert [event["outcome"] for event in events] == ["done"] * len(events)
    assert [(event["did"], event.get("log", event.get("ledger"))) for event in events] == [
        ("overwrite-log", "events"),
        ("overwrite-log", "events"),
        ("trim-log", "events"),
        ("set-retention", "events"),
        ("forget-transactions", "events"),
        ("recover-ledger", ids[0]),
        ("delete-ledger", ids[0]),
    ]
    assert (events[2]["before_offset"], events[3]["retention_bytes"]) == (25, 7)
    assert events[0]["publish"] != events[1]["publish"]


async def test_what_vacuum_deletes_of_a_log_and_of_a_deleted_log_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        await log.create()
        caplog.set_level("INFO", "bk_core.audit")
        await log.vacuum()
        deleted = await log.delete()
        await log.vacuum_deleted(deleted.uuid)
    assert [(event["did"], event["outcome"], event["log"]) for event in told(caplog)] == [
        ("vacuum-log", "done", "events"),
        ("delete-log", "done", "events"),
        ("vacuum-deleted-log", "done", "events"),
    ]
