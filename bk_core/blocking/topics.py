# SPDX-License-Identifier: Apache-2.0
"""Pulsar's topics without ``await``: what ``BookKeeper.topic`` of :mod:`bk_core.blocking` returns."""

from __future__ import annotations

from bk_core.blocking.loop_thread import BlockHandle
from bk_core.blocking.wrapping import iterates_over, waits_for
from bk_core.pulsar import topic


class Topic(BlockHandle[topic.Topic]):
    """A topic, or one of its partitions. Making a handle reads nothing. As a context manager it closes itself at the
    end.

    Raises InvalidArgumentError for a name that no topic can have, UnsupportedTopicError for a non-persistent one.
    """

    @property
    def name(self) -> str:
        """The full name, such as ``persistent://public/default/orders``."""
        return self._inner.name

    info = waits_for(topic.Topic.info)
    schemas = waits_for(topic.Topic.schemas)
    subscription = waits_for(topic.Topic.subscription)
    to_arrow = waits_for(topic.Topic.to_arrow)
    read = iterates_over(topic.Topic.read)
    record_batch_reader = waits_for(topic.Topic.record_batch_reader)
    tail = iterates_over(topic.Topic.tail)
    plan = waits_for(topic.Topic.plan)
    close = waits_for(topic.Topic.close)
