# SPDX-License-Identifier: Apache-2.0
"""Reads the records of all ledgers: many at a time, in the order of their ids, with little of it in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeAlias

from bk_core.errors import BookKeeperError, MetadataCorruptError, NoSuchLedgerError
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerId, LedgerMetadata, Versioned

READERS = 16
PART = 1024

Found: TypeAlias = Versioned[LedgerMetadata] | MetadataCorruptError


def scan_ledgers(store: MetadataStore) -> Iterator[tuple[LedgerId, Found]]:
    """Every ledger that there was all the time, with its record, or why that cannot be read; raises errors of the
    store. Behind a sync; a record may be as old as that."""
    for ledger_id, found in scan_all_there_is(store):
        if isinstance(found, BookKeeperError) and not isinstance(found, MetadataCorruptError):
            raise found
        yield ledger_id, found


def scan_all_there_is(
    store: MetadataStore, *, readers: int = READERS
) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | BookKeeperError]]:
    """As :func:`scan_ledgers`, but an error of the store about one record stands in its place and hides no other.
    ``readers`` are threads; 0: records are read one by one where the result is asked for."""
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
    """Whether the record names the bookie in any fragment. One that cannot be read may."""
    if isinstance(found, MetadataCorruptError):
        return True
    return any(bookie_id in fragment.ensemble for fragment in found.value.fragments)
