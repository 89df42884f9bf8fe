# SPDX-License-Identifier: Apache-2.0
"""Defines the columns of values that were found in a buffer but are not Arrow arrays yet.

They consist of numbers, of positions of bytes, and of other columns. All of them are numpy arrays, so selecting and
joining copies numbers only. Arrow copies the bytes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64


@dataclass(slots=True)
class Numbers:
    """Numbers or booleans."""

    values: npt.NDArray[Any]

    def __len__(self) -> int:
        return int(self.values.size)

    def take(self, at: I64) -> Numbers:
        return Numbers(self.values[at])


@dataclass(slots=True)
class Spans:
    """Texts or bytes, given by their positions and lengths in the buffer."""

    begin: I64
    length: I64

    def __len__(self) -> int:
        return int(self.begin.size)

    def take(self, at: I64) -> Spans:
        return Spans(self.begin[at], self.length[at])


@dataclass(slots=True)
class Nulls:
    """Values of the type null."""

    count: int

    def __len__(self) -> int:
        return self.count

    def take(self, at: I64) -> Nulls:
        return Nulls(int(at.size))


@dataclass(slots=True)
class Record:
    """Records. Each column in ``fields`` has one value for each record."""

    count: int
    fields: list[Column]

    def __len__(self) -> int:
        return self.count

    def take(self, at: I64) -> Record:
        return Record(int(at.size), [each.take(at) for each in self.fields])


@dataclass(slots=True)
class Items:
    """Arrays, or maps if there are ``keys``. Value k has ``length[k]`` items, from item ``begin[k]`` on."""

    begin: I64
    length: I64
    keys: Spans | None
    items: Column

    def __len__(self) -> int:
        return int(self.begin.size)

    def take(self, at: I64) -> Items:
        return Items(self.begin[at], self.length[at], self.keys, self.items)

    def places(self) -> I64:
        """Return the indices of the items of all values, in order."""
        ends = np.cumsum(self.length)
        total = int(ends[-1]) if ends.size else 0
        return np.arange(total) + np.repeat(self.begin - ends + self.length, self.length)


@dataclass(slots=True)
class Union:
    """Values of a union. Value k is value ``place[k]`` of branch ``tag[k]``. A branch that no value has is None."""

    tag: I64
    place: I64
    branches: list[Column | None]

    def __len__(self) -> int:
        return int(self.tag.size)

    def take(self, at: I64) -> Union:
        return Union(self.tag[at], self.place[at], self.branches)


Column: TypeAlias = Numbers | Spans | Nulls | Record | Items | Union


AnyColumn = TypeVar("AnyColumn", Numbers, Spans, Nulls, Record, Items, Union)


def joined(pieces: Sequence[Column]) -> Column:
    """Return the values of all pieces as one column. The pieces must be of the same type."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    match first:
        case Numbers():
            return Numbers(np.concatenate([each.values for each in _of(Numbers, pieces)]))
        case Spans():
            return _spans(_of(Spans, pieces))
        case Nulls():
            return Nulls(sum(map(len, pieces)))
        case Record():
            inside = [each.fields for each in _of(Record, pieces)]
            return Record(sum(map(len, pieces)), [joined(part) for part in zip(*inside, strict=True)])
        case Items():
            return _items(_of(Items, pieces))
    return _union(_of(Union, pieces))


def _of(kind: type[AnyColumn], pieces: Sequence[Column]) -> list[AnyColumn]:
    """Return the pieces as a list of this class. Raises TypeError if a piece is of another class, which is a bug."""
    found = [each for each in pieces if isinstance(each, kind)]
    if len(found) != len(pieces):
        raise TypeError(f"pieces of several kinds: {[type(each).__name__ for each in pieces]}")
    return found


def _spans(pieces: Sequence[Spans]) -> Spans:
    return Spans(np.concatenate([each.begin for each in pieces]), np.concatenate([each.length for each in pieces]))


def _items(pieces: Sequence[Items]) -> Items:
    shifts = np.cumsum([0, *(len(each.items) for each in pieces)])
    begin = np.concatenate([each.begin + shift for each, shift in zip(pieces, shifts[:-1], strict=True)])
    keys = None if pieces[0].keys is None else _spans([each.keys for each in pieces if each.keys is not None])
    return Items(begin, np.concatenate([each.length for each in pieces]), keys, joined([each.items for each in pieces]))


def _union(pieces: Sequence[Union]) -> Union:
    branches = list[Column | None]()
    places = [each.place.copy() for each in pieces]
    for tag, parts in enumerate(zip(*(each.branches for each in pieces), strict=True)):
        shift = 0
        for place, piece, part in zip(places, pieces, parts, strict=True):
            if part is not None:
                place[piece.tag == tag] += shift
                shift += len(part)
        found = [part for part in parts if part is not None]
        branches.append(joined(found) if found else None)
    return Union(np.concatenate([each.tag for each in pieces]), np.concatenate(places), branches)
