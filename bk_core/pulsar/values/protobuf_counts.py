# SPDX-License-Identifier: Apache-2.0
"""Counts the values of repeated fields in the bytes of protobuf messages, before protobuf's library makes a message.

The library takes memory for all fields of a message as soon as the first one comes, and a message inside another one
may have two bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

LABEL_REPEATED = 3
_VARINT, _FIXED64, _LENGTH, _BEGIN_GROUP, _END_GROUP, _FIXED32 = range(6)
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_PACKED_WIDTH = {
    **dict.fromkeys((FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), 8),
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), 4),
}
_NEVER_PACKED = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_VARINT_BYTES_MAX = 10


def is_repeated(field: FieldDescriptor) -> bool:
    """Return whether a field is repeated, or a map."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == LABEL_REPEATED)  # type: ignore[attr-defined]  # before protobuf 6


@dataclass(frozen=True, slots=True)
class _Field:
    """A field that is repeated, or whose messages have repeated fields. ``width`` is the number of types in one item
    of a repeated field, and 0 for another field. ``inside`` counts the values in the field's messages."""

    kind: int
    width: int
    inside: Counter | None


class Counter:
    """Counts the values of one type of message. ``count`` is the number of types in it. ``widest`` is the number of
    types in the widest item of its repeated fields, or 0 if it has none."""

    def __init__(self, message: Descriptor) -> None:
        self._fields, self.count, self.widest = dict[int, _Field](), 1, 0
        for each in message.fields:
            inside = None if each.message_type is None else Counter(each.message_type)
            types = 1 if inside is None else inside.count
            width = types if is_repeated(each) else 0
            self.count += types
            self.widest = max(self.widest, width, 0 if inside is None else inside.widest)
            if width or (inside is not None and inside.widest):
                self._fields[each.number] = _Field(each.type, width, inside)

    def values_at_most(self, length: int) -> int:
        """Return an upper limit of the number of values in ``length`` bytes. An item has at least two bytes, or one
        byte if it is a packed number."""
        return max(length, length // 2 * self.widest) if self.widest else 0

    def values(self, data: memoryview, most: int) -> int:
        """Return the number of values in the repeated fields of a message. An item counts as many values as it has
        types. The count ends once it exceeds ``most``, and at bytes that are not a field, because protobuf's library
        refuses the message there."""
        return self._count(data, 0, len(data), most)[0]

    def _count(self, data: memoryview, at: int, end: int, most: int) -> tuple[int, int]:
        """Return the number of values up to ``end`` or to the end of the group, and the position behind them. The
        position is −1 if there are bytes that are not a field."""
        found, groups = 0, 0
        while at < end and found <= most:
            tag, at = _varint(data, at, end)
            wire, field = tag & 7, self._fields.get(tag >> 3) if not groups else None
            if at < 0 or wire > _FIXED32:
                return found, -1
            if wire == _END_GROUP:
                if not groups:
                    return found, at
                groups -= 1
                continue
            if field is not None and wire == _BEGIN_GROUP and field.inside is not None:
                inner, at = field.inside._count(data, at, end, most - found)
                found += inner + field.width
                if at < 0:
                    return found, -1
                continue
            if wire == _BEGIN_GROUP:
                groups += 1
                continue
            begin, at = _value(data, at, end, wire)
            if at < 0:
                return found, -1
            if field is not None:
                found += self._of_field(field, wire, data, begin, at, most - found)
        return found, at

    def _of_field(self, field: _Field, wire: int, data: memoryview, begin: int, end: int, most: int) -> int:
        if field.inside is not None:
            return field.width + field.inside._count(data, begin, end, most)[0] if wire == _LENGTH else 0
        if wire != _LENGTH or field.kind in _NEVER_PACKED:
            return field.width
        if width := _PACKED_WIDTH.get(field.kind):
            return (end - begin) // width
        return int(np.count_nonzero(np.frombuffer(data[begin:end], dtype=np.uint8) < 0x80))


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a varint and the position behind it, which is −1 if the varint is cut off or too long."""
    found = 0
    for place in range(min(end - at, _VARINT_BYTES_MAX)):
        found |= (data[at + place] & 0x7F) << 7 * place
        if data[at + place] < 0x80:
            return found, at + place + 1
    return 0, -1


def _value(data: memoryview, at: int, end: int, wire: int) -> tuple[int, int]:
    """Return the positions at which the content of a value begins and ends. The end is −1 if the value is cut off."""
    size = _FIXED.get(wire, 0)
    if wire in (_VARINT, _LENGTH):
        number, after = _varint(data, at, end)
        if after < 0:
            return at, -1
        at, size = after, number if wire == _LENGTH else 0
    return (at, at + size) if size <= end - at else (at, -1)
