# SPDX-License-Identifier: Apache-2.0
"""Objects that the offloader of a Pulsar broker wrote give the entries that the bookies had.

``python -m tests.interop.pulsar_topics --golden`` recorded both.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from bk_core.pulsar.offloaded.blocks import BlockParser, parse_index

KEPT = json.loads((Path(__file__).parent / "pulsar-offloaded.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_objects_of_a_broker_give_the_entries_of_the_bookies(step: int) -> None:
    data, index = (base64.b64decode(KEPT[name]) for name in ("data", "index"))
    entries = [base64.b64decode(each) for each in KEPT["entries"]]
    found, parsed = list[bytes](), parse_index(index, KEPT["ledgerId"])
    assert len(parsed) == 1
    parser = BlockParser(parsed, 0, len(entries) - 1)
    for at in range(0, len(data), step):
        batch = parser.feed(data[at : at + step])
        found += batch.to_list() if batch is not None else []
    parser.finish()
    assert found == entries
