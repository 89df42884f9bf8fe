# SPDX-License-Identifier: Apache-2.0
"""The interface of readers of values. A *part* is what one schema describes: the value of a message, or the key or
the value of a KEY_VALUE schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import I64, U8

NO_VERSION, BAD_VERSION = -1, -2
"""Stand for the schema version of a message without one, and of a message whose version is not a number."""


@dataclass(frozen=True, slots=True)
class Places:
    """The bytes of some values, none of them null. ``version`` is the number of each value's schema version."""

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
    """Decoded values: ``columns`` by name, each as long as the values. ``problems`` gives, by place, the reason why a
    value cannot be decoded; its columns then hold anything."""

    columns: Mapping[str, pa.Array]
    problems: dict[int, str] = field(default_factory=dict)


class PartReader(Protocol):
    """Decodes values by one schema. ``columns`` has the types; a schema that is not a record has the one column
    ``value``."""

    @property
    def columns(self) -> Mapping[str, pa.DataType]: ...

    @property
    def is_record(self) -> bool: ...

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        """Return the wanted columns. Raises nothing for bad values, and TooManyValuesError only for several."""
        ...


def complain(problems: dict[int, str], which: np.typing.NDArray[np.bool_], why: str) -> None:
    """Note a reason for each place that ``which`` marks, unless it has one."""
    for place in np.flatnonzero(which).tolist():
        problems.setdefault(place, why)


def spread(values: pa.Array, at: I64, count: int) -> pa.Array:
    """Return ``count`` values, of which number ``at[k]`` is value k of the array, and the others are null."""
    if at.size == count and bool((at == np.arange(count)).all()):
        return values
    index = np.full(count, -1, dtype=np.int64)
    index[at] = np.arange(at.size)
    return values.take(pa.array(np.maximum(index, 0), mask=index < 0))
