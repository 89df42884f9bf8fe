# SPDX-License-Identifier: Apache-2.0
"""Lists a log's transaction records, forgets one, and lists what a vacuum would delete. Calls block."""

from __future__ import annotations

from collections.abc import Iterator

from bk_core.errors import MetadataConflictError, MetadataUnavailableError, Outcome
from bk_core.logs.ledgers import of_log
from bk_core.logs.machines.vacuum import Vacuumed
from bk_core.logs.model.head import LogTransactions
from bk_core.logs.model.paging import ledgers_listed
from bk_core.logs.model.unlinking import ledgers_kept, pages_kept
from bk_core.logs.store import LogStore

FORGET_ATTEMPTS_MAX = 10


def transactions(store: LogStore) -> Iterator[LogTransactions]:
    """The transaction records of all applications and streaming queries, in no order (N5)."""
    for key in store.store.list_txns(store.name):
        if (found := store.record(key)) is not None:
            yield found.value


def forget_transactions(store: LogStore, app_id: str) -> LogTransactions | None:
    """Delete the transaction record of an application or query; returns it, or None if there is none.

    A version that is published again afterwards may be in the log twice: then only the log's last 128 publishes are
    remembered. Raises MetadataConflictError if the log changes too fast, MetadataUnavailableError.
    """
    forgotten: LogTransactions | None = None
    for attempt in range(1, FORGET_ATTEMPTS_MAX + 1):
        head = store.read()  # read before the record: if that is used meanwhile, the multi fails
        found = store.transactions(app_id)
        if found is None:
            return forgotten
        try:
            store.store.delete_txns(store.name, {found.value.key: found.version}, head.version)
        except (MetadataConflictError, MetadataUnavailableError) as error:
            if attempt == FORGET_ATTEMPTS_MAX:
                raise
            if isinstance(error, MetadataUnavailableError) and error.outcome is Outcome.UNKNOWN:
                forgotten = found.value  # if it is gone at the next read, we deleted it
        else:
            return found.value
    raise AssertionError("unreachable")


def vacuum_candidates(store: LogStore, delete_delay_ms: int, txn_retention_ms: int) -> Vacuumed:
    """What :meth:`bk_core.logs.named_log.NamedLog.vacuum` would delete now with these delays. Deletes nothing."""
    now_ms = store.clock_ms()
    before_ms = now_ms - delete_delay_ms
    head = store.read(sync=True).value
    young = [record for record in store.unlinked() if record.made_ms >= before_ms]
    listed = store.with_pages(lambda pages: ledgers_listed(head, pages))
    kept = store.with_pages(lambda pages: ledgers_kept(head, young, pages))
    kept_pages = store.with_pages(lambda pages: pages_kept(head, young, pages))
    condemned = [each for each in head.condemned if each not in listed]
    orphans = [each for each in of_log(store.store, head.uuid, before_ms) if each not in kept]
    made = {page: store.store.page_ctime_ms(store.name, page) for page in store.store.list_pages(store.name)}
    pages = [page for page, at_ms in made.items() if at_ms is not None and at_ms < before_ms and page not in kept_pages]
    unused = [record.app_id for record in transactions(store) if record.last_used_ms < now_ms - txn_retention_ms]
    return Vacuumed(tuple(sorted({*condemned, *orphans})), (), tuple(pages), tuple(unused))
