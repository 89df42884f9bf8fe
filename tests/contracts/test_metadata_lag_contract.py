# SPDX-License-Identifier: Apache-2.0
"""What a metadata store answers while its server lags behind changes that other clients know to be done.

Each test first shows that a bare read through that server is old.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import MetadataConflictError, NoSuchLedgerError, NoSuchLogError
from bk_core.metadata.port import LogWrite, MetadataStore, TxnWrite
from bk_core.metadata.tree.tree import NoNodeError
from bk_core.model import BookieServiceInfo, LedgerId, LedgerMetadata, LedgerState, Versioned
from tests.kit.metadata_worlds import LagWorld, a_ledger, tree_of
from tests.kit.waiting import until

pytestmark = pytest.mark.rule("M5")


def closed(store: MetadataStore, ledger_id: LedgerId, found: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
    """Close the ledger after one entry, and return its record."""
    after = replace(found.value, state=LedgerState.CLOSED, last_entry_id=0, length=7)
    return store.write_ledger(ledger_id, after, found.version)


def knows_nothing_of(world: LagWorld, path: str) -> bool:
    try:
        tree_of(world.reader).get(path)
    except NoNodeError:
        return world.lags
    return False


def test_ledger_made_a_moment_ago_exists_through_a_server_that_lags(lag_world: LagWorld) -> None:
    lag_world.lag()
    ledger_id, made = lag_world.writer.create_ledger(a_ledger())
    assert knows_nothing_of(lag_world, lag_world.reader._znode_of(ledger_id))
    assert lag_world.reader.read_ledger(ledger_id) == made


def test_time_and_watch_of_a_ledger_made_a_moment_ago_can_be_had(lag_world: LagWorld) -> None:
    lag_world.lag()
    ledger_id, _ = lag_world.writer.create_ledger(a_ledger())
    assert knows_nothing_of(lag_world, lag_world.reader._znode_of(ledger_id))
    assert lag_world.reader.ledger_ctime_ms(ledger_id) == lag_world.writer.ledger_ctime_ms(ledger_id)
    lag_world.lag()
    other, made = lag_world.writer.create_ledger(a_ledger())
    heard: list[Versioned[LedgerMetadata] | None] = []
    lag_world.reader.watch_ledger(other, heard.append)
    after = closed(lag_world.writer, other, made)
    until(lambda: heard == [after])


def test_ledger_that_was_absent_can_be_watched_once_it_exists(lag_world: LagWorld) -> None:
    with pytest.raises(NoSuchLedgerError):
        lag_world.reader.watch_ledger(4711, lambda _: None)
    lag_world.writer.create_ledger(a_ledger(), 4711)
    lag_world.reader.sync()
    lag_world.reader.watch_ledger(4711, lambda _: None)


def test_ledger_closed_a_moment_ago_is_not_reported_open_to_who_asks_for_a_fresh_record(lag_world: LagWorld) -> None:
    ledger_id, made = lag_world.writer.create_ledger(a_ledger())
    lag_world.reader.sync()
    lag_world.lag()
    after = closed(lag_world.writer, ledger_id, made)
    assert lag_world.reader.read_ledger(ledger_id) == made, "a bare read is old"
    assert lag_world.lags
    assert lag_world.reader.read_ledger(ledger_id, fresh=True) == after


def test_closed_ledger_costs_no_sync(lag_world: LagWorld) -> None:
    after = closed(lag_world.writer, *lag_world.writer.create_ledger(a_ledger()))
    ledger_id = next(iter(lag_world.writer.list_ledgers()))
    lag_world.reader.sync()
    lag_world.lag()
    assert lag_world.reader.read_ledger(ledger_id, fresh=True) == after
    assert lag_world.lags


def test_what_never_existed_is_still_said_not_to_exist(lag_world: LagWorld) -> None:
    with pytest.raises(NoSuchLedgerError):
        lag_world.reader.read_ledger(4711)
    with pytest.raises(NoSuchLogError):
        lag_world.reader.read_log("nowhere")
    assert lag_world.reader.read_cookie("nobody") is None
    assert lag_world.reader.bookie_info("nobody") is None
    assert lag_world.reader.page_ctime_ms("nowhere", "none") is None


def test_log_its_pages_and_transactions_made_a_moment_ago_exist(lag_world: LagWorld) -> None:
    lag_world.lag()
    lag_world.writer.create_log("events", b"head")
    lag_world.writer.create_page("events", "page", b"extents")
    assert knows_nothing_of(lag_world, lag_world.reader._head("events"))
    assert lag_world.reader.read_log("events") == Versioned(b"head", 0)
    lag_world.lag()
    lag_world.writer.create_page("events", "other", b"more")
    assert lag_world.reader.read_page("events", "other") == b"more"
    lag_world.lag()
    lag_world.writer.create_page("events", "third", b"more")
    assert lag_world.reader.page_ctime_ms("events", "third") is not None
    lag_world.lag()
    lag_world.writer.write_logs([LogWrite("events", b"next", 0, TxnWrite("ab", b"txn", None))])
    assert lag_world.reader.read_txns("events", "ab") == Versioned(b"txn", 0)


def test_log_made_a_moment_ago_can_be_watched_written_and_deleted(lag_world: LagWorld) -> None:
    for name in ("watched", "paged", "deleted"):
        lag_world.lag()
        lag_world.writer.create_log(name, b"head")
        assert knows_nothing_of(lag_world, lag_world.reader._head(name))
        match name:
            case "watched":
                lag_world.reader.watch_log(name, lambda _: None)
            case "paged":
                lag_world.reader.create_page(name, "page", b"extents")
            case "deleted":
                lag_world.reader.delete_log(name)


def test_bookie_its_cookie_and_its_record_of_a_moment_ago_are_known(lag_world: LagWorld) -> None:
    lag_world.lag()
    lag_world.writer.register_bookie(BookieServiceInfo("b1:3181"))
    assert lag_world.reader.writable_bookies() == {}, "a list may be old"
    assert lag_world.lags
    assert lag_world.reader.bookie_info("b1:3181") is not None
    lag_world.lag()
    lag_world.writer.write_cookie("b1:3181", b"cookie", None)
    assert lag_world.reader.read_cookie("b1:3181") == Versioned(b"cookie", 0)
    lag_world.lag()
    lag_world.writer.write_bookie_state("b1:3181", b"state", None)
    assert lag_world.reader.read_bookie_state("b1:3181") == Versioned(b"state", 0)


def test_write_that_is_refused_brings_the_server_up_to_date(lag_world: LagWorld) -> None:
    """The second read after a conflict relies on this."""
    ledger_id, made = lag_world.writer.create_ledger(a_ledger())
    lag_world.reader.sync()
    lag_world.lag()
    after = closed(lag_world.writer, ledger_id, made)
    assert lag_world.reader.read_ledger(ledger_id) == made
    with pytest.raises(MetadataConflictError):
        lag_world.reader.write_ledger(ledger_id, made.value, made.version)
    assert lag_world.reader.read_ledger(ledger_id) == after


def test_sync_shows_what_was_done_before_it(lag_world: LagWorld) -> None:
    lag_world.lag()
    lag_world.writer.create_log("events", b"head")
    assert lag_world.reader.list_logs() == []
    assert lag_world.lags
    lag_world.reader.sync()
    assert lag_world.reader.list_logs() == ["events"]
