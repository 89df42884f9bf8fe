# SPDX-License-Identifier: Apache-2.0
"""The blocking client, over bookies in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from bk_core.blocking import BookKeeper, LedgerWriter, connect
from bk_core.client.config import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    ForkedHandleError,
    InvalidArgumentError,
    LedgerFencedError,
    MetadataUnavailableError,
    Outcome,
    WindowFullError,
)
from tests.kit.canaries import PASSWORD
from tests.kit.memory_cluster import blocking_cluster, hold, release
from tests.kit.waiting import in_thread


@pytest.fixture
def bookkeeper() -> Iterator[BookKeeper]:
    with blocking_cluster() as (client, _):
        yield client


def test_the_example_of_the_design_works(bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger(password=PASSWORD) as ledger:
        assert ledger.append(b"first") == 0
        assert ledger.append_nowait(b"second") == 1
        column = pa.array([b"third", b"fourth"])
        last = ledger.append_batch(EntryBatch.from_arrow(column))
        ledger.wait_confirmed(last)
        assert (last, ledger.last_add_confirmed) == (3, 3)
    reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD)
    values = [value for batch in reader.read(0, reader.last_add_confirmed) for value in batch.to_list()]
    assert values == [b"first", b"second", b"third", b"fourth"]
    assert [v for batch in reader.tail(from_entry=2) for v in batch.to_list()] == [b"third", b"fourth"]
    bookkeeper.delete_ledger(ledger.ledger_id)
    assert bookkeeper.list_ledgers() == []


def test_a_log_is_led_read_and_taken_over(bookkeeper: BookKeeper) -> None:
    log = bookkeeper.log("events", password=PASSWORD)
    leader = log.lead()
    assert [leader.append(b"a"), leader.append(b"b")] == [0, 1]
    with bookkeeper.log("events", password=PASSWORD).lead() as successor:
        assert successor.append(b"c") == 2
        with pytest.raises(BookKeeperError):
            leader.append(b"late")
    values = [v for _, batch in log.read(0, 3) for v in batch.to_list()]
    assert values == [b"a", b"b", b"c"]


def test_an_iterator_that_is_dropped_early_leaves_nothing_behind(bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger() as ledger:
        ledger.append_batch(EntryBatch.from_list([b"x" * 1000] * 5000))
    reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
    batches = reader.read(0, reader.last_add_confirmed)
    next(batches)
    batches.close()
    assert sum(len(b) for b in reader.read(0, reader.last_add_confirmed)) == 5000


def fill(ledger: LedgerWriter, payload: bytes) -> int:
    """Append until the window is full; how many were accepted."""
    for accepted in range(1_000):
        try:
            ledger.append_nowait(payload)
        except WindowFullError:
            return accepted
    raise AssertionError("the window has no bound")


def test_a_full_window_refuses_without_queueing_and_opens_again() -> None:
    with blocking_cluster(3, ClientConfig(window_bytes_max=1 << 20, add_timeout_ms=60_000)) as (bookkeeper, cluster):
        ledger = bookkeeper.create_ledger()
        hold(cluster)
        accepted = fill(ledger, b"x" * 10_000)
        assert 100 <= accepted <= 105
        bookkeeper._thread.loop.call_soon_threadsafe(release, cluster)
        ledger.flush()
        assert ledger.append(b"again") == accepted
        ledger.close()


@pytest.mark.parametrize("wrong", ["text", 7, None, memoryview(bytearray(8)).cast("I")])
def test_what_is_not_bytes_is_refused_and_leaves_the_entries_around_it(bookkeeper: BookKeeper, wrong: Any) -> None:
    with bookkeeper.create_ledger() as ledger:
        ledger.append_nowait(b"before")
        for call in (ledger.append, ledger.append_nowait):
            with pytest.raises(InvalidArgumentError):
                call(wrong)
        assert ledger.append(b"after") == 1
    reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
    assert [v for batch in reader.read(0, 1) for v in batch.to_list()] == [b"before", b"after"]


def test_many_threads_append_to_one_ledger(bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger() as ledger:
        appending = [in_thread(lambda: [ledger.append(b"x") for _ in range(50)]) for _ in range(8)]
        ids = [entry_id for each in appending for entry_id in each.result()]
    assert sorted(ids) == list(range(400))


def test_the_fenced_writer_is_told_through_every_call(bookkeeper: BookKeeper) -> None:
    ledger = bookkeeper.create_ledger()
    ledger.append(b"x")
    bookkeeper.open_ledger(ledger.ledger_id, recover=True)
    with pytest.raises(LedgerFencedError):
        ledger.append(b"y")
    for call in (lambda: ledger.append_nowait(b"z"), ledger.close, lambda: ledger.wait_confirmed(1)):
        with pytest.raises(LedgerFencedError):
            call()


@pytest.mark.rule("K4")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 on warns of exactly what is tested
def test_a_handle_used_after_a_fork_says_so(bookkeeper: BookKeeper) -> None:
    ledger = bookkeeper.create_ledger()
    pid = os.fork()
    if pid == 0:  # the child must not return into pytest
        code = 1
        try:
            try:
                ledger.append_nowait(b"x")
            except ForkedHandleError:
                try:
                    bookkeeper.list_ledgers()
                except ForkedHandleError:
                    code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ledger.append(b"the parent goes on")
    ledger.close()


@pytest.mark.rule("K4")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # as above
def test_a_forked_child_leaves_the_blocks_of_its_parent_by_its_own_exception(bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger() as ledger, bookkeeper.open_ledger(ledger.ledger_id, recover=False) as reader:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with bookkeeper, ledger, reader:
                    raise SystemExit(7)
            except SystemExit as leaving:
                code = int(str(leaving.code))
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert ledger.append(b"the parent goes on") == 0


def test_closing_the_client_ends_who_waits_for_an_append() -> None:
    with blocking_cluster(3, ClientConfig(add_timeout_ms=60_000)) as (bookkeeper, cluster):
        ledger = bookkeeper.create_ledger()
        hold(cluster)
        waiting = in_thread(ledger.append, b"never confirmed")
        time.sleep(0.05)
        bookkeeper.close()
        error = waiting.exception(5)
        assert isinstance(error, ClientClosedError)
        assert error.outcome is Outcome.UNKNOWN


def test_a_closed_client_says_so(bookkeeper: BookKeeper) -> None:
    bookkeeper.close()
    with pytest.raises(ClientClosedError) as raised:
        bookkeeper.list_ledgers()
    assert raised.value.outcome is Outcome.NOT_APPLIED
    assert not bookkeeper.is_usable


@pytest.mark.parametrize(
    "arguments", [{"password": "text"}, {"password": 5}, {"digest_type": "CRC32"}, {"ensemble_size": "3"}]
)
def test_arguments_of_another_type_are_refused_before_a_ledger_is_made(
    bookkeeper: BookKeeper, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"text|int|5|CRC32|3"):
        bookkeeper.create_ledger(**arguments)
    assert bookkeeper.list_ledgers() == []


def test_text_is_refused_and_the_ledger_takes_bytes_as_before(bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger() as ledger:
        with pytest.raises(InvalidArgumentError, match="encode"):
            ledger.append("text")
        assert ledger.append(b"bytes") == 0


@pytest.mark.rule("E1")
def test_an_unreachable_metadata_service_is_reported_within_ten_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:1\b"):
        connect("zk://127.0.0.1:1/ledgers", config=ClientConfig(metadata_timeout_s=1.0))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("uri", ["", "http://x/ledgers", "zk://h:port/ledgers"])
def test_a_wrong_uri_is_refused_before_anything_is_tried(uri: str) -> None:
    with pytest.raises(InvalidArgumentError):
        connect(uri)
