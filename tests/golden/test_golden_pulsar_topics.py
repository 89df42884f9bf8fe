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
from bk_core.pulsar.messages.rows import TYPES, record_batch, schema_of
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
