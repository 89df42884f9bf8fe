# SPDX-License-Identifier: Apache-2.0
"""Batches of Spark's become batches of a frame's size, with the same entries in the same order."""

from __future__ import annotations

import numpy as np
import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.entries.packets import SLICE_ENTRIES_MAX
from bk_spark.write.joined import Joiner

FRAME_BYTES = 100_000


def batch_of(sizes: list[int], seed: int = 0) -> EntryBatch:
    payload = np.random.default_rng(seed).bytes(sum(sizes))
    return EntryBatch(lengths=np.array(sizes, dtype=np.uint32), payload=memoryview(payload))


def given(batches: list[EntryBatch], frame_bytes: int = FRAME_BYTES) -> list[EntryBatch]:
    joiner = Joiner()
    sent = [each for batch in batches for each in joiner.add(batch, frame_bytes)]
    return [*sent, *joiner.rest(), *joiner.rest()]


@pytest.mark.parametrize(
    ("sizes", "times", "frames"),
    [
        pytest.param([100] * 300, 10, 3, id="small batches fill frames"),
        pytest.param([100] * 2_100, 2, 6, id="large ones are cut into equal parts"),
        pytest.param([70_000], 3, 3, id="one that fills most of a frame stays as it is"),
        pytest.param([250_000, 1, 250_000], 1, 2, id="an entry may be larger than a frame"),
        pytest.param([0] * 20_000, 4, 3, id="empty entries are bounded by their number"),
    ],
)
def test_the_entries_stay_as_they_are(sizes: list[int], times: int, frames: int) -> None:
    batches = [batch_of(sizes, seed) for seed in range(times)]

    sent = given(batches)

    assert EntryBatch.concat(sent).to_list() == EntryBatch.concat(batches).to_list()
    assert len(sent) == frames, [len(each) for each in sent]
    assert all(len(each) <= SLICE_ENTRIES_MAX for each in sent)
    assert all(each.payload_bytes <= max(FRAME_BYTES, max(sizes) + 1) for each in sent)


def test_large_and_small_batches_keep_their_order() -> None:
    batches = [batch_of(sizes, seed) for seed, sizes in enumerate([[10] * 50, [100] * 900, [7], [60_000], [3] * 5])]

    assert EntryBatch.concat(given(batches)).to_list() == EntryBatch.concat(batches).to_list()


def test_the_parts_of_a_large_batch_are_about_equal_and_views_of_it() -> None:
    batch = batch_of([100] * 3_333)

    parts = given([batch])

    assert {len(part) // 10 for part in parts} == {83}
    whole = np.frombuffer(batch.payload, np.uint8)
    assert all(np.shares_memory(whole, np.frombuffer(part.payload, np.uint8)) for part in parts)


def test_small_batches_are_not_kept_and_their_buffer_is_used_again() -> None:
    joiner, places = Joiner(), set[int]()
    for seed in range(50):
        batch = batch_of([100] * 300, seed)
        for sent in joiner.add(batch, FRAME_BYTES):
            buffer = np.frombuffer(sent.payload, np.uint8)
            places.add(buffer.ctypes.data)
            assert not np.shares_memory(buffer, np.frombuffer(batch.payload, np.uint8))
            del buffer
        sent = batch
    del sent

    assert len(places) <= 2  # of about fifteen frames
