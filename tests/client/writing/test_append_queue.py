# SPDX-License-Identifier: Apache-2.0
"""Coalescing keeps order and numbers, whatever is mixed."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bk_core.client.writing.append_queue import AppendQueue, cost
from bk_core.entries.batch import EntryBatch
from bk_core.entries.packets import pieces

ITEMS = st.lists(
    st.one_of(st.binary(max_size=60), st.lists(st.binary(max_size=40), min_size=1, max_size=5)), max_size=30
)


@given(items=ITEMS, frame_bytes=st.integers(1, 200))
@example(items=[b"", bytes(33)], frame_bytes=33)  # queued one by one, taken together
def test_what_is_taken_is_what_was_put_in_order(items: list[bytes | list[bytes]], frame_bytes: int) -> None:
    queue, wanted = AppendQueue(), list[bytes]()
    for item in items:
        with queue.lock:
            if isinstance(item, bytes):
                assert queue.put(item) == len(wanted)
                wanted.append(item)
            else:
                queue.put_batch(EntryBatch.from_list(item))
                wanted += item
    assert queue.next_id == len(wanted)
    taken: list[bytes] = []
    while len(queue):
        taken += queue.take(frame_bytes)[0].to_list()
    assert taken == wanted
    assert queue.bytes == 0


@given(sizes=st.lists(st.integers(0, 50), max_size=40), frame_bytes=st.integers(1, 120))
def test_pieces_hold_every_entry_and_respect_the_size(sizes: list[int], frame_bytes: int) -> None:
    batch = EntryBatch.from_list([bytes([i % 256]) * size for i, size in enumerate(sizes)])
    parts = pieces(batch, frame_bytes)
    assert [value for part in parts for value in part.to_list()] == batch.to_list()
    assert all(part.payload_bytes <= frame_bytes or len(part) == 1 for part in parts)


def test_empty_entries_count_in_the_window() -> None:
    assert cost(0, 10) == 320
