# SPDX-License-Identifier: Apache-2.0
"""Looks up the schemas of topics whose values become columns (``topicSchema``). Runs on the driver.

The columns of a query are fixed when Spark asks for them. Each plan then has, for each topic, all existing versions of
its schema, and the version whose columns the query has. That is the version that ``topicSchema`` or the checkpoint
names, or otherwise the newest version that has the query's columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from bk_core.client import BookKeeper
from bk_core.errors import BookKeeperError, InvalidArgumentError, NoSchemaError, UnsupportedTopicError
from bk_core.pulsar.cluster import PulsarCluster
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.lookup.schema_entries import read_schemas
from bk_core.pulsar.model.plan import PartitionPlan
from bk_core.pulsar.model.schemas import TopicSchema, TopicSchemas
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.values.topic_values import TopicValues
from bk_spark.codecs import spark_types
from bk_spark.errors import shown
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import TopicSelection
from bk_spark.topics.selecting import some_parts
from bk_spark.workers import clients

Columns = Mapping[str, pa.DataType]


class SchemaLookup:
    """Looks up the schemas of topics, and caches the versions that were read. ``columns`` are the columns that the
    query decodes, by name. ``version`` is the number that ``topicSchema`` gives, or None."""

    def __init__(self, bookkeeper: BookKeeper, password: bytes, columns: Columns, version: int | None) -> None:
        self._bookkeeper, self._password = bookkeeper, password
        self._columns, self._version = columns, version
        self._known = dict[TopicName, list[TopicSchema]]()

    @classmethod
    def for_query(cls, bookkeeper: BookKeeper, options: BkOptions, columns: Columns) -> SchemaLookup | None:
        """Return the object for a query that decodes these columns, or None if values stay bytes."""
        assert options.topics is not None
        if not options.topics.decodes:
            return None
        return cls(bookkeeper, options.ledger_password, columns, options.topics.schema_version)

    async def completed(
        self, nodes: PulsarNodes, plans: Sequence[PartitionPlan], recorded: Mapping[TopicName, int]
    ) -> list[PartitionPlan]:
        """Return the plans with the schemas of their topics. ``recorded`` has the versions that a checkpoint names.
        Call it after the ends are known, because a version is registered before the first message with it is sent. A
        topic without ranges to read needs no schema. Raises the errors of :meth:`of`."""
        topics = dict.fromkeys(plan.topic.whole for plan in plans if plan.ranges)
        found = {topic: await self.of(nodes, topic, recorded.get(topic)) for topic in topics}
        return [replace(plan, schemas=found.get(plan.topic.whole)) for plan in plans]

    async def of(self, nodes: PulsarNodes, topic: TopicName, recorded: int | None = None) -> TopicSchemas:
        """Return the schemas of a topic. ``recorded`` is the version that a checkpoint names. Raises NoSchemaError and
        UnsupportedTopicError. Raises InvalidArgumentError if the version that ``topicSchema`` or the checkpoint names
        does not have the columns of the query, or if none is named and no version has them."""
        whole = topic.whole
        known = self._known.get(whole, [])
        versions = self._known[whole] = await read_schemas(self._bookkeeper, nodes, whole, self._password, known)
        wanted = self._version if self._version is not None else recorded
        newest = TopicSchemas.of(whole, versions, wanted)
        if wanted is not None:
            self._check(newest, is_recorded=self._version is None)
            return newest
        return self._newest_that_fits(newest)

    def _newest_that_fits(self, newest: TopicSchemas) -> TopicSchemas:
        older = [each.version for each in newest.versions if each.version < newest.version and not each.deleted]
        for version in (newest.version, *reversed(older)):
            found = TopicSchemas(newest.topic, newest.versions, version)
            try:
                if not self._misfits(found):
                    return found
            except UnsupportedTopicError:
                if version == newest.version and not self._columns:
                    raise
        raise self._no_such_columns(newest)

    def _check(self, schemas: TopicSchemas, *, is_recorded: bool) -> None:
        if not self._misfits(schemas):
            return
        if not is_recorded:
            raise self._no_such_columns(schemas)
        raise InvalidArgumentError(
            f"the schema of {schemas.topic} has other columns than the one with which the checkpoint was made",
            value=f"the checkpoint has version {schemas.version}; {'; '.join(self._misfits(schemas))}",
            remedy=f"set topicSchema={schemas.version} to go on with its columns, or use another checkpointLocation",
        )

    def _no_such_columns(self, schemas: TopicSchemas) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the schema of {schemas.topic} does not have the columns of the query",
            value=f"version {schemas.version}: {'; '.join(self._misfits(schemas))}",
            remedy="load() again, or correct .schema(…)",
        )

    def _misfits(self, schemas: TopicSchemas) -> list[str]:
        """Return a text for each column of the query that a version of the schema does not have."""
        there = columns_of_values(schemas)
        found = list[str]()
        for name, kind in self._columns.items():
            if name not in there:
                found.append(f"no column {name}")
            elif (has := spark_types.name_of(there[name])) != spark_types.name_of(kind):
                found.append(f"{name} is {has}, not {spark_types.name_of(kind)}")
        return found


def columns_of_values(schemas: TopicSchemas) -> Columns:
    """Return the columns of a topic's values, with the types that Spark gets. Raises UnsupportedTopicError."""
    alone = replace(schemas, versions=(schemas.schema,))  # the columns do not depend on older versions
    return {name: in_spark(kind) for name, kind in TopicValues(alone).columns.items()}


def in_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark gets values of a type. Times of the day become numbers, and timestamps have
    microseconds."""
    types = pa.types
    if types.is_struct(kind):
        fields = (kind.field(place) for place in range(kind.num_fields))
        return pa.struct([each.with_type(in_spark(each.type)) for each in fields])
    if types.is_map(kind):
        return pa.map_(in_spark(kind.key_type), in_spark(kind.item_type))
    if types.is_list(kind):
        return pa.list_(in_spark(kind.value_type))
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_time(kind):
        return pa.int32() if types.is_time32(kind) else pa.int64()
    return pa.string() if types.is_null(kind) else kind


def default_columns(options: BkOptions) -> Columns:
    """Return the columns of the values of the selected topics. Raises NoSuchTopicError, NoSchemaError,
    UnsupportedTopicError, and InvalidArgumentError if two topics have different columns."""
    return clients.patiently(
        options, lambda bookkeeper: bookkeeper.begin(lambda inner: _default_columns(inner, options)).result()
    )


async def _default_columns(bookkeeper: BookKeeper, options: BkOptions) -> Columns:
    assert options.topics is not None
    assert isinstance(options.selection, TopicSelection)
    async with PulsarCluster(bookkeeper, options.topics.access(options.ledger_password)) as cluster:
        nodes = await cluster.nodes()
        parts = await asyncio.to_thread(some_parts, nodes, options.selection)
        lookup = SchemaLookup(bookkeeper, options.ledger_password, {}, options.topics.schema_version)
        found, missing = dict[TopicName, Columns](), list[BookKeeperError]()
        for topic in dict.fromkeys(each.whole for each in parts):
            try:
                found[topic] = columns_of_values(await lookup.of(nodes, topic))
            except NoSchemaError as error:  # an error only if messages of this topic are read
                missing.append(error)
    if not found:
        raise missing[0]
    _check_equal(found)
    return next(iter(found.values()))


def _check_equal(found: Mapping[TopicName, Columns]) -> None:
    (first, columns), *others = found.items()
    for topic, each in others:
        if list(each.items()) != list(columns.items()):
            differ = [name for name in {**columns, **each} if columns.get(name) != each.get(name)]
            raise InvalidArgumentError(
                "topics of one query have schemas with different columns",
                value=f"{first} and {topic}: {shown(differ) or 'another order'}",
                remedy="read them in queries of their own, or read values as bytes",
            )
