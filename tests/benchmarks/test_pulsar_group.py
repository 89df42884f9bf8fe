# SPDX-License-Identifier: Apache-2.0
"""The ceiling of the group ``pulsar`` parses what a broker writes."""

from __future__ import annotations

from benchmarks.groups.pulsar import parsed
from tests.kit import pulsar_entries as kit


def test_bare_parsing_counts_the_messages_of_batches_and_of_other_entries() -> None:
    batch = kit.batch_entry([kit.single(b"a", sequence_id=1), kit.single(b"", partition_key=b"k")])
    assert parsed(kit.ledger([kit.entry(b"x"), batch, kit.entry(b"y", checksum=False)])) == 4
