# SPDX-License-Identifier: Apache-2.0
"""The bytes of a checkpoint: what is written is read, and whatever is not that is noticed (docs/formats.md §3.6)."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from bk_core.errors import IntegrityError
from bookie_server.storage.bytes.blocks import records_per_block
from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.disk.files import BLOCK
from bookie_server.storage.index.checkpoint import PAIR_ROW, Checkpoint, CheckpointParts
from bookie_server.storage.index.ledger_table import LEDGER_ROW, NO_ADDS
from tests.kit.whole_files import decode_checkpoint, encode_checkpoint

LIFE = bytes(range(16))
LEDGERS_PER_BLOCK, PAIRS_PER_BLOCK = records_per_block(LEDGER_ROW), records_per_block(PAIR_ROW)


def ledgers(count: int, seed: int = 1) -> Rows:
    """State of so many ledgers, no two fields alike."""
    rng = np.random.default_rng(seed)
    rows = np.frombuffer(rng.bytes(count * LEDGER_ROW.itemsize), LEDGER_ROW).copy()
    rows["ledger"] = np.cumsum(rng.integers(1, 1000, count))
    rows["flags"] = rng.integers(0, 2 * NO_ADDS, count)
    rows["zero"] = 0
    return rows


def checkpoint(count: int, *, number: int = 7, deleted: int = 3, segments: int = 5) -> Checkpoint:
    pairs = np.arange(2 * deleted, dtype=np.int64).reshape(-1, 2) * 10
    return Checkpoint(number, LIFE, 99, ledgers(count), pairs, tuple(range(1, 2 * segments, 2)))


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    assert (one.number, one.incarnation, one.through) == (other.number, other.incarnation, other.through)
    assert one.ledgers.tobytes() == other.ledgers.tobytes()
    assert one.deleted.tolist() == other.deleted.tolist()
    assert one.segments == other.segments


@pytest.mark.parametrize("count", [0, 1, LEDGERS_PER_BLOCK - 1, LEDGERS_PER_BLOCK, LEDGERS_PER_BLOCK + 1, 43_100])
@pytest.mark.parametrize("pairs", [0, 1, PAIRS_PER_BLOCK, PAIRS_PER_BLOCK + 1])
def test_what_is_written_is_read(count: int, pairs: int) -> None:
    written = checkpoint(count, deleted=pairs, segments=pairs)
    data = encode_checkpoint(written)
    assert len(data) % BLOCK == 0
    assert_same(decode_checkpoint(data), written)


def test_the_bytes_do_not_depend_on_the_chunks_in_which_the_state_was_copied() -> None:
    whole, chance = checkpoint(1000), random.Random(5)
    data = encode_checkpoint(whole)
    for _ in range(20):
        parts = CheckpointParts(whole.number, LIFE, whole.through)
        body, at = b"", 0
        while at < len(whole.ledgers):
            step = chance.choice([1, 5, 41, 42, 43, 84, 300])
            body += parts.add_ledgers(whole.ledgers[at : at + step])
            at += step
        body += parts.add_deleted(whole.deleted) + parts.add_segments(whole.segments)
        assert parts.header() + body == data


def test_flipped_bits_of_every_block_are_noticed() -> None:
    data = encode_checkpoint(checkpoint(50, segments=3))
    chance = random.Random(11)
    for block in range(len(data) // BLOCK):
        for at in (0, 1, 8, 15, 4032, 4035, 4091, 4092, 4095, *(chance.randrange(BLOCK) for _ in range(50))):
            bad = bytearray(data)
            bad[block * BLOCK + at] ^= 1 << chance.randrange(8)
            with pytest.raises(IntegrityError):
                decode_checkpoint(bytes(bad))


def test_a_file_cut_anywhere_or_with_more_behind_it_is_noticed() -> None:
    data = encode_checkpoint(checkpoint(200))
    for size in [*range(0, len(data), 512), len(data) - 1, 1, BLOCK - 1, BLOCK + 1]:
        with pytest.raises(IntegrityError):
            decode_checkpoint(data[:size])
    for more in (b"\0", bytes(BLOCK), data[-BLOCK:]):
        with pytest.raises(IntegrityError):
            decode_checkpoint(data + more)


@pytest.mark.rule("S4")
def test_a_block_of_an_older_checkpoint_of_another_directory_or_of_another_place_is_noticed() -> None:
    """A lost write leaves a whole, once valid block in place."""
    newer = checkpoint(200)
    data = encode_checkpoint(newer)
    older = encode_checkpoint(replace(newer, number=6, ledgers=ledgers(200, seed=2)))
    other = encode_checkpoint(replace(newer, incarnation=bytes(16)))
    blocks = range(0, len(data), BLOCK)
    for at in blocks:
        for source in (older, other):
            with pytest.raises(IntegrityError):
                decode_checkpoint(data[:at] + source[at : at + BLOCK] + data[at + BLOCK :])
        for place in blocks:
            if place != at:
                with pytest.raises(IntegrityError):
                    decode_checkpoint(data[:at] + data[place : place + BLOCK] + data[at + BLOCK :])


def test_sectors_that_are_zero_or_older_are_noticed() -> None:
    newer = checkpoint(200)
    data = encode_checkpoint(newer)
    older = encode_checkpoint(replace(newer, number=6, ledgers=ledgers(200, seed=2)))
    for at in range(0, len(data), 512):
        for sector in (bytes(512), older[at : at + 512]):
            if sector != data[at : at + 512]:
                with pytest.raises(IntegrityError):
                    decode_checkpoint(data[:at] + sector + data[at + 512 :])


def test_a_file_without_its_header_is_no_checkpoint() -> None:
    data = encode_checkpoint(checkpoint(10))
    with pytest.raises(IntegrityError):
        decode_checkpoint(bytes(BLOCK) + data[BLOCK:])
