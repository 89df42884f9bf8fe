# SPDX-License-Identifier: Apache-2.0
"""Reads some columns of entries of codec ``arrow``. It first reads the entries' directories, then these columns.

A bookie cuts both out of its entries as ranges of bytes (:mod:`bk_core.entries.parts`). A directory holds bounds of the
values of each column, so a reader that looks for certain rows reads only the directory of most entries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

import numpy as np

from bk_core.entries.arrow_directory import Directory
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch, ColumnsWanted, Parts, Regions
from bk_core.errors import EntryUnreadableError, IntegrityError, NoSuchEntryError
from bk_core.model import DigestType, EntryId

ENTRY_BYTES_MIN = 32 << 10
"""The minimum size, in bytes, of entries whose columns are read apart. Smaller entries are read whole, because a second
request would cost as much as the bytes of the other columns."""
WINDOW_BYTES = 16 << 20
"""The total size, in bytes, of the entries whose directories one request reads. Then their columns are read."""
GAP_MAX = 4
"""The maximum number of unwanted entries that one request reads between two wanted entries. A second request would cost
more than reading these entries."""


Read = Callable[[EntryId, EntryId, Parts], AsyncGenerator[EntryBatch, None]]
"""A function that reads the given parts of the entries from the first id to the last, in order."""


async def read_columns(
    read: Read, first: EntryId, last: EntryId, wanted: ColumnsWanted
) -> AsyncGenerator[ColumnBatch, None]:
    """Read the wanted columns of the entries ``first`` to ``last``, in order. Entries whose directory shows that they
    have no wanted row are left out. Raises the errors of ``read``, and IntegrityError for an entry without a
    directory."""
    directories: list[Directory | None] = []
    heads = wanted.heads
    async with aclosing(read(first, last, heads)) as batches:
        async for batch in batches:
            for entry_id, view in zip(batch.entry_ids().tolist(), batch.entry_views(), strict=True):
                directory = heads.directory(entry_id, view)
                directories.append(directory if wanted.may_have(directory) else None)
            if not wanted.places:
                yield _kept(directories[-len(batch) :], batch)
    if not wanted.places:
        return
    for begin, end in _runs([directory is not None for directory in directories]):
        regions = Regions(first + begin, directories[begin:end], wanted.places)
        async with aclosing(read(first + begin, first + end - 1, regions)) as parts:
            async for batch in parts:
                at = batch.first_entry_id - first
                yield _kept(directories[at : at + len(batch)], batch)


async def columns_or_entries(
    parts: Read,
    whole: Callable[[EntryId, EntryId], AsyncGenerator[EntryBatch, None]],
    wanted: ColumnsWanted,
    first: EntryId,
    last: EntryId,
) -> AsyncGenerator[EntryBatch | ColumnBatch, None]:
    """Read the same entries as :func:`read_columns`. If the parts of an entry cannot be read, read this entry and all
    later entries whole."""
    with suppress(EntryUnreadableError, NoSuchEntryError, IntegrityError):
        async with aclosing(read_columns(parts, first, last, wanted)) as columns:
            async for found in columns:
                yield found
                first = found.parts.last_entry_id + 1
        return
    async with aclosing(whole(first, last)) as batches:
        async for batch in batches:
            yield batch


def if_it_pays(wanted: ColumnsWanted | None, entry_bytes: int, digest_type: DigestType | None) -> ColumnsWanted | None:
    """Return ``wanted``, or None if whole entries should be read. They should be read whole if entries of about
    ``entry_bytes`` are too small for parts to save anything, or if the ledger's digest type cannot verify parts."""
    return wanted if entry_bytes >= ENTRY_BYTES_MIN and digest_type is not None and digest_type.has_parts else None


def _kept(directories: Sequence[Directory | None], batch: EntryBatch) -> ColumnBatch:
    kept = [directory for directory in directories if directory is not None]
    if len(kept) == len(batch):
        return ColumnBatch(kept, batch)
    at = [k for k, directory in enumerate(directories) if directory is not None]
    return ColumnBatch(kept, batch.select(np.array(at, dtype=np.int64)))


def _runs(kept: Sequence[bool]) -> list[tuple[int, int]]:
    """Return runs (begin, end) of positions that cover every kept position. Between two kept positions of a run there
    are at most GAP_MAX others."""
    found = list[tuple[int, int]]()
    for place, is_kept in enumerate(kept):
        if not is_kept:
            continue
        if found and place - found[-1][1] <= GAP_MAX:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found
