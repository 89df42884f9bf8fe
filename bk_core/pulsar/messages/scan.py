# SPDX-License-Identifier: Apache-2.0
"""Reads a few fields of many protobuf messages together.

Numpy reads one field of every message at a time, so a field costs about the same for one message as for thousands. A
field that has the same tag in all messages costs less than half, and so does a long varint that is read as a word. When
only a few long messages are left, they are read one by one. Fields that are not wanted are skipped, and so are wanted
fields of another wire type.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64, U8

Mask: TypeAlias = npt.NDArray[np.bool_]
U64: TypeAlias = npt.NDArray[np.uint64]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
NARROW = 12
"""The number of messages up to which they are read one by one, because numpy's fixed cost would be higher."""
STEPS_MAX = 256
"""The maximum number of fields of a message that are read together with those of other messages. The rest of a longer
message is read separately, so that the time is proportional to its bytes."""
OCCURRENCES_MAX = 1 << 23
"""The maximum number of occurrences of repeated fields in messages that are scanned together. Further messages count as
bad."""
_NUMBER_END = 1 << 29
_HIGHEST_WANTED = 1 << 10
"""A number of a field above all that are wanted."""
_VARINT_BYTES_MAX = 10
_FEW = 64
"""The number of varints up to which they are read byte by byte, because words cost more numpy calls."""
_WORD_BYTES = 8
_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS, _LOW_BITS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_MERGES = tuple(
    (np.uint64(low), np.uint64(low << 8 * size), np.uint64(size))
    for size, low in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x0FFFFFFF))
)
"""The masks and shifts that join the groups of 7 bits in a word: first pairs of bytes, then pairs of pairs."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The numbers of the fields to read: ``numbers`` are varints, ``spans`` are bytes, and ``repeated`` are bytes that
    may occur more than once."""

    numbers: frozenset[int]
    spans: frozenset[int]
    repeated: frozenset[int] = frozenset()


@dataclass(slots=True)
class Fields:
    """The wanted fields of ``count`` messages. If a field occurs twice in a message, the last occurrence counts.
    ``bad`` marks messages that are not protobuf."""

    count: int
    bad: Mask
    _numbers: dict[int, tuple[I64, Mask]] = field(default_factory=dict)
    _spans: dict[int, tuple[I64, I64]] = field(default_factory=dict)
    _repeated: dict[int, list[tuple[Any, Any, Any]]] = field(default_factory=dict)
    _occurrences: int = 0

    def number(self, number: int, default: int = 0) -> I64:
        """Return the values of a varint field as signed 64-bit numbers. For a message without the field, the value is
        ``default``."""
        if number not in self._numbers:
            return np.full(self.count, default, dtype=np.int64)
        values, present = self._numbers[number]
        return values if default == 0 else np.where(present, values, default)

    def has(self, number: int) -> Mask:
        """Return a mask of the messages that have this field of ``numbers`` or ``spans``."""
        if number in self._numbers:
            return self._numbers[number][1]
        if number in self._spans:
            return self._spans[number][1] >= 0
        return np.zeros(self.count, dtype=np.bool_)

    def span(self, number: int) -> tuple[I64, I64]:
        """Return the position and the length of a field's bytes in each message. The length is −1 if the field is
        absent."""
        if number not in self._spans:
            return np.zeros(self.count, dtype=np.int64), np.full(self.count, -1, dtype=np.int64)
        return self._spans[number]

    def occurrences(self, number: int) -> tuple[I64, I64, I64]:
        """Return three arrays for the occurrences of a repeated field, which are the row of the message, the position
        of the bytes, and their length. The order is that of the messages and, within a message, that of its bytes."""
        found = self._repeated.get(number, [])
        if not found:
            return (np.zeros(0, dtype=np.int64),) * 3
        rows, begins, lengths = (np.concatenate(column).astype(np.int64) for column in zip(*found, strict=True))
        order = np.argsort(rows, kind="stable")
        return rows[order], begins[order], lengths[order]

    def _number(self, number: int) -> tuple[I64, Mask]:
        if number not in self._numbers:
            self._numbers[number] = np.zeros(self.count, np.int64), np.zeros(self.count, np.bool_)
        return self._numbers[number]

    def _span(self, number: int) -> tuple[I64, I64]:
        if number not in self._spans:
            self._spans[number] = np.zeros(self.count, np.int64), np.full(self.count, -1, np.int64)
        return self._spans[number]

    def keep_numbers(self, number: int, rows: Any, values: Any) -> None:
        kept, present = self._number(number)
        kept[rows], present[rows] = values, True

    def keep_spans(self, number: int, rows: Any, begins: Any, lengths: Any) -> None:
        kept_begins, kept_lengths = self._span(number)
        kept_begins[rows], kept_lengths[rows] = begins, lengths

    def keep_occurrences(self, number: int, rows: Any, begins: Any, lengths: Any) -> None:
        self._occurrences += len(rows)
        if self._occurrences > OCCURRENCES_MAX:
            self.bad[rows] = True
        else:
            self._repeated.setdefault(number, []).append((rows, begins, lengths))


def scan(data: U8, begin: I64, end: I64, wanted: Wanted, *, narrow: int = NARROW) -> Fields:
    """Return the wanted fields of the messages in ``data``. Message k has the bytes from ``begin[k]`` to ``end[k]``,
    which must be within ``data``."""
    found = Fields(int(begin.size), np.zeros(begin.size, dtype=np.bool_))
    rows = np.flatnonzero(begin < end)
    at, stop = begin[rows], end[rows]
    for _ in range(STEPS_MAX):
        if rows.size <= narrow:
            break
        at, is_bad = _step(data, rows, at, stop, wanted, found)
        found.bad[rows[is_bad]] = True
        going = (at < stop) & ~is_bad
        if not going.all():
            rows, at, stop = rows[going], at[going], stop[going]
    for row, first, last in zip(rows.tolist(), at.tolist(), stop.tolist(), strict=True):
        _scan_one(bytes(data[first:last]), row, first, wanted, found)
    return found


def _step(data: U8, rows: I64, at: I64, stop: I64, wanted: Wanted, found: Fields) -> tuple[I64, Mask]:
    """Read the next field of each message. Return the position of the following field, and a mask of the bad
    messages."""
    first = data[at]
    same = int(first[0])
    if same < 0x80 and same & 7 in (VARINT, BYTES) and same >> 3 and bool((first == same).all()):
        return _same_step(data, rows, at, stop, same, wanted, found)  # one client writes all messages alike
    tag, at, is_bad = varints(data, at, stop)
    wire, number = (tag & np.uint64(7)).astype(np.int64), (tag >> np.uint64(3)).astype(np.int64)
    is_fixed = (wire == FIXED64) | (wire == FIXED32)
    is_bad |= (number == 0) | (number >= _NUMBER_END) | ~((wire == VARINT) | (wire == BYTES) | is_fixed)
    value, after, is_bad_value = varints(data, at, stop)
    is_bad |= is_bad_value & ~is_fixed
    is_bytes = wire == BYTES
    is_bad |= is_bytes & (value > np.uint64(data.size))
    length = np.where(is_bad, 0, value.view(np.int64))
    following = after + np.where(is_bytes, length, 0)
    if is_fixed.any():
        following = np.where(is_fixed, at + np.where(wire == FIXED64, 8, 4), following)
    is_bad |= following > stop
    good = ~is_bad
    for each in np.flatnonzero(np.bincount(np.minimum(number, _HIGHEST_WANTED))).tolist():
        if each in wanted.numbers:
            here = good & (number == each) & (wire == VARINT)
            found.keep_numbers(each, rows[here], value.view(np.int64)[here])
        elif each in wanted.spans or each in wanted.repeated:
            here = good & (number == each) & is_bytes
            keep = found.keep_spans if each in wanted.spans else found.keep_occurrences
            keep(each, rows[here], after[here], length[here])
    return following, is_bad


def _same_step(data: U8, rows: I64, at: I64, stop: I64, tag: int, wanted: Wanted, found: Fields) -> tuple[I64, Mask]:
    """Do the same as :func:`_step` if all messages have the same ``tag`` here, a single byte, before a varint or
    bytes."""
    number, is_bytes = tag >> 3, tag & 7 == BYTES
    value, after, is_bad = varints(data, at + 1, stop)
    number_value = value.view(np.int64)
    following = after
    if is_bytes:
        is_bad |= value > np.uint64(data.size)
        number_value = np.where(is_bad, 0, number_value)
        following = after + number_value
        is_bad |= following > stop
    here: Any = slice(None) if not is_bad.any() else ~is_bad
    if not is_bytes and number in wanted.numbers:
        found.keep_numbers(number, rows[here], number_value[here])
    elif is_bytes and number in wanted.spans:
        found.keep_spans(number, rows[here], after[here], number_value[here])
    elif is_bytes and number in wanted.repeated:
        found.keep_occurrences(number, rows[here], after[here], number_value[here])
    return following, is_bad


def varints(data: U8, at: I64, stop: I64) -> tuple[U64, I64, Mask]:
    """Return the varint at each position, the position after it, and a mask of the varints that are too long or reach
    beyond ``stop``."""
    byte = data.take(at, mode="clip")
    value, after = (byte & 0x7F).astype(np.uint64), at + 1
    more = np.flatnonzero(byte & 0x80)
    is_bad = np.zeros(at.size, dtype=np.bool_)
    for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
        if shift == 14 and more.size > _FEW:  # up to two bytes are read faster one by one
            more = _in_words(data, at, more, value, after)
        if not more.size:
            break
        byte = data.take(after[more], mode="clip")
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[(byte & 0x80) != 0]
    is_bad[more] = True
    return value, after, is_bad | (after > stop)


def _in_words(data: U8, at: I64, more: I64, value: U64, after: I64) -> I64:
    """Read the varints of the rows ``more`` from words of eight bytes. Set their ``value`` and ``after``, and return
    the rows whose varints are longer, or too close to the end of ``data`` to be read so."""
    if data.size < _WORD_BYTES:
        return more
    begins = at if more.size == at.size else at[more]
    fits = begins <= data.size - _WORD_BYTES
    rows = more if bool(fits.all()) else more[fits]
    begins = begins if rows is more else begins[fits]
    words: U64 = np.ndarray((data.size - _WORD_BYTES + 1,), f"V{_WORD_BYTES}", data, 0, (1,))[begins].view("<u8")
    ends = ~words & _HIGH_BITS
    below = (ends & (~ends + np.uint64(1))) - np.uint64(1)  # the bits below the high bit of the last byte
    bits = words & below & _LOW_BITS
    for low, high, shift in _MERGES:
        bits = (bits & low) | ((bits & high) >> shift)
    ended = ends != 0
    if not bool(ended.all()):
        left = np.concatenate((rows[~ended], more[~fits]))
        rows, bits, below = rows[ended], bits[ended], below[ended]
    else:
        left = more[:0] if rows is more else more[~fits]
    value[rows] = bits
    after[rows] = at[rows] + ((below & _ONES) * _ONES >> np.uint64(56)).view(np.int64)  # a byte of the sum counts bytes
    return left


def _scan_one(data: bytes, row: int, base: int, wanted: Wanted, found: Fields) -> None:
    """Read the wanted fields of one message, whose first byte is at position ``base``, into ``found``."""
    repeated: dict[int, tuple[array[int], array[int]]] = {}
    try:
        for number, wire, at, value in fields_of(data):
            if wire == VARINT and number in wanted.numbers:
                signed = value - (1 << 64) if value >> 63 else value
                found.keep_numbers(number, row, signed)
            elif wire == BYTES and number in wanted.spans:
                found.keep_spans(number, row, base + at, value)
            elif wire == BYTES and number in wanted.repeated:
                begins, lengths = repeated.setdefault(number, (array("q"), array("q")))
                if len(begins) == OCCURRENCES_MAX:
                    raise ValueError("a message has too many fields")
                begins.append(base + at)
                lengths.append(value)
    except ValueError:
        found.bad[row] = True
    for number, (begins, lengths) in repeated.items():
        rows = np.full(len(begins), row, dtype=np.int64)
        found.keep_occurrences(number, rows, np.frombuffer(begins, np.int64), np.frombuffer(lengths, np.int64))


def fields_of(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of one message. A field is a tuple of its number, its wire type, the position of its value, and
    the value of a varint or the length of another value in bytes. Raises ValueError for bytes that are not protobuf."""
    at, end = 0, len(data)
    while at < end:
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < _NUMBER_END:
            raise ValueError("a field has an impossible number")
        if wire == VARINT:
            begin = at
            value, at = varint(data, at)
            yield number, wire, begin, value
            continue
        if wire == BYTES:
            value, at = varint(data, at)
        elif wire in (FIXED64, FIXED32):
            value = 8 if wire == FIXED64 else 4
        else:
            raise ValueError("a field has an unknown wire type")
        if value > end - at:
            raise ValueError("a field is cut off")
        yield number, wire, at, value
        at += value


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it. Raises ValueError if the varint is cut off or too
    long."""
    value = shift = 0
    for place in range(at, min(at + _VARINT_BYTES_MAX, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise ValueError("a varint is cut off or too long")
