# SPDX-License-Identifier: Apache-2.0
"""Reads many protobuf messages of the same layout together, in columns.

Protobuf leaves the order of fields and the width of numbers to the writer, and most messages of one writer look alike.
So the reader learns a *layout* from one message. A layout says which bytes are constant, where the varints are and how
wide, and where the entry is. The reader compares all other messages with the layout, byte by byte in a matrix, and
reads the messages that have this layout in columns. Then it reads one of the remaining messages with protobuf, learns
the layout of that message, and repeats this. The result is always that of protobuf, because protobuf has read the first
message of each layout, and a message that differs in any byte that is not data has another layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bk_core.wire.bookie_rpc.columns import U8, VARINT_BYTES_MAX, WORD, decode_varints, gather
from bk_core.wire.bookie_rpc.frames import I64
from bk_core.wire.bookie_rpc.runs import (
    BODY_AT,
    BODY_BYTES,
    FEW_FRAMES,
    FRAME,
    KIND,
    TXN,
    CutFrames,
    Found,
    ReadOne,
    read_singly,
)

LAYOUTS_A_BURST = 16  # limits the work, because each layout is compared with all frames that are left
LAYOUTS_KEPT = 32
_PREFIX_MAX, _SUFFIX_MAX = 160, 48
_TXN_FIELD = 3
_HEADER_TAG, _STATUS_TAG = b"\x0a", b"\x10"

Mask: TypeAlias = npt.NDArray[np.bool_]
T = TypeVar("T")


class Grammar(NamedTuple):
    """Describes the inner message of one kind of request or answer. It says which fields are data. All other fields are
    constants of a layout."""

    tag: bytes
    numbers: Mapping[int, int]  # field → row of the matrix
    entry: int = 0  # the field with the entry; 0: the message has no entry
    key: int = 0  # the field with the ledger key
    key_at: int = 0  # the row that gets the key's position


class Field(NamedTuple):
    """A varint of a layout. ``row`` is the row of the matrix that gets its value. The varint begins at byte ``at`` and
    has ``width`` bytes."""

    row: int
    at: int
    width: int


class _Part:
    """Consecutive bytes of a layout. It holds the constant bytes, and ``fields``, which are the varints between
    them."""

    __slots__ = ("fields", "mask", "mask_words", "padded", "value", "value_words", "width")

    def __init__(self, data: bytes, mask: bytes, fields: list[Field], lengths: list[Field]) -> None:
        self.width = len(data)
        self.fields = fields
        self.mask = int.from_bytes(mask, "little")
        self.value = int.from_bytes(data, "little") & self.mask
        last = max((field.at for field in [*fields, *lengths] if field.width > 2), default=-WORD)
        self.padded = -(-max(self.width, last + WORD) // WORD) * WORD
        self.mask_words = np.frombuffer(mask.ljust(self.padded, b"\0"), dtype=np.uint64)
        value = self.value.to_bytes(self.width, "little").ljust(self.padded, b"\0")
        self.value_words = np.frombuffer(value, dtype=np.uint64)

    def differs(self, rows: U8) -> Mask | None:
        """Return a mask of the rows whose constant bytes differ from this part's, or None if no row differs."""
        wrong = rows.view(np.uint64) ^ self.value_words
        wrong &= self.mask_words
        if not wrong.any():
            return None
        return np.asarray(wrong.any(axis=1))


@dataclass(slots=True, eq=False)
class MessageLayout:
    """The layout of a message. ``prefix`` is everything before the entry, and ``suffix`` everything after it. ``key``
    is a pair: the row of the matrix that gets the ledger key's position, and the position in the message, which counts
    from the message's end if it is negative. ``constants`` are pairs: a row of the matrix, and the value that it has
    for all messages of the layout. ``outer`` and ``entry_length`` are the length fields of the inner message and of the
    entry."""

    prefix: _Part
    suffix: _Part
    outer: Field
    entry_length: Field | None
    key: tuple[int, int] | None
    constants: list[tuple[int, int]]

    def fits(self, data: memoryview, begin: int, length: int) -> bool:
        """Return whether one frame seems to have this layout. Only :meth:`read` compares all bytes."""
        prefix, suffix = self.prefix, self.suffix
        if int.from_bytes(data[begin : begin + prefix.width], "little") & prefix.mask != prefix.value:
            return False
        if self.entry_length is None:
            return length == prefix.width
        end = begin + length
        tail = int.from_bytes(data[end - suffix.width : end], "little") & suffix.mask
        return length >= prefix.width + suffix.width and tail == suffix.value

    def read(self, raw: U8, begins: I64, lengths: I64, numbers: I64, rows: I64) -> I64:
        """Read those of the frames ``numbers`` that have this layout into their columns of the matrix. The frames are
        at ``begins`` and have ``lengths`` bytes. Return the positions of the frames that have another layout."""
        prefix, suffix = self.prefix, self.suffix
        heads = gather(raw, begins, prefix.padded)
        wrong = prefix.differs(heads)
        outer = decode_varints(heads, self.outer.at, self.outer.width)
        odd = outer != (lengths - (self.outer.at + self.outer.width)).view(np.uint64)
        around = prefix.width + suffix.width
        if self.entry_length is None:
            odd |= lengths != prefix.width
        else:
            entry = decode_varints(heads, self.entry_length.at, self.entry_length.width)
            odd |= (entry != (lengths - around).view(np.uint64)) | (lengths < around)
        if wrong is not None:
            odd |= wrong
        if odd.any():
            return self._read_some(~odd, odd, (raw, begins, lengths, numbers, rows))
        tails = None
        if suffix.width:
            tails = gather(raw, begins + lengths - suffix.width, suffix.padded)
            wrong = suffix.differs(tails)
            if wrong is not None:
                return self._read_some(~wrong, wrong, (raw, begins, lengths, numbers, rows))
        self._fill(heads, tails, begins, lengths, numbers, rows)
        return np.empty(0, dtype=np.int64)

    def _read_some(self, right: Mask, wrong: Mask, given: tuple[U8, I64, I64, I64, I64]) -> I64:
        """Read the frames that have this layout so far. :meth:`read` may still find a difference in their suffix.
        Return the positions of the frames that have another layout."""
        raw, begins, lengths, numbers, rows = given
        left = np.flatnonzero(wrong)
        if left.size == wrong.size:
            return left
        more = self.read(raw, begins[right], lengths[right], numbers[right], rows)
        return np.sort(np.concatenate((left, np.flatnonzero(right)[more]))) if more.size else left

    def _fill(self, heads: U8, tails: U8 | None, begins: I64, lengths: I64, numbers: I64, rows: I64) -> None:
        where: slice | I64 = numbers
        if int(numbers[-1]) - int(numbers[0]) == numbers.size - 1:
            where = slice(int(numbers[0]), int(numbers[-1]) + 1)
        for row, value in self.constants:
            rows[row, where] = value
        for part, found in ((self.prefix, heads), (self.suffix, tails)):
            if found is not None:
                for field in part.fields:
                    rows[field.row, where] = decode_varints(found, field.at, field.width).view(np.int64)
        if self.entry_length is not None:
            rows[BODY_AT, where] = begins + self.prefix.width
            rows[BODY_BYTES, where] = lengths - (self.prefix.width + self.suffix.width)
        if self.key is not None:
            row, at = self.key
            rows[row, where] = begins + at if at >= 0 else begins + lengths + at


class _Unusual(Exception):
    """A message from which no layout is learnt."""


class _Learner:
    """Parses one message that protobuf has read, and notes which of its bytes are data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.mask = bytearray(b"\xff" * len(data))
        self.fields: list[Field] = []
        self.entry: tuple[Field, int, int] | None = None  # the entry's length field, its beginning and its end
        self.key: tuple[int, int] | None = None

    def varint(self, at: int) -> tuple[int, int]:
        """Return the value of the varint at ``at``, and the position after it."""
        value = 0
        for k in range(VARINT_BYTES_MAX):
            if at + k >= len(self.data):
                break
            byte = self.data[at + k]
            value |= (byte & 0x7F) << 7 * k
            if byte < 0x80:
                return value, at + k + 1
        raise _Unusual

    def is_data(self, at: int, end: int) -> None:
        """Mark the varint from ``at`` to ``end`` as data. Constant are only its continuation bits, and its tenth byte,
        because protobuf may check the upper bits of that byte."""
        for k in range(at, min(end, at + VARINT_BYTES_MAX - 1)):
            self.mask[k] = 0x80

    def message(self, at: int, end: int, grammar: Grammar) -> None:
        """Parse the fields from ``at`` to ``end``. If a field comes twice, its second value overwrites the first, as
        with protobuf."""
        while at < end:
            tag, at = self.varint(at)
            field, wire_type = tag >> 3, tag & 7
            value, after = self.varint(at)
            if wire_type == 0:
                if field in grammar.numbers:
                    self.fields.append(Field(grammar.numbers[field], at, after - at))
                    self.is_data(at, after)
                at = after
            elif wire_type == 2:
                at = self.bytes_field(field, at, after, after + value, grammar)
            else:
                raise _Unusual
        if at != end:
            raise _Unusual

    def bytes_field(self, field: int, at: int, begin: int, end: int, grammar: Grammar) -> int:
        if end > len(self.data):
            raise _Unusual
        if field == grammar.entry:
            self.entry = Field(0, at, begin - at), begin, end
            self.is_data(at, begin)
        elif field == grammar.key:
            self.key = grammar.key_at, begin
            self.mask[begin:end] = bytes(end - begin)
        else:
            raise _Unusual
        return end

    def layout(self, grammar: Grammar, row: I64) -> MessageLayout:
        """Return the layout of this message. ``row`` is the message's column of the matrix."""
        data = self.data
        if data[:1] != _HEADER_TAG:
            raise _Unusual
        length, at = self.varint(1)
        self.message(at, at + length, Grammar(b"", {_TXN_FIELD: TXN}))
        at += length
        if data[at : at + 1] == _STATUS_TAG:
            _, at = self.varint(at + 1)
        if data[at : at + len(grammar.tag)] != grammar.tag:
            raise _Unusual
        at += len(grammar.tag)
        length, begin = self.varint(at)
        if begin + length != len(data):
            raise _Unusual
        outer = Field(0, at, begin - at)
        self.is_data(at, begin)
        self.message(begin, len(data), grammar)
        entry_length, entry_begin, entry_end = self.entry or (None, len(data), len(data))
        prefix = self.part(0, entry_begin, [outer] if entry_length is None else [outer, entry_length])
        suffix = self.part(entry_end, len(data), [])
        if prefix.width > _PREFIX_MAX or suffix.width > _SUFFIX_MAX:
            raise _Unusual
        data_rows = {FRAME, *(field.row for field in self.fields)}
        data_rows |= {BODY_AT, BODY_BYTES} if entry_length else set()
        data_rows |= {self.key[0]} if self.key else set()
        if self.key and self.key[1] > entry_begin:
            self.key = self.key[0], self.key[1] - len(data)
        constants = [(k, int(value)) for k, value in enumerate(row) if value and k not in data_rows]
        return MessageLayout(prefix, suffix, outer, entry_length, self.key, constants)

    def part(self, begin: int, end: int, lengths: list[Field]) -> _Part:
        fields = [field._replace(at=field.at - begin) for field in self.fields if begin <= field.at < end]
        return _Part(self.data[begin:end], bytes(self.mask[begin:end]), fields, lengths)


def learn(data: bytes, grammar: Grammar, row: I64) -> MessageLayout | None:
    """Return the layout of a message that protobuf has read into ``row``, or None if the message is unusual."""
    try:
        return _Learner(data).layout(grammar, row)
    except _Unusual:
        return None


class MessageReader(Generic[T]):
    """Reads the messages of one connection in one direction. It keeps up to LAYOUTS_KEPT layouts. ``read_one`` reads
    one message with protobuf."""

    __slots__ = ("_grammars", "_known", "_read_one")

    def __init__(self, grammars: Mapping[int, Grammar], read_one: ReadOne[T]) -> None:
        self._grammars = grammars
        self._read_one = read_one
        self._known: list[MessageLayout] = []

    def read(self, cut: CutFrames) -> Found[T]:
        """Read all frames into their columns, and return the result as :data:`~bk_core.wire.bookie_rpc.runs.Found`."""
        buffer, begins, lengths, rows = cut
        raw = np.frombuffer(buffer, dtype=np.uint8)
        others: list[T] = []
        left, tries = np.arange(begins.size), LAYOUTS_A_BURST
        while left.size > FEW_FRAMES and tries:
            k = int(left[0])
            tries -= 1
            layout = self._seems(buffer, int(begins[k]), int(lengths[k]))
            if layout is not None:
                left = left[layout.read(raw, begins[left], lengths[left], left, rows)]
                if not left.size or left[0] != k:
                    continue
            found, fault, _ = read_singly(cut, (k,), self._read_one)
            if fault is not None:
                return others, fault, k
            left = left[1:]
            if found:
                others += found
                tries += 1
            else:
                self._learn(bytes(buffer[int(begins[k]) :][: int(lengths[k])]), rows[:, k])
        found, fault, end = read_singly(cut, left.tolist(), self._read_one)
        return others + found, fault, end

    def _seems(self, buffer: memoryview, begin: int, length: int) -> MessageLayout | None:
        """Return a learnt layout that one frame seems to have, or None. The layout that was used last is tried
        first."""
        for at, layout in enumerate(self._known):
            if layout.fits(buffer, begin, length):
                if at:
                    self._known.insert(0, self._known.pop(at))
                return layout
        return None

    def _learn(self, data: bytes, column: I64) -> None:
        layout = learn(data, self._grammars[int(column[KIND])], column)
        if layout is not None:
            self._known.insert(0, layout)
            del self._known[LAYOUTS_KEPT:]
