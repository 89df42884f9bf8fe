# SPDX-License-Identifier: Apache-2.0
"""Entries that a Pulsar broker 4.2.4 wrote for Pulsar's own producers give the rows that its own clients read.

``python -m tests.interop.pulsar_topics --golden`` recorded both, after it had compared them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bk_core.pulsar.messages.decoder import MessageDecoder
from bk_core.pulsar.messages.heads import read_heads
from bk_core.pulsar.messages.row_maker import RowMaker
from bk_core.pulsar.messages.rows import TYPES, record_batch, schema_of
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.schemas import TYPES as TYPES_OF_SCHEMAS
from bk_core.pulsar.model.schemas import TopicSchema, TopicSchemas
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.values.topic_values import TopicValues
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_rows import rows_of

LINES = (Path(__file__).parent / "pulsar-topics.jsonl").read_text(encoding="utf-8").splitlines()
KEPT: dict[str, dict[str, Any]] = {each["kind"]: each for each in map(json.loads, LINES)}


def test_every_kind_is_kept() -> None:
    assert {"plain", "none", "lz4", "zlib", "zstd", "snappy", "keyed", "avro", "json", "chunked"} <= set(KEPT)
    assert {"odd", "odd in batches", "odd in batches by key"} <= set(KEPT)


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_entries_of_a_broker_give_the_rows_of_its_clients(kind: str, at_once: int) -> None:
    kept, schema = KEPT[kind], schema_of(list(TYPES))
    entries = [base64.b64decode(each) for each in kept["entries"]]
    topic = kept["rows"][0]["topic"]
    decoder, found = MessageDecoder(topic), list[pa.RecordBatch]()
    for first in range(0, len(entries), at_once):
        batch = kit.ledger(entries[first : first + at_once], ledger_id=kept["ledgerId"], first=first)
        found += [record_batch(each, schema, topic) for each in decoder.messages(read_heads(batch))]
    assert rows_of(pa.Table.from_batches(found, schema=schema)) == kept["rows"]


ORDER = {"number": ["null", "int"], "item": ["null", "string"]}
"""The record of tests/interop/pulsar_topic_calls.py, as Pulsar's Python client describes it."""


@pytest.mark.parametrize(("kind", "number"), [("json", 3), ("avro", 5)])
def test_values_of_pulsars_python_client_become_columns(kind: str, number: int) -> None:
    kept = KEPT[kind]
    fields = [{"name": name, "type": union} for name, union in ORDER.items()]
    definition = json.dumps({"type": "record", "name": "Order", "fields": fields}).encode()
    schema = TopicSchema(0, TYPES_OF_SCHEMAS[number], definition)
    name = TopicName.parse(kept["rows"][0]["topic"])
    values = TopicValues(TopicSchemas.of(name, [schema]))
    maker = RowMaker(name, schema_of(["number", "item", "__messageId"], values.columns), None, values)
    entries = [base64.b64decode(each) for each in kept["entries"]]
    heads = maker.heads(kit.ledger(entries, ledger_id=kept["ledgerId"]))
    rows = [row for batch in maker.rows(heads, Bounds()) for row in batch.to_pylist()]
    assert [row["number"] for row in rows] == list(range(len(kept["rows"])))
    for row, theirs in zip(rows, kept["rows"], strict=True):
        assert base64.b64encode(row["__messageId"]).decode() == theirs["id"]
        assert row["item"] in base64.b64decode(theirs["value"]).decode("latin-1")
        assert len(row["item"]) <= 20
    assert len({row["item"] for row in rows}) > 10
