# SPDX-License-Identifier: Apache-2.0
"""Reads the heads of a topic's entries, which the broker and the producer wrote before each payload (docs/pulsar.md).

An entry is an optional head of the broker (0x0e02, u32 size, BrokerEntryMetadata), an optional checksum (0x0e01, u32
CRC32C of all that follows), u32 size, MessageMetadata, and the payload. In the ledger of a compacted topic the
message id precedes each entry: u32 size, MessageIdData, u32 size of the entry. Numbers are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bk_core.entries.batch import I64, U8, U32, EntryBatch
from bk_core.entries.digest import crc32c
from bk_core.entries.gf2 import CRC32C_TABLES
from bk_core.pulsar.messages.scan import Fields, Mask, Wanted, scan
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.transactions import Transactions, TxnId

BROKER_MAGIC, CHECKSUM_MAGIC = 0x0E02, 0x0E01
PRODUCER, SEQUENCE_ID, PUBLISH_TIME, PROPERTIES, PARTITION_KEY = 1, 2, 3, 4, 6
COMPRESSION, UNCOMPRESSED_SIZE, BATCH_SIZE, EVENT_TIME, ENCRYPTION_KEYS = 8, 9, 11, 12, 13
ENCRYPTION_ALGORITHM, ENCRYPTION_PARAM, SCHEMA_VERSION, KEY_IS_BASE64, ORDERING_KEY = 14, 15, 16, 17, 18
MARKER, TXN_LEAST, TXN_MOST, NULL_VALUE, UUID = 20, 22, 23, 25, 26
CHUNKS, CHUNKED_BYTES, CHUNK, NULL_KEY = 27, 28, 29, 30
_METADATA = Wanted(
    numbers=frozenset(
        {
            SEQUENCE_ID,
            PUBLISH_TIME,
            COMPRESSION,
            UNCOMPRESSED_SIZE,
            BATCH_SIZE,
            EVENT_TIME,
            KEY_IS_BASE64,
            MARKER,
            TXN_LEAST,
            TXN_MOST,
            NULL_VALUE,
            CHUNKS,
            CHUNKED_BYTES,
            CHUNK,
            NULL_KEY,
        }
    ),
    spans=frozenset(
        {PRODUCER, PARTITION_KEY, ENCRYPTION_ALGORITHM, ENCRYPTION_PARAM, SCHEMA_VERSION, ORDERING_KEY, UUID}
    ),
    repeated=frozenset({PROPERTIES, ENCRYPTION_KEYS}),
)
_CHECKSUM_HEAD = 6
"""The number of bytes before those that the checksum covers: the magic number and the checksum."""
_ZERO_HEAD_CRC = crc32c(CHECKSUM_MAGIC.to_bytes(2, "big") + bytes(4))
_MESSAGE_ID = Wanted(numbers=frozenset({1, 2, 3}), spans=frozenset())


@dataclass(slots=True)
class Heads:
    """The heads of the entries in a batch. Row k belongs to entry k of the batch.

    ``ledger_ids`` and ``entry_ids`` are the positions of the entries in the topic; in a compacted ledger they differ
    from the positions in the ledger that was read. ``begin``, ``payload_begin`` and ``payload_end`` are positions in
    ``data``. ``problems`` has, by row, the reason why an entry cannot be read. ``failed_checksum`` has the rows with
    a wrong checksum.
    """

    data: U8
    ledger_ids: I64
    entry_ids: I64
    begin: I64
    payload_begin: I64
    payload_end: I64
    metadata: Fields
    problems: dict[int, str] = field(default_factory=dict)
    failed_checksum: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return int(self.entry_ids.size)

    def position(self, row: int) -> EntryPosition:
        return EntryPosition(int(self.ledger_ids[row]), int(self.entry_ids[row]))

    @property
    def is_good(self) -> Mask:
        """The rows without a problem."""
        good = np.ones(len(self), dtype=np.bool_)
        good[list(self.problems)] = False
        return good

    @property
    def is_marker(self) -> Mask:
        return self.metadata.has(MARKER)

    @property
    def has_chunks(self) -> bool:
        """Whether an entry is a chunk of a message."""
        return bool((self.metadata.number(CHUNKS) > 1).any())

    @property
    def in_transaction(self) -> Mask:
        """The rows that belong to a transaction, which are messages and markers."""
        return self.metadata.has(TXN_MOST) & self.metadata.has(TXN_LEAST)

    def txn(self, row: int) -> TxnId:
        return TxnId(int(self.metadata.number(TXN_MOST)[row]), int(self.metadata.number(TXN_LEAST)[row]))

    def note(self, transactions: Transactions) -> None:
        """Add the messages and the markers of transactions in these entries to ``transactions``, in order."""
        is_marker, kinds = self.is_marker, self.metadata.number(MARKER)
        for row in np.flatnonzero(self.in_transaction & self.is_good).tolist():
            if is_marker[row]:
                transactions.marker(int(kinds[row]), self.txn(row))
            else:
                transactions.message(self.txn(row), self.position(row))


def read_heads(batch: EntryBatch, *, compacted: bool = False, check: bool = True) -> Heads:
    """Return the heads of the entries in ``batch``. ``compacted`` says that ``batch`` is from a compacted ledger. With
    ``check`` False the checksums are not verified. An entry that cannot be read raises no error, but is in
    ``problems``."""
    data = np.frombuffer(batch.payload, dtype=np.uint8) if batch.payload_bytes else np.zeros(1, dtype=np.uint8)
    offsets = batch.offsets()
    begin, end = offsets[:-1].copy(), offsets[1:].copy()
    if batch.heads is not None:
        begin += batch.heads
    found = _Found(data, {})
    ledger_ids, entry_ids = np.full(begin.size, batch.ledger_id, dtype=np.int64), batch.entry_ids()
    if compacted:
        begin, end, ledger_ids, entry_ids = found.original_ids(begin, end)
    at = found.behind_broker_head(begin, end)
    has_checksum = found.u16(at, end) == CHECKSUM_MAGIC
    stored = found.u32(at + 2, end, has_checksum, "its checksum is cut off")
    covered = np.where(has_checksum, at + 6, at)
    size = found.u32(covered, end, None, "the size of its metadata is cut off")
    payload = covered + 4 + size
    found.complain(payload > end, "its metadata are cut off")
    good = found.good(begin.size)
    payload = np.where(good, np.minimum(payload, end), end)
    metadata = scan(data, np.where(good, covered + 4, 0), np.where(good, payload, 0), _METADATA)
    found.complain(metadata.bad, "its metadata cannot be read")
    found.complain(~metadata.has(PUBLISH_TIME), "its metadata have no publish time")
    heads = Heads(data, ledger_ids, entry_ids, begin, payload, end, metadata, found.problems)
    if check:
        rows = np.flatnonzero(has_checksum & found.good(begin.size))
        _check(heads, rows, covered, stored, None if compacted else batch.payload_crcs)
    return heads


def _check(heads: Heads, rows: I64, covered: I64, stored: I64, known: U32 | None) -> None:
    """Verify the checksums of these rows, and note the rows whose checksum is wrong. ``known`` has the CRC32C of each
    whole entry, if the check of the entries' digests computed it."""
    begin, end = covered[rows], heads.payload_end[rows]
    if known is not None and rows.size and bool((begin == heads.begin[rows] + _CHECKSUM_HEAD).all()):
        computed = _without_heads(known[rows], stored[rows], (end - begin).astype(np.uint32)).astype(np.int64)
    else:
        pieces = map(heads.data.data.__getitem__, map(slice, begin.tolist(), end.tolist()))
        computed = np.fromiter(map(crc32c, pieces), dtype=np.int64, count=rows.size)
    for row in rows[computed != stored[rows]].tolist():
        heads.failed_checksum.add(row)
        heads.problems.setdefault(row, "the checksum that its producer wrote does not match its bytes")


def _without_heads(crcs: U32, stored: I64, lengths: U32) -> U32:
    """Return the CRC32C of the last ``lengths`` bytes of each entry, which begins with the magic number and the stored
    checksum before these bytes. ``crcs`` are the CRC32Cs of the whole entries. No byte of them is read again, because
    crc(A ‖ B) = shift(crc(A), |B|) ⊕ crc(B)."""
    heads = CRC32C_TABLES.behind(_ZERO_HEAD_CRC, stored.astype(">u4").view(np.uint8).reshape(-1, 4))
    return crcs ^ CRC32C_TABLES.shift(heads, lengths)


@dataclass(slots=True)
class _Found:
    """Reads numbers of many entries together, and notes the first problem of each entry."""

    data: U8
    problems: dict[int, str]

    def complain(self, which: Mask, why: str) -> None:
        for row in np.flatnonzero(which).tolist():
            self.problems.setdefault(row, why)

    def good(self, count: int) -> Mask:
        good = np.ones(count, dtype=np.bool_)
        good[list(self.problems)] = False
        return good

    def u16(self, at: I64, end: I64) -> I64:
        """Return the u16 at each position. It is −1 if fewer than two bytes are left before ``end``."""
        return np.where(at + 2 <= end, self._numbers(at, 2), -1)

    def u32(self, at: I64, end: I64, only: Mask | None, why: str) -> I64:
        """Return the u32 at each position. It is 0 if fewer than four bytes are left before ``end``. Such a row gets
        the problem ``why`` if ``only`` marks the row or is None."""
        cut = at + 4 > end
        self.complain(cut if only is None else cut & only, why)
        return np.where(cut, 0, self._numbers(at, 4))

    def _numbers(self, at: I64, size: int) -> I64:
        """Return the big-endian number of ``size`` bytes at each position. It may be any number where fewer bytes are
        left."""
        data = self.data if self.data.size >= size else np.append(self.data, np.zeros(size, dtype=np.uint8))
        last = data.size - size
        rows = np.ndarray((last + 1,), f"V{size}", data, 0, (1,))[np.minimum(at, last)]
        return rows.view(f">u{size}").astype(np.int64)

    def behind_broker_head(self, begin: I64, end: I64) -> I64:
        has_head = self.u16(begin, end) == BROKER_MAGIC
        size = self.u32(begin + 2, end, has_head, "the size of the broker's head is cut off")
        at = np.where(has_head, begin + 6 + size, begin)
        self.complain(at > end, "the broker's head is cut off")
        return np.minimum(at, end)

    def original_ids(self, begin: I64, end: I64) -> tuple[I64, I64, I64, I64]:
        """Return the begin and the end of each entry in a compacted ledger, and its ledger id and entry id in the
        topic."""
        size = self.u32(begin, end, None, "it has no message id")
        id_begin, id_end = begin + 4, np.minimum(begin + 4 + size, end)
        self.complain(begin + 4 + size > end, "its message id is cut off")
        length = self.u32(id_end, end, None, "its size is cut off")
        first = np.minimum(id_end + 4, end)
        self.complain(first + length > end, "it is cut off")
        good = self.good(begin.size)
        ids = scan(self.data, np.where(good, id_begin, 0), np.where(good, id_end, 0), _MESSAGE_ID)
        self.complain(ids.bad | (ids.number(1) < 0) | (ids.number(2) < 0), "its message id cannot be read")
        return first, np.minimum(first + length, end), ids.number(1), ids.number(2)
