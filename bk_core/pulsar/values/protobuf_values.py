# SPDX-License-Identifier: Apache-2.0
"""Decodes values of PROTOBUF_NATIVE schemas, whose definition is JSON with protobuf descriptors.

All values are decoded with the version of the columns, because protobuf identifies fields by number and ignores unknown
fields. protobuf's library decodes each value into a dynamic message, so Python code runs once for each value and field.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from bk_core.pulsar.messages.rows import TooManyValuesError
from bk_core.pulsar.values.avro.schema import BYTES_MAX, DEPTH_MAX, NODES_MAX, SchemaError
from bk_core.pulsar.values.limits import OBJECTS_MAX, VALUES_MAX, too_many
from bk_core.pulsar.values.part import Part, Places
from bk_core.pulsar.values.protobuf_counts import Counter, is_repeated

_SCALARS: Mapping[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
"""The Arrow types of protobuf's scalar types. Spark has no unsigned numbers, so these become the next larger type."""


def descriptor_of(definition: bytes) -> Descriptor:
    """Return the descriptor of the root message. Raises SchemaError for a definition that is invalid, recursive, or too
    large."""
    if len(definition) > BYTES_MAX:
        raise SchemaError(f"it has {len(definition)} bytes, more than {BYTES_MAX}")
    try:
        data = json.loads(definition)
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(data["fileDescriptorSet"]))
        pool, by_name = descriptor_pool.DescriptorPool(), {each.name: each for each in files.file}
        imports = {name: [each for each in file.dependency if each in by_name] for name, file in by_name.items()}
        for name in TopologicalSorter(imports).static_order():
            pool.AddSerializedFile(by_name[name].SerializeToString())
        root = pool.FindMessageTypeByName(data["rootMessageTypeName"])
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise SchemaError(f"it has no protobuf descriptors: {str(error)[:200]}") from error
    _check(root, ())
    return root


def _check(message: Descriptor, above: tuple[str, ...]) -> int:
    """Return the number of types in a message. Raises SchemaError if it is recursive or too large."""
    if message.full_name in above:
        raise SchemaError(f"message {message.full_name} contains itself, which columns cannot hold")
    if len(above) >= DEPTH_MAX:
        raise SchemaError(f"its messages are nested more than {DEPTH_MAX} deep")
    count = 1
    for each in message.fields:
        count += 1 if each.message_type is None else _check(each.message_type, (*above, message.full_name))
        if count > NODES_MAX:
            raise SchemaError(f"it has more than {NODES_MAX} types")
    return count


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the message type of a map's entries, or None if the field is not a map."""
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None


def _single_type(field: FieldDescriptor) -> pa.DataType:
    if field.message_type is not None:
        return pa.struct([pa.field(each.name, arrow_type(each)) for each in field.message_type.fields])
    return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type]


def arrow_type(field: FieldDescriptor) -> pa.DataType:
    """Return the Arrow type of a field."""
    if (entry := _map_entry(field)) is not None:
        return pa.map_(*(_single_type(entry.fields_by_name[each]) for each in ("key", "value")))
    return pa.list_(_single_type(field)) if is_repeated(field) else _single_type(field)


Get = Callable[[Any], Any]


def _may_fail(field: FieldDescriptor) -> bool:
    """Return whether a parsed field may have values that cannot be read. protobuf parses proto2 maps whose keys are not
    UTF-8, and then cannot look the keys up. A message with such a map is bad, even if the read does not want the
    field."""
    entry = _map_entry(field)
    has_texts = entry is not None and entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
    return has_texts or (field.message_type is not None and any(map(_may_fail, field.message_type.fields)))


def _single(field: FieldDescriptor) -> Get:
    """Return a function that converts one value of a field."""
    if field.message_type is not None:
        return _members(field.message_type)
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return _text if field.type == FieldDescriptor.TYPE_STRING else lambda value: value


def _text(value: str | bytes) -> str:
    """Return a text. In proto2, protobuf returns bytes for a text that is not UTF-8. Their wrong bytes become
    replacement characters, as in Java."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _getter(field: FieldDescriptor) -> Get:
    """Return a function that gets a field of a message and converts it. For a field with presence, the result is null
    if the field is not set."""
    name = field.name
    if (entry := _map_entry(field)) is not None:
        convert = _single(entry.fields_by_name["value"])
        return lambda message: [(key, convert(value)) for key, value in getattr(message, name).items()]
    convert = _single(field)
    if is_repeated(field):
        return lambda message: [convert(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _members(message: Descriptor) -> Get:
    getters = [(each.name, _getter(each)) for each in message.fields]
    return lambda value: {name: get(value) for name, get in getters}


@dataclass(slots=True)
class ProtobufReader:
    """Decodes values of one PROTOBUF_NATIVE schema, given as its definition. The constructor raises SchemaError."""

    definition: bytes
    _root: Descriptor = field(init=False, repr=False)
    _message: type[Message] = field(init=False, repr=False)
    _counter: Counter = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._root = descriptor_of(self.definition)
        self._message = message_factory.GetMessageClass(self._root)
        self._counter = Counter(self._root)

    @property
    def is_record(self) -> bool:
        return True

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return {each.name: arrow_type(each) for each in self._root.fields}

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        if (why := self._too_much(places)) is not None:
            return Part({name: pa.nulls(1, kind) for name, kind in self.columns.items() if name in wanted}, {0: why})
        problems, view = dict[int, str](), places.data.data
        made = [each for each in self._root.fields if each.name in wanted or _may_fail(each)]
        getters = {each.name: _getter(each) for each in made}
        empty = _members(self._root)(self._message())
        found = list[Mapping[str, Any]]()
        for place, (begin, length) in enumerate(zip(places.begin.tolist(), places.length.tolist(), strict=True)):
            try:
                message = self._message.FromString(bytes(view[begin : begin + length]))
                found.append({name: get(message) for name, get in getters.items()})
            except (DecodeError, ValueError, RecursionError) as error:
                problems[place] = f"it is no {self._root.full_name}: {str(error)[:200]}"
                found.append(empty)
        kinds = self.columns
        return Part({name: pa.array([row[name] for row in found], kinds[name]) for name in getters}, problems)

    def _too_much(self, places: Places) -> str | None:
        """Return why the only value cannot be decoded, if it has too many values inside. Raises TooManyValuesError if
        several may have more than OBJECTS_MAX together."""
        if self._counter.values_at_most(int(places.length.sum())) <= OBJECTS_MAX:
            return None
        if len(places) > 1:
            raise TooManyValuesError(too_many())
        begin, length = int(places.begin[0]), int(places.length[0])
        data = places.data.data[begin : begin + length]
        return too_many() if self._counter.values(data, VALUES_MAX) > VALUES_MAX else None
