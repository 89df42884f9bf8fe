# SPDX-License-Identifier: Apache-2.0
"""Finds the values in Avro datums. A datum has no head and no length, so only its schema tells where each value begins.

numpy reads one value of every datum at a time. So Python code runs once for each type of the schema, and once for each
step in the longest array or map. When only a few datums have items left in long arrays, these are read value by value.
Each datum keeps its own position, so a bad datum does not damage others. A datum must end where its last value ends.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from bk_core.entries.batch import I64, U8
from bk_core.pulsar.messages.rows import TooManyValuesError
from bk_core.pulsar.messages.scan import Mask, varint, varints
from bk_core.pulsar.values.avro.schema import Node
from bk_core.pulsar.values.decoded import Column, Items, Nulls, Numbers, Record, Spans, Union, joined
from bk_core.pulsar.values.limits import VALUES_MAX, too_many

Bytes: TypeAlias = bytes | memoryview
NARROW = 16
"""Once an array was read for STEPS steps, its remaining items are read one by one if at most this number of datums have
items left. numpy's fixed cost would be higher."""
STEPS = 64
_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1
_CUT_OFF = "a value is cut off or has an impossible size"


@dataclass(slots=True)
class Datums:
    """Reads datums in ``data``. ``problems`` has, by the index of the datum, the reason why it cannot be read."""

    data: U8
    problems: dict[int, str] = field(default_factory=dict)
    _is_bad: Mask = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    _items_seen: int = 0

    def read(self, node: Node, begin: I64, end: I64) -> Column:
        """Return the values of datums. Datum k has the bytes from ``begin[k]`` to ``end[k]``. The value of a datum with
        a problem is arbitrary. Raises TooManyValuesError if the datums have too many values together."""
        rows, self._is_bad = np.arange(begin.size), np.zeros(begin.size, dtype=np.bool_)
        found, at = self._column(node, begin, end, rows)
        self._complain(at != end, rows, "bytes are left behind its last value")
        return found

    def _complain(self, which: Mask, rows: I64, why: str) -> None:
        """Record a reason for each datum that ``which`` marks, unless it has one. Python code runs once for each bad
        datum."""
        if which.any():
            new = rows[which]
            for row in new[~self._is_bad[new]].tolist():
                self.problems.setdefault(row, why)
            self._is_bad[new] = True

    def _column(self, node: Node, at: I64, stop: I64, rows: I64) -> tuple[Column, I64]:
        """Read one value of each datum, at the positions ``at``. Return the values, and the positions after them.
        ``rows`` has the indices of the datums. The position of a datum with a problem becomes its end."""
        match node.kind:
            case "null":
                return Nulls(at.size), at
            case "int" | "long" | "enum":
                values, at = self._longs(at, stop, rows)
                least, most = (0, len(node.symbols) - 1) if node.kind == "enum" else (_I32_MIN, _I32_MAX)
                if node.kind != "long":
                    wrong = (values < least) | (values > most)
                    self._complain(wrong, rows, f"a number is outside the range of {node.kind}")
                    values = np.where(wrong, 0, values)
                return Numbers(values), at
            case "boolean" | "float" | "double":
                return self._fixed_numbers(node, at, stop, rows)
            case "bytes" | "string":
                length, at = self._longs(at, stop, rows)
                return self._spans(at, length, stop, rows)
            case "fixed":
                return self._spans(at, np.full(at.size, node.size, dtype=np.int64), stop, rows)
            case "record":
                fields = list[Column]()
                for each in node.fields:
                    found, at = self._column(each.node, at, stop, rows)
                    fields.append(found)
                return Record(rows.size, fields), at
            case "union":
                return self._union(node, at, stop, rows)
        return self._items(node, at, stop, rows)

    def _longs(self, at: I64, stop: I64, rows: I64) -> tuple[I64, I64]:
        value, after, is_bad = varints(self.data, at, stop)
        signed: I64 = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
        if is_bad.any():
            self._complain(is_bad, rows, "a number is cut off or too long")
            return np.where(is_bad, 0, signed), np.where(is_bad, stop, after)
        return signed, after

    def _fixed_numbers(self, node: Node, at: I64, stop: I64, rows: I64) -> tuple[Column, I64]:
        kind: Any = {"boolean": np.uint8, "float": "<f4", "double": "<f8"}[node.kind]
        width = np.dtype(kind).itemsize
        after = at + width
        cut = after > stop
        self._complain(cut, rows, _CUT_OFF)
        taken = self.data.take(at[:, None] + np.arange(width), mode="clip")
        values = np.ascontiguousarray(taken).view(kind)[:, 0]
        if node.kind == "boolean":
            self._complain(~cut & (values > 1), rows, "a boolean is neither 0 nor 1")
            values = values == 1
        return Numbers(values), np.where(cut, stop, after)

    def _spans(self, at: I64, length: I64, stop: I64, rows: I64) -> tuple[Column, I64]:
        cut = (length < 0) | (length > stop - at)
        if cut.any():
            self._complain(cut, rows, _CUT_OFF)
            length = np.where(cut, 0, length)
            return Spans(at, length), np.where(cut, stop, at + length)
        return Spans(at, length), at + length

    def _union(self, node: Node, at: I64, stop: I64, rows: I64) -> tuple[Column, I64]:
        tag, at = self._longs(at, stop, rows)
        wrong = (tag < 0) | (tag >= len(node.branches))
        if wrong.any():
            self._complain(wrong, rows, "a union has no such branch")
            tag, at = np.where(wrong, 0, tag), np.where(wrong, stop, at)
        after, place = at.copy(), np.zeros(at.size, dtype=np.int64)
        branches = list[Column | None]()
        for number, branch in enumerate(node.branches):
            here = np.flatnonzero(tag == number)
            if not here.size:
                branches.append(None)
                continue
            found, after[here] = self._column(branch, at[here], stop[here], rows[here])
            place[here] = np.arange(here.size)
            branches.append(found)
        return Union(tag, place, branches), after

    # --- arrays and maps ---------------------------------------------------------------------------------------------

    def _items(self, node: Node, at: I64, stop: I64, rows: I64) -> tuple[Column, I64]:
        """Read an array or a map of each datum. It consists of blocks, which have a count and that number of items. A
        count of 0 ends it."""
        going, found = _Going(node, at.copy(), np.zeros(at.size, dtype=np.int64), np.arange(at.size)), _Found()
        steps = 0
        while True:
            self._begin_blocks(going, stop, rows)
            if not going.active.size:
                break
            if steps >= STEPS and going.active.size <= NARROW:
                for each in going.active.tolist():
                    self._one_by_one(going, found, each, int(stop[each]), int(rows[each]))
                break
            here = going.active
            before = going.at[here]
            keys: Column | None = None
            if node.kind == "map":
                length, before = self._longs(before, stop[here], rows[here])
                keys, before = self._spans(before, length, stop[here], rows[here])
            values, after = self._column(node.inside, before, stop[here], rows[here])
            found.add(here, keys, values)
            going.at[here] = after
            going.left[here] = np.where(after >= stop[here], 0, going.left[here] - 1)
            steps += 1
        return found.items(at.size, node), going.at

    def _begin_blocks(self, going: _Going, stop: I64, rows: I64) -> None:
        """Read the count of the next block for each datum whose block has no items left. An array with a count of 0 has
        ended."""
        fresh = going.active[going.left[going.active] == 0]
        if not fresh.size:
            return
        count, after = self._longs(going.at[fresh], stop[fresh], rows[fresh])
        negative = np.flatnonzero(count < 0)
        if negative.size:  # the size of the block in bytes follows
            which = fresh[negative]
            _, after[negative] = self._longs(after[negative], stop[which], rows[which])
            count[negative] = -count[negative]
        wrong = (count < 0) | (count > stop[fresh] - after)  # an item has at least one byte
        self._complain(wrong, rows[fresh], _CUT_OFF)
        self._see(int(np.where(wrong, 0, count).sum()), going.node)
        going.left[fresh] = np.where(wrong, 0, count)
        going.at[fresh] = np.where(wrong, stop[fresh], after)
        going.active = going.active[going.left[going.active] > 0]

    def _see(self, items: int, node: Node) -> None:
        """Add items of arrays or maps to the count of values, before they are read. Raises TooManyValuesError."""
        self._items_seen += items * node.inside.count
        if self._items_seen > VALUES_MAX:
            raise TooManyValuesError(too_many())

    def _one_by_one(self, going: _Going, found: _Found, number: int, stop: int, row: int) -> None:
        """Read the remaining items of one datum's array or map."""
        body, node = self.data.data[:stop], going.node
        keys, values, at, left = (
            _Sink(Node("string")),
            _Sink(node.inside),
            int(going.at[number]),
            int(going.left[number]),
        )
        done = 0
        try:
            while left:
                for _ in range(left):
                    if node.kind == "map":
                        at = keys.read(body, at)
                    at = values.read(body, at)
                done += left
                left, at = _block(body, at)
                self._see(left, node)
        except (ValueError, IndexError, struct.error) as error:
            self.problems.setdefault(row, str(error) if type(error) is ValueError else _CUT_OFF)
            self._is_bad[row] = True
            going.at[number] = stop
            return
        going.at[number] = at
        found.add(np.full(done, number), keys.column() if node.kind == "map" else None, values.column())


@dataclass(slots=True)
class _Going:
    """The arrays or maps that are being read: the position of each datum, the number of items left in its block, and
    the indices of the datums whose array has not ended."""

    node: Node
    at: I64
    left: I64
    active: I64


@dataclass(slots=True)
class _Found:
    """The items that were read so far, step after step. ``owners`` has the index of each item's datum."""

    owners: list[I64] = field(default_factory=list)
    keys: list[Column] = field(default_factory=list)
    values: list[Column] = field(default_factory=list)

    def add(self, owners: I64, keys: Column | None, values: Column) -> None:
        self.owners.append(owners)
        self.values.append(values)
        if keys is not None:
            self.keys.append(keys)

    def items(self, count: int, node: Node) -> Items:
        if not self.owners:
            none = np.zeros(0, dtype=np.int64)
            nowhere = np.zeros(count, dtype=np.int64)
            return Items(nowhere, nowhere, Spans(none, none) if node.kind == "map" else None, empty(node.inside))
        owners = np.concatenate(self.owners)
        order = np.argsort(owners, kind="stable")
        length = np.bincount(owners, minlength=count).astype(np.int64)
        keys = joined(self.keys).take(order) if self.keys else None
        assert keys is None or isinstance(keys, Spans)
        return Items(np.cumsum(length) - length, length, keys, joined(self.values).take(order))


def empty(node: Node) -> Column:
    """Return a column of this type without values."""
    return _Sink(node).column()


def _block(data: Bytes, at: int) -> tuple[int, int]:
    """Return the number of items in a block, and the position of its first item. Raises ValueError."""
    count, at = _long(data, at)
    if count < 0:
        count = -count
        _, at = _long(data, at)
    if count > len(data) - at:
        raise ValueError(_CUT_OFF)
    return count, at


def _long(data: Bytes, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


_NUMBERS: dict[str, Any] = {"boolean": np.bool_, "float": np.float32, "double": np.float64}


class _Sink:
    """Reads values of one type, one after the other, and collects them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._first, self._second = list[Any](), list[int]()
        self._count = 0
        inside = [each.node for each in node.fields] or list(node.branches)
        self._inside = [_Sink(each) for each in inside]
        self._keys = _Sink(Node("string")) if node.kind == "map" else None

    def read(self, data: Bytes, at: int) -> int:
        """Read the value at position ``at``, and return the position after it. Raises ValueError, IndexError or
        struct.error."""
        node, self._count = self._node, self._count + 1
        match node.kind:
            case "record":
                for each in self._inside:
                    at = each.read(data, at)
                return at
            case "union":
                return self._read_branch(data, at)
            case "array" | "map":
                return self._read_items(data, at)
            case "null":
                return at
            case "bytes" | "string" | "fixed":
                length, at = (node.size, at) if node.kind == "fixed" else _long(data, at)
                if not 0 <= length <= len(data) - at:
                    raise ValueError(_CUT_OFF)
                self._first.append(at)
                self._second.append(length)
                return at + length
        return self._read_number(data, at)

    def _read_number(self, data: Bytes, at: int) -> int:
        node = self._node
        if layout := {"float": "<f", "double": "<d"}.get(node.kind):
            self._first.append(struct.unpack_from(layout, data, at)[0])
            return at + struct.calcsize(layout)
        if node.kind == "boolean":
            if data[at] > 1:
                raise ValueError("a boolean is neither 0 nor 1")
            self._first.append(data[at] == 1)
            return at + 1
        value, at = _long(data, at)
        most = {"int": _I32_MAX, "enum": len(node.symbols) - 1}.get(node.kind, value)
        least = {"int": _I32_MIN, "enum": 0}.get(node.kind, value)
        if not least <= value <= most:
            raise ValueError(f"a number is outside the range of {node.kind}")
        self._first.append(value)
        return at

    def _read_branch(self, data: Bytes, at: int) -> int:
        tag, at = _long(data, at)
        if not 0 <= tag < len(self._inside):
            raise ValueError("a union has no such branch")
        self._first.append(tag)
        self._second.append(self._inside[tag]._count)
        return self._inside[tag].read(data, at)

    def _read_items(self, data: Bytes, at: int) -> int:
        (values,) = self._inside
        self._first.append(values._count)
        total = 0
        while True:
            count, at = _block(data, at)
            if not count:
                self._second.append(total)
                return at
            total += count
            if values._count + count > VALUES_MAX // self._node.inside.count:
                raise TooManyValuesError(too_many())
            for _ in range(count):
                if self._keys is not None:
                    at = self._keys.read(data, at)
                at = values.read(data, at)

    def column(self) -> Column:
        """Return the collected values."""
        first, second = self._first, np.array(self._second, dtype=np.int64)
        match self._node.kind:
            case "null":
                return Nulls(self._count)
            case "record":
                return Record(self._count, [each.column() for each in self._inside])
            case "bytes" | "string" | "fixed":
                return Spans(np.array(first, dtype=np.int64), second)
            case "union":
                branches = [each.column() if each._count else None for each in self._inside]
                return Union(np.array(first, dtype=np.int64), second, branches)
            case "array" | "map":
                keys = None if self._keys is None else self._keys.column()
                assert keys is None or isinstance(keys, Spans)
                return Items(np.array(first, dtype=np.int64), second, keys, self._inside[0].column())
        return Numbers(np.array(first, dtype=_NUMBERS.get(self._node.kind, np.int64)))
