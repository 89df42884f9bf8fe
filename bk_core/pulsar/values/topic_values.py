# SPDX-License-Identifier: Apache-2.0
"""Decodes the values of a topic's messages by the versions of its schema (decision record 0077).

The columns are those of one version, by default the version that is the newest when the read begins. The fields of a
record are columns, a KEY_VALUE schema has the columns ``key`` and ``value``, and any other schema has the column
``value``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import I64
from bk_core.errors import UnsupportedTopicError
from bk_core.pulsar.messages import heads
from bk_core.pulsar.messages.decoder import Messages
from bk_core.pulsar.messages.heads import Heads
from bk_core.pulsar.messages.rows import TYPES, VALUE, keys_of
from bk_core.pulsar.model.schemas import TopicSchema, TopicSchemas
from bk_core.pulsar.values import primitives
from bk_core.pulsar.values.avro import schema as avro_schema
from bk_core.pulsar.values.avro.reader import AvroReader
from bk_core.pulsar.values.avro.schema import Node, SchemaError
from bk_core.pulsar.values.json_values import JsonReader
from bk_core.pulsar.values.key_value import KEY, KeyValueReader, of_part, parts_of
from bk_core.pulsar.values.part import BAD_VERSION, NO_VERSION, PartReader, Places, complain, spread
from bk_core.pulsar.values.primitives import PrimitiveReader
from bk_core.pulsar.values.protobuf_values import ProtobufReader

_AS_BYTES = "read its values as bytes"
_VERSION_BYTES = 8


class TopicValues:
    """Decodes the values of one topic. The constructor raises UnsupportedTopicError, which names the topic and the
    type, for a schema that cannot become columns."""

    def __init__(self, schemas: TopicSchemas) -> None:
        self.schemas = schemas
        schema = schemas.schema
        try:
            self._reader = _reader(schema, [each for each in schemas.versions if not each.deleted])
            self._forms = {each.version: _form(each) for each in schemas.versions if not each.deleted}
        except SchemaError as error:
            raise UnsupportedTopicError(
                f"the schema of {schemas.topic} cannot become columns",
                value=f"version {schema.version}, of type {schema.kind}: {error}",
                remedy=_AS_BYTES,
            ) from error
        self.columns: Mapping[str, pa.DataType] = self._reader.columns
        if taken := [name for name in self.columns if name in TYPES and name != VALUE]:
            raise UnsupportedTopicError(
                f"fields of the schema of {schemas.topic} have the names of columns of messages",
                value=", ".join(taken),
                remedy=_AS_BYTES,
            )

    def unknown(self, found: Heads) -> set[int]:
        """Return the versions of the schema that these entries need and that ``schemas`` does not have."""
        versions = set(np.unique(versions_of(found)).tolist())
        return {each for each in versions if each >= 0} - {each.version for each in self.schemas.versions}

    def decode(self, found: Messages, wanted: frozenset[str]) -> tuple[Mapping[str, pa.Array], Mapping[int, str]]:
        """Return the wanted columns, in which a null value is null. Also return, by the index of the message, the
        reason why its value cannot be decoded."""
        version = versions_of(found.heads)[found.columns.entry]
        begin, length = found.columns.value
        problems = self._wrong_versions(version)
        places = Places(found.data, begin, _without(length, problems), version)
        if isinstance(self._reader, KeyValueReader) and self._reader.is_separated:
            return self._separated(found, self._reader, places, problems)
        there = np.flatnonzero(places.length >= 0)
        part = self._reader.read(places.take(there), wanted)
        for place, why in part.problems.items():
            problems[int(there[place])] = why
        return {name: spread(column, there, len(places)) for name, column in part.columns.items()}, problems

    def _separated(
        self, found: Messages, reader: KeyValueReader, places: Places, problems: dict[int, str]
    ) -> tuple[Mapping[str, pa.Array], Mapping[int, str]]:
        decoded, bad = keys_of(found)
        for place, why in bad.items():
            problems.setdefault(place, f"its key is not valid base64: {why}")
        keys = _places_of(decoded, places.version)
        keys = Places(keys.data, keys.begin, _without(keys.length, problems), keys.version)
        return {
            KEY: of_part(reader.key, keys, problems, KEY),
            VALUE: of_part(reader.value, places, problems, VALUE),
        }, problems

    def _wrong_versions(self, version: I64) -> dict[int, str]:
        """Return, by the index of the message, the reason why values of its version cannot be decoded."""
        problems, form = dict[int, str](), self._forms[self.schemas.version]
        for each in np.unique(version).tolist():
            if each == NO_VERSION or self._forms.get(each) == form:
                continue
            if each == BAD_VERSION:
                why = "its schema version is not a number of 8 bytes"
            elif each not in self._forms:
                why = f"its schema version {each} is not known"
            else:
                why = f"its schema version {each} is of type {self._forms[each]}, and that of the read is {form}"
            complain(problems, version == each, why)
        return problems


def versions_of(found: Heads) -> I64:
    """Return the schema version of each entry. It is NO_VERSION if the entry names none, and BAD_VERSION if it is not a
    number."""
    begin, length = found.metadata.span(heads.SCHEMA_VERSION)
    raw = np.ascontiguousarray(found.data.take(begin[:, None] + np.arange(_VERSION_BYTES), mode="clip"))
    number = raw.view(">i8")[:, 0].astype(np.int64)
    is_number = (length == _VERSION_BYTES) & (number >= 0)
    return np.where(is_number, number, np.where(length <= 0, NO_VERSION, BAD_VERSION))


def _without(length: I64, problems: Mapping[int, str]) -> I64:
    """Return the lengths, with −1 (null) for each message that has a problem."""
    if not problems:
        return length
    kept = length.copy()
    kept[list(problems)] = -1
    return kept


def _places_of(values: pa.Array, version: I64) -> Places:
    """Return the places of the values of a binary array."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    length = np.where(values.is_valid().to_numpy(zero_copy_only=False), bounds[1:] - bounds[:-1], -1)
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(1, dtype=np.uint8)
    return Places(raw, bounds[:-1], length, version)


# --- readers ---------------------------------------------------------------------------------------------------------


def _form(schema: TopicSchema) -> str:
    """Return the type of a schema. For KEY_VALUE, it includes the types of key and value. Versions with the same result
    have values that are decoded alike."""
    if schema.kind != "KEYVALUE":
        return schema.kind
    try:
        key, value, is_separated = parts_of(schema)
    except SchemaError:
        return schema.kind
    return f"KEYVALUE of {key.kind} and {value.kind}, {'separated' if is_separated else 'inline'}"


def _reader(schema: TopicSchema, versions: Sequence[TopicSchema]) -> PartReader:
    if schema.kind != "KEYVALUE":
        return _single(schema, versions, lambda each: each)
    key, value, is_separated = parts_of(schema)
    return KeyValueReader(
        _single(key, versions, lambda each: parts_of(each)[0]),
        _single(value, versions, lambda each: parts_of(each)[1]),
        is_separated,
    )


def _single(
    schema: TopicSchema, versions: Sequence[TopicSchema], part: Callable[[TopicSchema], TopicSchema]
) -> PartReader:
    """Return the decoder of one part, such as the key. ``part`` returns the same part of another version of the schema.
    Raises SchemaError."""
    match schema.kind:
        case "AVRO":
            return AvroReader(avro_schema.parse(schema.definition), _writers(versions, part))
        case "JSON":
            return JsonReader(avro_schema.parse(schema.definition))
        case "PROTOBUFNATIVE":
            return ProtobufReader(schema.definition)
    if schema.kind in primitives.NAMES:
        return PrimitiveReader(schema.kind)
    raise SchemaError(f"values of type {schema.kind} cannot be decoded")


def _writers(versions: Sequence[TopicSchema], part: Callable[[TopicSchema], TopicSchema]) -> Mapping[int, Node | str]:
    found = dict[int, Node | str]()
    for each in versions:
        try:
            if each.kind in ("AVRO", "KEYVALUE"):
                found[each.version] = avro_schema.parse(part(each).definition)
        except SchemaError as error:
            found[each.version] = f"its schema version {each.version} cannot be read: {error}"
    return found
