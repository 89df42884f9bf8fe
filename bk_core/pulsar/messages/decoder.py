# SPDX-License-Identifier: Apache-2.0
"""Makes messages from entries. It decrypts payloads, joins chunks, decompresses, and finds the messages of batches.

Bytes are not copied, except those of entries that must be decompressed, decrypted or joined. Their payloads are
appended to the entries' bytes, in one buffer. Columns have the position in this buffer of each value, key and property.
Python code runs once for such an entry and once for each batch, but not for each message, except in batches that are
unusual or have large messages (:mod:`bk_core.pulsar.messages.many_batches`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bk_core.entries.batch import I64, U8
from bk_core.errors import (
    CorruptMessageError,
    MessageChecksumError,
    MessageEncryptedError,
    TopicError,
    UnsupportedTopicError,
)
from bk_core.pulsar.messages import batches, heads, many_batches
from bk_core.pulsar.messages.chunks import Bytes, Chunk, Chunks, TooManyChunksError
from bk_core.pulsar.messages.compression import UNCOMPRESSED_BYTES_MAX, CompressionError, decompressed
from bk_core.pulsar.messages.encryption import DecryptionError, Decryptor, no_key
from bk_core.pulsar.messages.heads import Heads
from bk_core.pulsar.messages.scan import Fields, Mask, Wanted, scan
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.transactions import ABORT, COMMIT

MARKERS = frozenset({10, 11, 12, 13, 20, COMMIT, ABORT})
"""The known types of markers, which are those of replicated subscriptions and of transactions."""
BYTES_AT_ONCE = 32 << 20
"""The approximate number of bytes of messages up to which entries are unpacked together."""
COLUMN_BYTES = 64
"""The number of bytes that are added for each message of a batch when the size of a part is estimated. It is about a
fifth of the size of the message's columns."""
_KEY_VALUE = Wanted(numbers=frozenset(), spans=frozenset({1, 2}))

OnCorrupt = Literal["fail", "skip"]
OnEncrypted = Literal["fail", "raw"]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """The options of :class:`MessageDecoder`.

    ``corrupt`` says what to do with an entry that is not a message: ``fail`` raises an error, ``skip`` leaves the entry
    out and reports it. ``encrypted`` says what to do with an encrypted message without its key: ``fail`` raises an
    error, ``raw`` returns the encrypted bytes, a batch as one message. ``message_bytes_max`` limits the size of a
    message or a batch after decompression.
    """

    corrupt: OnCorrupt = "fail"
    encrypted: OnEncrypted = "fail"
    message_bytes_max: int = UNCOMPRESSED_BYTES_MAX
    check_checksums: bool = True
    decryptor: Decryptor | None = None


@dataclass(slots=True)
class Columns:
    """Messages in columns. ``entry`` has the row of each message in the heads. A column of bytes has, for each message,
    a position in the buffer and a length; the length −1 means null. ``properties`` has, for each property, the index of
    its message, a position and a length."""

    entry: I64
    batch_index: I64
    batch_size: I64
    event_time: I64
    sequence_id: I64
    value: tuple[I64, I64]
    key: tuple[I64, I64]
    key_is_base64: Mask
    ordering_key: tuple[I64, I64]
    properties: tuple[I64, I64, I64]

    def __len__(self) -> int:
        return int(self.entry.size)

    def take(self, at: I64) -> Columns:
        """Return the messages at these indices. No index may occur twice."""
        place = np.full(len(self), -1, dtype=np.int64)
        place[at] = np.arange(at.size)
        message, begin, length = self.properties
        moved = place[message]
        order = np.argsort(moved, kind="stable")
        order = order[moved[order] >= 0]
        return Columns(
            self.entry[at],
            self.batch_index[at],
            self.batch_size[at],
            self.event_time[at],
            self.sequence_id[at],
            (self.value[0][at], self.value[1][at]),
            (self.key[0][at], self.key[1][at]),
            self.key_is_base64[at],
            (self.ordering_key[0][at], self.ordering_key[1][at]),
            (moved[order], begin[order], length[order]),
        )


@dataclass(slots=True)
class Messages:
    """The messages of some entries, in order. ``first_chunks`` has the position of the first chunk of each chunked
    message, by the row of the heads."""

    heads: Heads
    data: U8
    columns: Columns
    first_chunks: dict[int, EntryPosition]

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(slots=True)
class _Bodies:
    """The begin and the end in the buffer of each row's unpacked payload. ``there`` marks the rows that give a
    message."""

    heads: Heads
    begin: I64
    end: I64
    there: Mask
    is_batch: Mask
    pieces: list[Bytes] = field(default_factory=list)
    size: int = 0

    def put(self, row: int, body: Bytes) -> None:
        """Add a body to the buffer, and make it the body of this row."""
        self.begin[row] = self.heads.data.size + self.size
        self.size += len(body)
        self.end[row] = self.heads.data.size + self.size
        self.pieces.append(body)

    def buffer(self) -> U8:
        """Return the bytes of the entries, followed by the bodies that :meth:`put` has added."""
        if not self.pieces:
            return self.heads.data
        return np.frombuffer(b"".join([self.heads.data.data, *self.pieces]), dtype=np.uint8)


class MessageDecoder:
    """Makes the messages of one topic, or of one partition, from its entries in order.

    It keeps the chunks of messages whose last chunk has not come yet. With ``corrupt="skip"``, ``reports`` has the
    errors of the entries that were left out; the caller removes them.
    """

    def __init__(self, topic: str, options: DecodeOptions | None = None) -> None:
        self.topic, self.options = topic, options or DecodeOptions()
        self.reports: list[TopicError] = []
        self._chunks = Chunks(self.options.message_bytes_max)
        self._looked_for = set[bytes]()

    def messages(self, found: Heads, keep: Mask | None = None) -> Iterator[Messages]:
        """Yield the messages of the rows that ``keep`` marks, or of all rows, in parts. Markers give no message. Raises
        MessageEncryptedError and, with ``corrupt="fail"``, CorruptMessageError, MessageChecksumError and
        UnsupportedTopicError."""
        wanted = np.ones(len(found), dtype=np.bool_) if keep is None else keep.copy()
        for row in sorted(found.problems):
            if wanted[row]:
                wanted[row] = False
                kind = MessageChecksumError if row in found.failed_checksum else CorruptMessageError
                self._refuse(found, row, kind, found.problems[row])
        self._check_markers(found, wanted)
        wanted &= ~found.is_marker
        for part in _parts(found, np.flatnonzero(wanted)):
            yield self._part(found, part)

    def missing(self, found: Heads) -> set[bytes]:
        """Return the uuids of the chunked messages with a chunk in these entries whose first chunk was neither in these
        entries nor in earlier entries. A uuid is returned only once, because the caller then looks back for its
        chunks."""
        begun, missing = set[bytes](), set[bytes]()
        numbers = found.metadata.number(heads.CHUNK)
        for row in np.flatnonzero((found.metadata.number(heads.CHUNKS) > 1) & found.is_good).tolist():
            uuid = _bytes(found, heads.UUID, row)
            if numbers[row] == 0:
                begun.add(uuid)
            elif uuid not in begun and uuid not in self._looked_for and not self._chunks.has_begun(uuid):
                missing.add(uuid)
        self._looked_for |= missing
        return missing

    def chunks_of(self, found: Heads, uuids: Container[bytes]) -> tuple[Mask, set[bytes]]:
        """Return a mask of the rows that are chunks of these messages, and the uuids of the messages whose first chunk
        is in one of these rows."""
        wanted, first = np.zeros(len(found), dtype=np.bool_), set[bytes]()
        numbers = found.metadata.number(heads.CHUNK)
        for row in np.flatnonzero((found.metadata.number(heads.CHUNKS) > 1) & found.is_good).tolist():
            uuid = _bytes(found, heads.UUID, row)
            if uuid in uuids:
                wanted[row] = True
                if numbers[row] == 0:
                    first.add(uuid)
        return wanted, first

    def _check_markers(self, found: Heads, wanted: Mask) -> None:
        kinds = found.metadata.number(heads.MARKER)
        unknown = found.is_marker & wanted & ~np.isin(kinds, list(MARKERS))
        for row in np.flatnonzero(unknown).tolist():
            self._refuse(found, row, UnsupportedTopicError, f"it is a marker of an unknown type: {kinds[row]}")

    def _refuse(self, found: Heads, row: int, kind: type[TopicError], why: str) -> None:
        """Make the error of a row that cannot be read. Raise the error, or add it to ``reports``."""
        remedy = "compare it with what a Pulsar consumer says, or let corrupt entries be skipped"
        if issubclass(kind, MessageEncryptedError):
            remedy = "give the private key of one of these, or read encrypted messages raw"
        where = f"entry {found.position(row)} of {self.topic}"
        self.report(kind(f"{where} cannot be read as a message", value=why, remedy=remedy))

    def report(self, error: TopicError) -> None:
        """Raise an error of an entry, or add it to ``reports``, as the option ``corrupt`` says."""
        if self.options.corrupt == "fail" or isinstance(error, MessageEncryptedError):
            raise error
        self.reports.append(error)

    def _part(self, found: Heads, rows: I64) -> Messages:
        bodies = _Bodies(
            found,
            found.payload_begin.copy(),
            found.payload_end.copy(),
            np.zeros(len(found), dtype=np.bool_),
            found.metadata.has(heads.BATCH_SIZE).copy(),
        )
        bodies.there[rows] = True
        first_chunks: dict[int, EntryPosition] = {}
        for row in rows[_is_packed(found)[rows]].tolist():
            self._unpack(bodies, row, first_chunks)
        data = bodies.buffer()
        walked = self._walk(bodies, data, rows)
        plain = rows[bodies.there[rows] & ~bodies.is_batch[rows]]
        columns = _of_plain(found, bodies, plain)
        batched = rows[bodies.there[rows] & bodies.is_batch[rows]]
        if batched.size:
            inner = self._of_batches(found, data, batched, walked)
            columns = _joined(columns, inner) if len(columns) else inner
        return Messages(found, data, columns, first_chunks)

    def _unpack(self, bodies: _Bodies, row: int, first_chunks: dict[int, EntryPosition]) -> None:
        """Decrypt, join and decompress the body of a row. Remove the mark ``there`` from a row that gives no
        message."""
        found = bodies.heads
        body: Bytes | None = found.data.data[int(bodies.begin[row]) : int(bodies.end[row])]
        metadata = found.metadata
        try:
            if _has_keys(found)[row]:
                body, is_raw = self._decrypted(found, row, body)
                if is_raw:
                    bodies.is_batch[row] = False
                    return
            if metadata.number(heads.CHUNKS)[row] > 1:
                body = self._joined_chunks(found, row, body, first_chunks)
            if body is None:
                bodies.there[row] = False
                return
            kind, size = (
                int(metadata.number(heads.COMPRESSION)[row]),
                int(metadata.number(heads.UNCOMPRESSED_SIZE)[row]),
            )
            bodies.put(row, decompressed(kind, body, size, self.options.message_bytes_max))
        except DecryptionError as error:
            self._refuse(found, row, MessageEncryptedError if error.no_key else CorruptMessageError, str(error))
            bodies.there[row] = False
        except (CompressionError, TooManyChunksError) as error:
            is_unknown = isinstance(error, CompressionError) and error.is_unknown
            self._refuse(found, row, UnsupportedTopicError if is_unknown else CorruptMessageError, str(error))
            bodies.there[row] = False

    def _decrypted(self, found: Heads, row: int, body: Bytes | None) -> tuple[Bytes, bool]:
        """Return the decrypted body and False. If no key fits and ``encrypted`` is ``raw``, return the body unchanged,
        and True."""
        assert body is not None
        keys = _keys(found, row)
        decryptor = self.options.decryptor
        try:
            if decryptor is None:
                raise no_key("no private key was given")
            return decryptor.decrypted(body, keys, _bytes(found, heads.ENCRYPTION_PARAM, row)), False
        except DecryptionError as error:
            if error.no_key and self.options.encrypted == "raw":
                return body, True
            if error.no_key:
                named = ", ".join(sorted(name.decode("utf-8", "replace") for name in keys))
                raise no_key(f"it is encrypted for {named or 'nobody'}, and {error}") from error
            raise

    def _joined_chunks(
        self, found: Heads, row: int, body: Bytes | None, first_chunks: dict[int, EntryPosition]
    ) -> Bytes | None:
        assert body is not None
        metadata = found.metadata
        joined = self._chunks.add(
            Chunk(
                _bytes(found, heads.UUID, row),
                int(metadata.number(heads.CHUNK)[row]),
                int(metadata.number(heads.CHUNKS)[row]),
                int(metadata.number(heads.CHUNKED_BYTES)[row]),
                body,
                found.position(row),
            )
        )
        if joined is None:
            return None
        first_chunks[row] = joined[1]
        return joined[0]

    def _walk(self, bodies: _Bodies, data: U8, rows: I64) -> list[tuple[I64, I64, I64]]:
        """Return, for each batch, the begins and the ends of its messages' metadata, and the sizes of the payloads.
        Remove the mark ``there`` from a row that is not a valid batch."""
        found, walked = bodies.heads, list[tuple[I64, I64, I64]]()
        rows = rows[bodies.there[rows] & bodies.is_batch[rows]]
        begins, ends, counts = bodies.begin[rows], bodies.end[rows], found.metadata.number(heads.BATCH_SIZE)[rows]
        at_once = many_batches.find(data, begins, ends, counts)
        columns = at_once.metadata_begin, at_once.metadata_end, at_once.payload_bytes
        for k, row in enumerate(rows.tolist()):
            if at_once.there[k]:
                here = slice(at_once.first[k], at_once.first[k] + counts[k])
                walked.append((columns[0][here], columns[1][here], columns[2][here]))
                continue
            try:
                walked.append(batches.walk(data.data, int(begins[k]), int(ends[k]), int(counts[k])))
            except ValueError as error:
                self._refuse(found, row, CorruptMessageError, str(error))
                bodies.there[row] = False
        return walked

    def _of_batches(self, found: Heads, data: U8, rows: I64, walked: Sequence[tuple[I64, I64, I64]]) -> Columns:
        begin, end, size = (np.concatenate(column) for column in zip(*walked, strict=True))
        metadata = scan(data, begin, end, batches.METADATA)
        how_many = np.array([each[0].size for each in walked], dtype=np.int64)
        entry = np.repeat(rows, how_many)
        first = np.repeat(np.cumsum(how_many) - how_many, how_many)
        bad = metadata.bad | (metadata.number(batches.PAYLOAD_SIZE) != size)
        for row in sorted(set(entry[bad].tolist())):
            self._refuse(found, row, CorruptMessageError, "the metadata of a message in a batch cannot be read")
        sequence = np.where(
            metadata.has(batches.SEQUENCE_ID),
            metadata.number(batches.SEQUENCE_ID),
            found.metadata.number(heads.SEQUENCE_ID)[entry],
        )
        columns = Columns(
            entry,
            np.arange(entry.size) - first,
            found.metadata.number(heads.BATCH_SIZE)[entry],
            metadata.number(batches.EVENT_TIME),
            sequence,
            (end, np.where(metadata.number(batches.NULL_VALUE) != 0, -1, size)),
            _unless(metadata.span(batches.PARTITION_KEY), metadata.number(batches.NULL_KEY)),
            metadata.number(batches.KEY_IS_BASE64) != 0,
            metadata.span(batches.ORDERING_KEY),
            metadata.occurrences(batches.PROPERTIES),
        )
        left_out = (metadata.number(batches.COMPACTED_OUT) != 0) | np.isin(entry, entry[bad])
        return columns.take(np.flatnonzero(~left_out)) if left_out.any() else columns


def _is_packed(found: Heads) -> Mask:
    """Return a mask of the rows whose bodies must be unpacked: chunks, and compressed or encrypted messages."""
    metadata = found.metadata
    packed: Mask = (metadata.number(heads.COMPRESSION) != 0) | (metadata.number(heads.CHUNKS) > 1) | _has_keys(found)
    return packed


def _has_keys(found: Heads) -> Mask:
    encrypted = np.zeros(len(found), dtype=np.bool_)
    encrypted[found.metadata.occurrences(heads.ENCRYPTION_KEYS)[0]] = True
    return encrypted


def _parts(found: Heads, rows: I64) -> Iterator[I64]:
    """Split rows into parts. The rows of a part are unpacked together."""
    if not rows.size:
        return
    packed = np.where(_is_packed(found)[rows], found.metadata.number(heads.UNCOMPRESSED_SIZE)[rows], 0)
    sizes = np.maximum(np.clip(packed, 0, UNCOMPRESSED_BYTES_MAX), (found.payload_end - found.payload_begin)[rows])
    messages = np.clip(found.metadata.number(heads.BATCH_SIZE)[rows], 0, batches.MESSAGES_MAX)
    sizes += messages * COLUMN_BYTES
    numbers = (np.cumsum(sizes) - 1) // BYTES_AT_ONCE
    yield from np.split(rows, np.flatnonzero(np.diff(numbers)) + 1)


def _of_plain(found: Heads, bodies: _Bodies, rows: I64) -> Columns:
    """Return the messages of entries that are not batches."""
    metadata = found.metadata
    length = np.where(metadata.number(heads.NULL_VALUE) != 0, -1, bodies.end - bodies.begin)
    entry, begin, size = metadata.occurrences(heads.PROPERTIES)
    place = np.full(len(found), -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    here = place[entry] >= 0
    key = _unless(metadata.span(heads.PARTITION_KEY), metadata.number(heads.NULL_KEY))
    ordering = metadata.span(heads.ORDERING_KEY)
    none = np.full(rows.size, -1, dtype=np.int64)
    return Columns(
        rows,
        none,
        np.zeros(rows.size, dtype=np.int64),
        metadata.number(heads.EVENT_TIME)[rows],
        metadata.number(heads.SEQUENCE_ID)[rows],
        (bodies.begin[rows], length[rows]),
        (key[0][rows], key[1][rows]),
        metadata.number(heads.KEY_IS_BASE64)[rows] != 0,
        (ordering[0][rows], ordering[1][rows]),
        (place[entry][here], begin[here], size[here]),
    )


def _unless(span: tuple[I64, I64], is_null: I64) -> tuple[I64, I64]:
    return span[0], np.where(is_null != 0, -1, span[1])


def _joined(plain: Columns, batched: Columns) -> Columns:
    """Return plain and batched messages together, in the order of their entries."""
    shift = len(plain)

    def both(a: I64, b: I64) -> I64:
        return np.concatenate((a, b))

    together = Columns(
        both(plain.entry, batched.entry),
        both(plain.batch_index, batched.batch_index),
        both(plain.batch_size, batched.batch_size),
        both(plain.event_time, batched.event_time),
        both(plain.sequence_id, batched.sequence_id),
        (both(plain.value[0], batched.value[0]), both(plain.value[1], batched.value[1])),
        (both(plain.key[0], batched.key[0]), both(plain.key[1], batched.key[1])),
        np.concatenate((plain.key_is_base64, batched.key_is_base64)),
        (both(plain.ordering_key[0], batched.ordering_key[0]), both(plain.ordering_key[1], batched.ordering_key[1])),
        (
            both(plain.properties[0], batched.properties[0] + shift),
            both(plain.properties[1], batched.properties[1]),
            both(plain.properties[2], batched.properties[2]),
        ),
    )
    return together.take(np.argsort(together.entry, kind="stable"))


def _bytes(found: Heads, number: int, row: int) -> bytes:
    begin, length = found.metadata.span(number)
    at = int(begin[row])
    return bytes(found.data[at : at + max(0, int(length[row]))])


def _keys(found: Heads, row: int) -> dict[bytes, bytes]:
    """Return the encrypted data keys of a message by name. Keys that cannot be read are left out."""
    rows, begins, lengths = found.metadata.occurrences(heads.ENCRYPTION_KEYS)
    here = rows == row
    inner: Fields = scan(found.data, begins[here], begins[here] + lengths[here], _KEY_VALUE)
    names, values = (
        [bytes(found.data[b : b + max(0, n)]) for b, n in zip(*(a.tolist() for a in inner.span(k)), strict=True)]
        for k in (1, 2)
    )
    return {name: value for name, value, bad in zip(names, values, inner.bad.tolist(), strict=True) if not bad}
