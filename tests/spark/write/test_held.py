# SPDX-License-Identifier: Apache-2.0
"""How much a small task may hold, and how its entries travel."""

from __future__ import annotations

import pickle

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.model import DigestType
from bk_spark.write import held
from bk_spark.write.held import FULL_TASKS, HeldEntries, LogAt

LOG = LogAt("events", "uuid", DigestType.CRC32C)


@pytest.mark.rule("K5")
@pytest.mark.parametrize("tasks", [1, 200, FULL_TASKS, 10_000, 1_000_000])
def test_all_tasks_of_a_write_hold_a_bounded_number_of_bytes_however_many_they_are(tasks: int) -> None:
    limit = 32 << 10
    shares = [held.bytes_max(partition, limit) for partition in range(tasks)]
    assert sum(shares) <= min(tasks, 2 * FULL_TASKS) * limit
    assert shares == sorted(shares, reverse=True)
    assert all(share == limit for share in shares[:FULL_TASKS])


def test_entries_arrive_as_they_were_sent_in_a_message_of_their_size() -> None:
    batches = [EntryBatch.from_list([b"a", b""]), EntryBatch.from_list([b"bcd" * 1000])]
    sent = pickle.dumps(HeldEntries.of(LOG, batches, 3))
    assert len(sent) < sum(map(held.size_of, batches)) + 1000
    arrived = pickle.loads(sent)
    assert arrived.entries().to_list() == [b"a", b"", b"bcd" * 1000]
    assert (arrived.log, arrived.rows) == (LOG, 3)
