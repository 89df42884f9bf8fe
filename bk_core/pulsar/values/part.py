# SPDX-License-Identifier: Apache-2.0
"""Defines the interface of the decoders of values. A *part* is the bytes that one schema describes: the value of a
message, or the key or the value of a KEY_VALUE schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import I64, U8

NO_VERSION, BAD_VERSION = -1, -2
"""The schema version of a message that names no version, and of a message whose version is not a number."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of some values in ``data``, none of them null. ``version`` has the schema version of each value."""

    data: U8
    begin: I64
    length: I64
    version: I64

    def __len__(self) -> int:
        return int(self.begin.size)

    def take(self, at: I64) -> Places:
        return Places(self.data, self.begin[at], self.length[at], self.version[at])


@dataclass(slots=True)
class Part:
    """Decoded values. ``columns`` has the columns by name, each with one item for each value. ``problems`` has, by the
    index of the value, the reason why it cannot be decoded. The items of such a value are arbitrary."""

    columns: Mapping[str, pa.Array]
    problems: dict[int, str] = field(default_factory=dict)


class PartReader(Protocol):
    """Decodes values by one schema. ``columns`` has the names and types of the columns. A schema that is not a record
    has the one column ``value``."""

    @property
    def columns(self) -> Mapping[str, pa.DataType]: ...

    @property
    def is_record(self) -> bool: ...

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        """Return the wanted columns. Raises no error for bad values. Raises TooManyValuesError only for more than one
        value."""
        ...


def complain(problems: dict[int, str], which: np.typing.NDArray[np.bool_], why: str) -> None:
    """Record a reason for each index that ``which`` marks, unless it has one."""
    for place in np.flatnonzero(which).tolist():
        problems.setdefault(place, why)


def spread(values: pa.Array, at: I64, count: int) -> pa.Array:
    """Return an array of ``count`` values. Value ``at[k]`` is value k of ``values``, and the others are null."""
    if at.size == count and bool((at == np.arange(count)).all()):
        return values
    index = np.full(count, -1, dtype=np.int64)
    index[at] = np.arange(at.size)
    return values.take(pa.array(np.maximum(index, 0), mask=index < 0))
