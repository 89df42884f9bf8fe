# SPDX-License-Identifier: Apache-2.0
"""Reads the records of all ledgers in the order of their ids. It reads many at a time, and keeps few in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeAlias

from bk_core.errors import BookKeeperError, MetadataCorruptError, NoSuchLedgerError
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerId, LedgerMetadata, Versioned

READERS = 16
"""The number of threads that read records, because each read waits for its answer."""
PART = 1024
"""The number of ledger ids that the threads get together."""

Found: TypeAlias = Versioned[LedgerMetadata] | MetadataCorruptError


def scan_ledgers(store: MetadataStore) -> Iterator[tuple[LedgerId, Found]]:
    """Yield every ledger that exists during the whole scan, with its record, or with a MetadataCorruptError if the
    record cannot be read. The scan begins with a sync, so no record is older than the call. Raises the errors of the
    store."""
    for ledger_id, found in scan_all_there_is(store):
        if isinstance(found, BookKeeperError) and not isinstance(found, MetadataCorruptError):
            raise found
        yield ledger_id, found


def scan_all_there_is(
    store: MetadataStore, *, readers: int = READERS
) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | BookKeeperError]]:
    """Do the same as :func:`scan_ledgers`, but yield an error of the store in place of the record that it concerns, and
    continue. ``readers`` is the number of threads that read. If it is 0, the caller's thread reads the records one by
    one."""
    store.sync()
    with ThreadPoolExecutor(max(1, readers), thread_name_prefix="ledger-records") as pool:
        each = pool.map if readers else map
        for part in _parts(store.list_ledgers()):
            for ledger_id, found in zip(part, each(lambda one: _read(store, one), part), strict=True):
                if found is not None:
                    yield ledger_id, found


def _read(store: MetadataStore, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | BookKeeperError | None:
    try:
        return store.read_ledger(ledger_id)
    except NoSuchLedgerError:
        return None
    except BookKeeperError as error:
        return error


def _parts(ledger_ids: Iterator[LedgerId]) -> Iterator[Sequence[LedgerId]]:
    while part := list(islice(ledger_ids, PART)):
        yield part


def names(found: Found, bookie_id: str) -> bool:
    """Return whether the record names the bookie in any fragment. An unreadable record counts as naming it."""
    if isinstance(found, MetadataCorruptError):
        return True
    return any(bookie_id in fragment.ensemble for fragment in found.value.fragments)
