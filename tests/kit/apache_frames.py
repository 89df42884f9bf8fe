# SPDX-License-Identifier: Apache-2.0
"""Entries in Apache's own form, and frames of them as a bookie stores them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import numpy as np

from bk_core.entries import apache_frame
from bk_core.entries.apache import split_entries
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.entries.digest import Digester, entry_headers
from bk_core.errors import InvalidArgumentError


def entry_bytes(batch: EntryBatch, digester: Digester) -> list[bytes]:
    """Return each entry as Apache stores and sends it. Digests that the batch lacks are computed."""
    if batch.count == 0:
        return []
    kept = batch.digests is not None and batch.digest_type is digester.digest_type
    digests = batch.digests if kept and batch.digests is not None else digester.for_batch(batch)
    lacs = batch.lac if batch.lacs is None else batch.lacs
    headers = entry_headers(digester.ledger_id, batch.entry_ids(), lacs, batch.cumulative_lengths())
    if digests.shape[1]:
        headers = np.concatenate((headers, digests), axis=1)
    return list(map(add, headers.view(f"V{headers.shape[1]}").ravel().tolist(), batch.entry_views()))


def behind_heads(batch: EntryBatch) -> list[bytes]:
    """Return the payloads of a batch with the column ``heads``."""
    assert batch.heads is not None
    return [whole[head:] for whole, head in zip(batch.to_list(), batch.heads.tolist(), strict=True)]


def parse_entries(entries: Sequence[Bytes], digester: Digester) -> EntryBatch:
    """Make a batch of entries in Apache's layout, and verify all of them. IntegrityError names the first bad one."""
    lengths = np.fromiter(map(len, entries), dtype=np.uint32, count=len(entries))
    ends = np.cumsum(lengths, dtype=np.int64)
    return split_entries(memoryview(b"".join(entries)), ends - lengths, lengths, digester)


def encode_apache(ledger_id: int, entries: list[Bytes], *, session: int = 0) -> bytearray:
    """Make a frame of whole entries in Apache's layout, verbatim (APACHE_BYTES), with a digest type that the bookie
    does not know.

    Raises InvalidArgumentError for no entries, and for an entry that is shorter than its header, has a negative id or
    is of another ledger.
    """
    lengths = np.fromiter(map(len, entries), dtype=np.uint32, count=len(entries))
    if not entries or int(lengths.min()) < 32:
        raise InvalidArgumentError("an Apache entry has at least 32 bytes", value=f"ledger {ledger_id}")
    numbers = np.frombuffer(b"".join([entry[:32] for entry in entries]), dtype=">i8").reshape(-1, 4)
    ids = np.ascontiguousarray(numbers[:, 1], dtype="<i8")
    if bool((numbers[:, 0] != ledger_id).any()) or int(ids.min()) < 0:
        raise InvalidArgumentError("an Apache entry of another ledger, or with a negative id", value=f"{ledger_id}")
    return apache_frame.encode_apache(ledger_id, numbers.astype(np.int64), lengths, b"".join(entries), session=session)
