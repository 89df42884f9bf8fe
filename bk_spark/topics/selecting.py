# SPDX-License-Identifier: Apache-2.0
"""Finds the topics and partitions that a selection names. Calls block."""

from __future__ import annotations

from bk_core.errors import NoSuchTopicError
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.model.topic_name import TopicName
from bk_spark.errors import shown
from bk_spark.options.selection import TopicSelection


def selected_parts(nodes: PulsarNodes, selection: TopicSelection) -> list[TopicName]:
    """Return the selected topics without partitions and the selected partitions, in reading order: by topic, then by
    number. A pattern does not select topics that brokers made for their own use. Raises NoSuchTopicError for a topic
    that does not exist. A pattern may select no topic."""
    found = dict[TopicName, None]()
    for topic in _topics(nodes, selection):
        found.update(dict.fromkeys(nodes.parts(topic)))
    return list(found)


def _topics(nodes: PulsarNodes, selection: TopicSelection) -> list[TopicName]:
    if selection.pattern is None:
        return [TopicName.parse(name) for name in selection.names]
    return [topic for topic in _namespace(nodes, selection) if selection.matches(topic.whole.local)]


def _namespace(nodes: PulsarNodes, selection: TopicSelection) -> list[TopicName]:
    tenant, _, namespace = selection.namespace.partition("/")
    return [topic for topic, _ in nodes.topics(tenant, namespace) if not topic.is_system]


def some_parts(nodes: PulsarNodes, selection: TopicSelection) -> list[TopicName]:
    """Return the result of :func:`selected_parts`. For a pattern that selects no topic, raises NoSuchTopicError, which
    names the topics of the namespace."""
    if parts := selected_parts(nodes, selection):
        return parts
    names = shown([topic.local for topic in _namespace(nodes, selection)])
    remedy = f"topics of {selection.namespace}: {names}" if names else f"namespace {selection.namespace} has no topics"
    raise NoSuchTopicError(f"there are no {selection}", remedy=remedy)
