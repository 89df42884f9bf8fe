# SPDX-License-Identifier: Apache-2.0
"""Reads entries that are JSON objects. Each entry becomes one row.

Theory. Arrow parses a block of many objects in one call. But it reports neither the entry that a row came from, nor
whether an entry had two objects. So each entry is wrapped in an object, ``{"v":<entry>}``, on a separate line. If a
line is not such an object, the whole block fails, because a string cannot contain a line feed and no structure can
continue after two adjacent objects. An entry without an error gives at least one row. So if the number of rows is the
number of entries, each entry gave one row. After an error each entry of the block is checked quickly
(:mod:`bk_core.columns.json.suspects`). Then the remaining entries are halved until each entry with an error is alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from bk_core.columns.json import numbers as json_numbers
from bk_core.columns.json import suspects as json_suspects
from bk_core.entries.batch import EntryBatch

if TYPE_CHECKING:
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

_ERRORS = (pa.ArrowException, ValueError)


class Objects(NamedTuple):
    """Entries as structs. ``bad`` marks the entries that are not objects of the type, and is None if there are no such
    entries. Their structs are null. ``why`` returns the reason for the entry at an index."""

    structs: pa.Array
    bad: Mask | None = None
    why: Callable[[int], str] = str


def objects_of(batch: EntryBatch, kind: pa.StructType) -> Objects:
    """Parse all entries. Members that ``kind`` does not name are ignored, and missing members become null."""
    return objects_in(batch.to_arrow(), kind)


def objects_in(values: pa.Array, kind: pa.StructType) -> Objects:
    """Parse the texts of a binary array without nulls, as :func:`objects_of` does."""
    try:
        return Objects(parse(values, kind))
    except _ERRORS:
        unquoted = json_numbers.unquoted(values, kind)
    if unquoted is not None:
        values = unquoted
        with suppress(*_ERRORS):
            return Objects(parse(values, kind))
    bad = json_suspects.implausible(values.to_pylist(), kind)
    good = np.flatnonzero(~bad)
    parsed, wrong = _halved(values.take(pa.array(good)), kind)
    bad[good[wrong]] = True
    places = np.cumsum(~bad) - 1
    found = parsed.take(pa.array(places, mask=bad))
    return Objects(found, bad, lambda place: _why(values.slice(place, 1), kind))


def _halved(values: pa.Array, kind: pa.StructType) -> tuple[pa.Array, list[int]]:
    """Return the entries that are objects as structs, and the indices of the other entries. They are found by halving
    the block after each error."""
    pieces: list[pa.Array] = [pa.nulls(0, kind)]
    wrong: list[int] = []
    todo = [(0, len(values))]
    while todo:
        start, stop = todo.pop()
        try:
            pieces.append(parse(values.slice(start, stop - start), kind))
        except _ERRORS:
            middle = (start + stop) // 2
            if middle > start:
                todo += [(middle, stop), (start, middle)]
            else:
                wrong.append(start)
    return pa.concat_arrays(pieces), wrong


def _why(value: pa.Array, kind: pa.StructType) -> str:
    try:
        parse(value, kind)
    except _ERRORS as error:
        return str(error)
    raise AssertionError("an entry was rejected that is a JSON object")


def parse(values: pa.Array, kind: pa.StructType) -> pa.Array:
    """Return all entries of a binary array as structs. Raises ArrowInvalid or ValueError if an entry is not an object
    of the type."""
    if not len(values):
        return pa.nulls(0, kind)
    text = values.cast(pa.string())  # the cast checks that it is UTF-8, which the parser does not
    wrapped = pc.binary_join_element_wise('{"v":', text, "}\n", "")
    _, offsets, data = wrapped.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)
    block = data.slice(int(ends[wrapped.offset]), int(ends[wrapped.offset + len(wrapped)] - ends[wrapped.offset]))
    table = pj.read_json(
        pa.BufferReader(block),
        read_options=pj.ReadOptions(use_threads=False, block_size=block.size + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([pa.field("v", _parsed_as(kind))]), unexpected_field_behavior="ignore"
        ),
    )
    found = table.column("v").combine_chunks()
    if len(found) != len(values) or found.null_count:
        raise ValueError("not one JSON object")
    return found if found.type == kind else found.cast(kind)


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """Return the type to give to Arrow's parser. It has text in place of dates, because the parser would also accept
    numbers of days as dates. The text is cast to dates afterwards."""
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return pa.struct([field.with_type(_parsed_as(field.type)) for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_parsed_as(kind.value_type)))
    return pa.string() if pa.types.is_date32(kind) else kind
