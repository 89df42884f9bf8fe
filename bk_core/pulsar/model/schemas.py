# SPDX-License-Identifier: Apache-2.0
"""Decodes the schemas of topics. A record lists the versions of a schema, and an entry has the schema of one
version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from google.protobuf.message import DecodeError

from bk_core.errors import InvalidArgumentError, MetadataCorruptError, NoSchemaError
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.proto import managed_ledger_pb2 as proto

SchemaChoice: TypeAlias = Literal["bytes", "latest"] | int
"""The form of values in a read. ``bytes`` leaves them as bytes. ``latest`` makes columns of the newest version of the
topic's schema, and a number makes columns of the version with that number."""
BYTES: Final = "bytes"
LATEST: Final = "latest"
TYPES = {
    1: "NONE",
    2: "STRING",
    3: "JSON",
    4: "PROTOBUF",
    5: "AVRO",
    6: "BOOLEAN",
    7: "INT8",
    8: "INT16",
    9: "INT32",
    10: "INT64",
    11: "FLOAT",
    12: "DOUBLE",
    13: "DATE",
    14: "TIME",
    15: "TIMESTAMP",
    16: "KEYVALUE",
    17: "INSTANT",
    18: "LOCALDATE",
    19: "LOCALTIME",
    20: "LOCALDATETIME",
    21: "PROTOBUFNATIVE",
    22: "EXTERNAL",
}
"""The types of schemas by their numbers in stored schemas. These numbers are one higher than on Pulsar's wire."""


def version_of(topic_schema: object) -> int | None:
    """Return the version that a :data:`SchemaChoice` names, or None if it names none. Raises InvalidArgumentError for
    another value."""
    if topic_schema in (BYTES, LATEST):
        return None
    if isinstance(topic_schema, int) and not isinstance(topic_schema, bool) and topic_schema >= 0:
        return topic_schema
    raise InvalidArgumentError(
        "there is no such topic_schema",
        value=f"topic_schema={topic_schema!r}",
        remedy="choose bytes, latest, or the number of a version of the topic's schema",
    )


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The position of the entry that holds one version of a topic's schema."""

    version: int
    position: EntryPosition


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a schema. ``kind`` is one of the names in TYPES, or the number of an unknown type as text."""

    version: int
    kind: str
    definition: bytes
    deleted: bool = False
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """The versions of a topic's schema, for a read that decodes values. ``version`` is the version whose columns the
    read has. ``topic`` is the name without a partition."""

    topic: TopicName
    versions: tuple[TopicSchema, ...]
    version: int

    @classmethod
    def of(cls, topic: TopicName, versions: Sequence[TopicSchema], version: int | None = None) -> TopicSchemas:
        """Return the schemas for a read with the columns of ``version``, or of the newest version for None. Raises
        NoSchemaError if the topic has no schema, and InvalidArgumentError if it has no such version."""
        remedy = "read its values as bytes"
        if not versions:
            raise NoSchemaError(f"{topic} has no schema", remedy=remedy)
        newest = versions[-1]
        if version is None and newest.deleted:
            raise NoSchemaError(f"the schema of {topic} was deleted", value=f"version {newest.version}", remedy=remedy)
        found = [each.version for each in versions if not each.deleted]
        if version is not None and version not in found:
            raise InvalidArgumentError(
                f"the schema of {topic} has no version {version}",
                value=f"it has {', '.join(map(str, found)) or 'none'}",
                remedy="name one of these, or latest",
            )
        return cls(topic.whole, tuple(versions), newest.version if version is None else version)

    @property
    def schema(self) -> TopicSchema:
        """The version whose columns the read has."""
        return next(each for each in self.versions if each.version == self.version)


def schema_versions(path: str, data: bytes) -> tuple[SchemaVersion, ...]:
    """Return the versions that the record lists, in order, with the newest last. They do not include old versions that
    only entries list (:func:`decode_schema`). Raises MetadataCorruptError for a record that cannot be read."""
    try:
        record = proto.SchemaLocator.FromString(data)
    except DecodeError as error:
        raise _corrupt(path, str(error)) from error
    return _versions([*record.index, *([record.info] if record.HasField("info") else [])])


def decode_schema(where: str, version: int, entry: bytes) -> tuple[TopicSchema, tuple[SchemaVersion, ...]]:
    """Return the schema in an entry, and the versions that the entry lists. Raises MetadataCorruptError."""
    try:
        record = proto.SchemaEntry.FromString(entry)
        info = proto.SchemaInfo.FromString(record.schema_data)
    except DecodeError as error:
        raise _corrupt(where, str(error)) from error
    properties = tuple((_text(each.key), _text(each.value)) for each in info.props)
    kind = TYPES.get(info.type, str(info.type))
    return TopicSchema(version, kind, info.schema, info.deleted, properties), _versions(list(record.index))


def _versions(found: list[proto.SchemaIndexEntry]) -> tuple[SchemaVersion, ...]:
    by_version = {each.version: EntryPosition(each.position.ledger_id, each.position.entry_id) for each in found}
    return tuple(SchemaVersion(number, by_version[number]) for number in sorted(by_version))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _corrupt(where: str, why: str) -> MetadataCorruptError:
    return MetadataCorruptError(
        "a schema of Pulsar's cannot be read",
        value=f"{where}: {why}",
        remedy="read the topic without its schema: its values are bytes",
    )
