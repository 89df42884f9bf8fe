# SPDX-License-Identifier: Apache-2.0
"""Decodes KEY_VALUE schemas, which consist of two schemas, into the columns ``key`` and ``value``.

With INLINE, the value of a message is the i32 length of the key, the key, the i32 length of the value, and the value.
The length −1 means null. With SEPARATED, the key is the key of the message, and the value is its value. The definition
of the schema has the definitions of both schemas, encoded like an inline value. Its properties have the types of both.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import I64
from bk_core.pulsar.messages.rows import VALUE
from bk_core.pulsar.model.schemas import TopicSchema
from bk_core.pulsar.values.avro.schema import SchemaError
from bk_core.pulsar.values.part import Part, PartReader, Places, complain, spread

KEY = "key"
SEPARATED = "SEPARATED"
_I32 = struct.Struct(">i")


def parts_of(schema: TopicSchema) -> tuple[TopicSchema, TopicSchema, bool]:
    """Return the schema of the key, the schema of the value, and whether the encoding is SEPARATED. Raises
    SchemaError."""
    properties, at, found = dict(schema.properties), 0, list[TopicSchema]()
    for name in (KEY, VALUE):
        kind = properties.get(f"{name}.schema.type", "").replace("_", "").upper()
        if not kind or at + _I32.size > len(schema.definition):
            raise SchemaError(f"it has no schema of its {name}")
        (size,) = _I32.unpack_from(schema.definition, at)
        at += _I32.size
        if size > len(schema.definition) - at:
            raise SchemaError(f"the schema of its {name} is cut off")
        definition = schema.definition[at : at + max(0, size)]
        found.append(TopicSchema(schema.version, kind, definition, schema.deleted))
        at += max(0, size)
    return found[0], found[1], properties.get("kv.encoding.type", "").upper() == SEPARATED


@dataclass(frozen=True, slots=True)
class KeyValueReader:
    """Decodes inline values or, with ``is_separated``, keys and values of messages. Records become structs, because key
    and value may have fields of the same name."""

    key: PartReader
    value: PartReader
    is_separated: bool

    @property
    def is_record(self) -> bool:
        return True

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return {KEY: whole_type(self.key), VALUE: whole_type(self.value)}

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        """Return the columns of inline values, and the reasons for bad values."""
        problems = dict[int, str]()
        end = places.begin + places.length
        key_at, key_size = self._size(places, places.begin, end)
        complain(problems, (key_size < -1) | (key_size > end - key_at), "the length of its key is wrong")
        key_size = np.where((key_size < -1) | (key_size > end - key_at), -1, key_size)
        value_at, value_size = self._size(places, key_at + np.maximum(key_size, 0), end)
        wrong = (value_size < -1) | (value_at + np.maximum(value_size, 0) != end)
        complain(problems, wrong, "the length of its value is wrong")
        value_size = np.where(wrong, -1, value_size)
        key = of_part(self.key, Places(places.data, key_at, key_size, places.version), problems, "key")
        value = of_part(self.value, Places(places.data, value_at, value_size, places.version), problems, "value")
        return Part({KEY: key, VALUE: value}, problems)

    def _size(self, places: Places, at: I64, end: I64) -> tuple[I64, I64]:
        """Return the positions after the i32 lengths at ``at``, and the lengths. The length is −2 if it is cut off."""
        raw = np.ascontiguousarray(places.data.take(at[:, None] + np.arange(_I32.size), mode="clip"))
        size = raw.view(">i4")[:, 0].astype(np.int64)
        cut = at + _I32.size > end
        return np.minimum(at + _I32.size, end), np.where(cut, -2, size)


def whole_type(reader: PartReader) -> pa.DataType:
    """Return the Arrow type of a key or a value as one column."""
    columns = reader.columns
    return pa.struct(list(columns.items())) if reader.is_record else columns[VALUE]


def of_part(reader: PartReader, places: Places, problems: dict[int, str], title: str) -> pa.Array:
    """Return the key or the value at each place as one column, with null for a negative length. Adds the reasons for
    bad values to ``problems``. ``title`` names the part in these reasons."""
    there = np.flatnonzero(places.length >= 0)
    part = reader.read(places.take(there), frozenset(reader.columns))
    for place, why in part.problems.items():
        problems.setdefault(int(there[place]), f"its {title}: {why}")
    kind = whole_type(reader)
    if not reader.is_record:
        found = part.columns[VALUE]
    elif part.columns:
        found = pa.StructArray.from_arrays([part.columns[name] for name in reader.columns], fields=list(kind))
    else:
        found = pa.array([{}] * there.size, kind)
    return spread(found, there, len(places))
