# SPDX-License-Identifier: Apache-2.0
"""Finds the nodes of a metadata store that cannot be read. It reads nodes of all kinds, one after the other (M6)."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bk_core.errors import MetadataCorruptError, NoSuchLogError
from bk_core.logs.store import LogStore, deleted_logs
from bk_core.metadata.port import Audit, MetadataStore
from bk_core.metadata.scan import scan_ledgers
from bk_core.metadata.unreadable import UnreadableNode


class Unreadable(NamedTuple):
    """The unreadable nodes. ``is_whole`` says whether the time was enough to read every node."""

    nodes: tuple[UnreadableNode, ...]
    is_whole: bool


def find_unreadable(store: MetadataStore, within_s: float) -> Unreadable:
    """Read all nodes, or stop after ``within_s`` seconds, and return the unreadable ones. Kinds with few nodes come
    first, and the records of ledgers last. Raises the errors of the store."""
    until = time.monotonic() + within_s
    store.sync()
    looked = Unreadable((), True)
    for _ in _each_node(store):
        if time.monotonic() > until:
            looked = Unreadable((), False)
            break
    return looked._replace(nodes=store.unreadable.nodes())


def _each_node(store: MetadataStore) -> Iterator[object]:
    """Read the nodes kind by kind, and yield after each read. The store records the nodes that it cannot read."""
    few: list[Callable[[], object]] = [
        *(store.writable_bookies, store.read_only_bookies, store.cookies, store.bookie_orders),
        *(store.underreplication_locks, store.lost_bookie_recovery_delay_s),
        *(store.current_auditor, store.current_upkeep_worker),
    ]
    for look in few:
        yield look()
    for audit in Audit:
        yield store.audit_time_ms(audit)
    yield deleted_logs(store)
    for name in store.list_logs():
        yield from _of_log(LogStore(store, name))
    yield from store.list_underreplicated()
    yield from scan_ledgers(store)


def _of_log(log: LogStore) -> Iterator[object]:
    """Read the head of a log, its unlinked records, its transaction records and its pages, and yield after each
    read."""
    with contextlib.suppress(NoSuchLogError, MetadataCorruptError):
        head = log.read().value
        with contextlib.suppress(MetadataCorruptError):
            yield log.unlinked()
        yield from log.all_transactions()
        pages = deque(page.name for page in head.pages)
        while pages:
            with contextlib.suppress(MetadataCorruptError):
                page = log.page(pages.popleft())
                pages.extend(each.name for each in page.pages)
                yield page
