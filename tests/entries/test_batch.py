# SPDX-License-Identifier: Apache-2.0
"""Entry batches against lists of entries."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.errors import EntryTooLargeError, InvalidArgumentError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX

PAYLOADS = st.lists(st.binary(max_size=20), max_size=30)


def numbered(payloads: list[bytes], first: int = 100, before: int = 1000) -> EntryBatch:
    """A batch in which every column tells the entries apart."""
    batch = EntryBatch.from_list(payloads, first_entry_id=first)
    digests = (np.arange(first, first + len(payloads)) % 251).astype(np.uint8).reshape(-1, 1).repeat(4, axis=1)
    lacs = np.arange(first, first + len(payloads), dtype=np.int64) // 3
    return replace(
        batch,
        ledger_id=9,
        digests=digests,
        digest_type=DigestType.CRC32C,
        lac=int(lacs.max()) if lacs.size else -1,
        lacs=lacs,
        length_before=before,
    )


def rows(batch: EntryBatch) -> list[tuple[object, ...]]:
    assert batch.digests is not None
    columns = (batch.entry_ids(), batch.entry_lacs(), batch.cumulative_lengths(), batch.digests[:, 0])
    return list(zip(batch.to_list(), *(column.tolist() for column in columns), strict=True))


@settings(derandomize=True, deadline=None)
@given(PAYLOADS)
def test_a_batch_gives_the_list_back(payloads: list[bytes]) -> None:
    batch = EntryBatch.from_list(payloads, first_entry_id=7)
    assert batch.to_list() == payloads
    assert (batch.count, batch.payload_bytes) == (len(payloads), len(b"".join(payloads)))
    assert (batch.first_entry_id, batch.last_entry_id) == (7, 6 + len(payloads))
    assert batch.offsets()[-1] == batch.payload_bytes


@settings(derandomize=True, deadline=None)
@given(PAYLOADS, st.integers(-5, 35), st.integers(-5, 35), st.booleans(), st.booleans())
def test_a_slice_is_the_slice_of_the_list_without_copying(
    payloads: list[bytes], start: int, stop: int, listed: bool, walked: bool
) -> None:
    batch = numbered(payloads)
    if listed:
        batch = replace(batch, ids=batch.entry_ids() * 2, ledger_lengths=batch.cumulative_lengths() * 3)
        batch = replace(batch, first_entry_id=batch.first_entry_id * 2)
    if walked:
        batch.offsets()
    part = batch.slice(start, stop)
    assert rows(part) == rows(batch)[start:stop]
    assert part.payload.obj is batch.payload.obj
    if part.count:
        assert part.first_entry_id == rows(part)[0][1]
        assert part.last_entry_id == rows(part)[-1][1]
        assert part.lac == max(part.entry_lacs())
    assert rows(part.slice(1, 9)) == rows(batch)[start:stop][1:9]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=30), st.data(), st.booleans())
def test_a_selection_holds_the_chosen_entries_in_the_given_order(
    payloads: list[bytes], data: st.DataObject, equal: bool
) -> None:
    batch = numbered([payload.ljust(20) for payload in payloads] if equal else payloads)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(payloads), max_size=len(payloads))))
    assert rows(batch.select(mask)) == [row for row, chosen in zip(rows(batch), mask, strict=True) if chosen]
    at = data.draw(st.lists(st.integers(0, len(payloads) - 1), max_size=40))
    chosen = batch.select(np.array(at, dtype=np.int64))
    assert rows(chosen) == [rows(batch)[k] for k in at]
    assert rows(chosen.compact()) == rows(chosen)
    if at:
        assert chosen.first_entry_id == 100 + min(at)
        assert chosen.lac == max(chosen.entry_lacs())


def test_a_selection_outside_the_batch_is_refused() -> None:
    for at in ([-1, 0], [0, 3], [2, 1, 3]):
        with pytest.raises(IndexError):
            numbered([b"a", b"b", b"c"]).select(np.array(at))


def test_a_selection_keeps_an_unknown_ledger_length_unknown() -> None:
    part = numbered([b"a", b"bb", b"c"], before=-1).select(np.array([2, 0]))
    assert (part.length_before, part.ledger_lengths) == (-1, None)
    with pytest.raises(InvalidArgumentError):
        part.cumulative_lengths()


@pytest.mark.rule("L5")
def test_an_entry_over_the_limit_is_named() -> None:
    EntryBatch.from_list([bytes(ENTRY_BYTES_MAX)])
    with pytest.raises(EntryTooLargeError, match="entry 1 of the batch"):
        EntryBatch.from_list([b"", bytes(ENTRY_BYTES_MAX + 1)])


@pytest.mark.parametrize("entries", [["text"], [1], [None], [memoryview(np.arange(3, dtype=np.int32))]])
def test_entries_that_are_not_bytes_are_refused(entries: list[object]) -> None:
    with pytest.raises(InvalidArgumentError):
        EntryBatch.from_list(entries)


def test_views_and_bytearrays_are_entries() -> None:
    assert EntryBatch.from_list([bytearray(b"a"), memoryview(b"bcd")[1:]]).to_list() == [b"a", b"cd"]


@settings(derandomize=True, deadline=None)
@given(PAYLOADS, st.lists(st.integers(0, 30), max_size=4))
def test_parts_joined_are_the_whole_again(payloads: list[bytes], cuts: list[int]) -> None:
    batch = numbered(payloads)
    bounds = [0, *sorted(cuts), len(payloads)]
    joined = EntryBatch.concat([batch.slice(a, b) for a, b in pairwise(bounds)])
    assert rows(joined) == rows(batch)
    assert (joined.ids, joined.ledger_lengths) == (None, None)
    assert joined.first_entry_id == 100 or not payloads


@settings(derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=25), st.integers(2, 6), st.randoms(use_true_random=False))
def test_stripes_merge_to_the_whole_and_doubles_fall_away(payloads: list[bytes], size: int, random: object) -> None:
    batch = numbered(payloads)
    stripes = [batch.select((batch.entry_ids() - k) % size < 2) for k in range(size)]
    random.shuffle(stripes)
    merged = EntryBatch.merge_by_id(stripes)
    assert rows(merged) == rows(batch)
    assert (merged.ids, merged.ledger_lengths, merged.length_before) == (None, None, 1000)


def test_the_first_copy_given_wins() -> None:
    first, second = numbered([b"kept", b"x"]), numbered([b"late"])
    assert EntryBatch.merge_by_id([first, second]).to_list() == [b"kept", b"x"]
    assert EntryBatch.merge_by_id([second, first]).to_list() == [b"late", b"x"]
    copies = [numbered([b"%d" % k] * 50) for k in range(5)]
    assert EntryBatch.merge_by_id(copies).to_list() == [b"0"] * 50


def test_gaps_stay_gaps() -> None:
    merged = EntryBatch.merge_by_id([numbered([b"c"], 12, 70), numbered([b"a", b"b"], 5, 10)])
    assert merged.entry_ids().tolist() == [5, 6, 12]
    assert merged.cumulative_lengths().tolist() == [11, 12, 71]


def test_entries_not_yet_of_a_ledger_are_numbered_on() -> None:
    joined = EntryBatch.concat([EntryBatch.from_list([b"a", b"b"], first_entry_id=4), EntryBatch.from_list([b"c"])])
    assert joined.to_list() == [b"a", b"b", b"c"]
    assert joined.entry_ids().tolist() == [4, 5, 6]
    chosen = EntryBatch.concat([replace(EntryBatch.from_list([b"a"]), ids=np.array([8])), EntryBatch.from_list([b"c"])])
    assert chosen.entry_ids().tolist() == [8, 0]


def test_nothing_joined_is_an_empty_batch() -> None:
    for nothing in ([], [EntryBatch.from_list([])], [EntryBatch.from_list([])] * 3):
        assert EntryBatch.concat(nothing).count == EntryBatch.merge_by_id(nothing).count == 0


def test_batches_of_several_ledgers_or_digest_types_are_not_joined() -> None:
    one = numbered([b"a"])
    for other in (replace(one, ledger_id=8), replace(one, digest_type=DigestType.MAC)):
        with pytest.raises(InvalidArgumentError):
            EntryBatch.concat([one, other])


def test_an_unknown_length_or_a_missing_digest_stays_missing() -> None:
    one = numbered([b"a"])
    joined = EntryBatch.concat([one, replace(one, length_before=-1, digests=None)])
    assert (joined.length_before, joined.ledger_lengths, joined.digests) == (-1, None, None)
