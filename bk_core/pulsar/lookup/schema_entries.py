# SPDX-License-Identifier: Apache-2.0
"""Reads the versions of a topic's schema from their ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

from bk_core.client.bookkeeper import BookKeeper
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.model.schemas import TopicSchema, decode_schema
from bk_core.pulsar.model.topic_name import TopicName


async def read_schemas(
    bookkeeper: BookKeeper, nodes: PulsarNodes, topic: TopicName, password: bytes, known: Iterable[TopicSchema] = ()
) -> list[TopicSchema]:
    """Return the versions of the topic's schema, the newest last. Versions in ``known`` are not read again. Raises
    MetadataCorruptError if a version cannot be read, and NoSuchLedgerError if its ledger was deleted."""
    found = {each.version: each for each in known}
    wanted = list(await asyncio.to_thread(nodes.schema_versions, topic))
    while wanted:
        each = wanted.pop()
        if each.version in found:
            continue
        at = each.position
        async with await bookkeeper.open_ledger(at.ledger_id, recover=False, password=password) as reader:
            # A schema's ledger has one entry and stays open, so its LAC does not cover that entry.
            beyond = not reader.is_closed
            async with aclosing(reader.reading(at.entry_id, at.entry_id, unconfirmed=beyond)) as batches:
                entries = [entry async for batch in batches for entry in batch.to_list()]
        where = f"entry {at} of the schema of {topic}"
        found[each.version], older = decode_schema(where, each.version, entries[0])
        wanted += older
    return [found[version] for version in sorted(found)]
