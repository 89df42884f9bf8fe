# SPDX-License-Identifier: Apache-2.0
"""Values in a buffer, as readers of values take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bk_core.pulsar.values.part import NO_VERSION, Part, PartReader, Places


def places(values: Sequence[bytes], versions: Sequence[int] | None = None) -> Places:
    """Return the places of values that lie one after the other, with other bytes around them."""
    length = np.array([len(each) for each in values], dtype=np.int64)
    ends = np.cumsum(length) + 3
    version = np.array([NO_VERSION] * len(values) if versions is None else versions, dtype=np.int64)
    data = np.frombuffer(b"..." + b"".join(values) + b"...", dtype=np.uint8)
    return Places(data, ends - length, length, version)


def read(reader: PartReader, values: Sequence[bytes], versions: Sequence[int] | None = None) -> Part:
    """Read all columns, whose types and lengths must be those of the reader."""
    part = reader.read(places(values, versions), frozenset(reader.columns))
    for name, kind in reader.columns.items():
        assert part.columns[name].type == kind
        assert len(part.columns[name]) == len(values)
        part.columns[name].validate(full=True)
    return part


def rows(reader: PartReader, values: Sequence[bytes], versions: Sequence[int] | None = None) -> list[Any]:
    """Return the rows, ``bad`` for a value that cannot be decoded."""
    part = read(reader, values, versions)
    found = pa.table(dict(part.columns)).to_pylist()
    return ["bad" if place in part.problems else row for place, row in enumerate(found)]


def column(reader: PartReader, values: Sequence[bytes]) -> list[Any]:
    """Return the rows of a reader with the one column ``value``."""
    return [row if row == "bad" else row["value"] for row in rows(reader, values)]
