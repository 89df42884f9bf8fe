# SPDX-License-Identifier: Apache-2.0
"""Several entry batches as one: end to end, or merged by entry id as a striped read needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bk_core.entries.batch import I64, EntryBatch
from bk_core.errors import InvalidArgumentError


def concat(batches: Sequence[EntryBatch]) -> EntryBatch:
    """See :meth:`EntryBatch.concat`."""
    batches = [batch for batch in batches if batch.count] or list(batches[:1])
    if not batches:
        return EntryBatch.from_list([])
    if len(batches) == 1:
        return batches[0]
    _check_same(batches)
    lengths = np.concatenate([batch.lengths for batch in batches])
    payload = memoryview(b"".join([batch.payload for batch in batches]))
    first = batches[0]
    if first.ledger_id < 0 and all(batch.ids is None for batch in batches):  # not numbered yet
        return EntryBatch(lengths=lengths, payload=payload, first_entry_id=first.first_entry_id)
    digests = None
    if all(batch.digests is not None for batch in batches):
        digests = np.concatenate([batch.digests for batch in batches if batch.digests is not None])
    known = all(batch.length_before >= 0 or batch.ledger_lengths is not None for batch in batches)
    return EntryBatch(
        lengths=lengths,
        payload=payload,
        ledger_id=first.ledger_id,
        first_entry_id=min(batch.first_entry_id for batch in batches),
        digests=digests,
        digest_type=first.digest_type,
        ids=_column(batches, EntryBatch.entry_ids),
        lac=max(batch.lac for batch in batches),
        lacs=_column(batches, EntryBatch.entry_lacs),
        length_before=first.length_before if known else -1,
        ledger_lengths=_column(batches, EntryBatch.cumulative_lengths) if known else None,
    ).compact()


def merge_by_id(batches: Sequence[EntryBatch]) -> EntryBatch:
    """See :meth:`EntryBatch.merge_by_id`."""
    joined = concat(batches)
    if joined.ids is None:
        return joined
    order = np.argsort(joined.ids, kind="stable")
    ids = joined.ids[order]
    once = np.ones(ids.size, dtype=np.bool_)
    once[1:] = ids[1:] != ids[:-1]
    return joined.select(order[once]).compact()


def _column(batches: Sequence[EntryBatch], of: Callable[[EntryBatch], Any]) -> I64:
    return np.concatenate([of(batch) for batch in batches])


def _check_same(batches: Sequence[EntryBatch]) -> None:
    ledgers = {batch.ledger_id for batch in batches}
    types = {batch.digest_type for batch in batches}
    if len(ledgers) > 1 or len(types) > 1:
        raise InvalidArgumentError(
            "batches of several ledgers or digest types cannot be joined", value=f"ledgers {ledgers}, digests {types}"
        )
