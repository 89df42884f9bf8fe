# SPDX-License-Identifier: Apache-2.0
"""Checksums of producers, from the bytes of entries and from the CRCs that the check of the digests has computed."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.apache import split_few
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import CRC_READ_BYTES, FEW_ENTRIES, Digester, crc32c
from bk_core.entries.gf2 import CRC32C_TABLES
from bk_core.model import DigestType
from bk_core.pulsar.gathering import joined
from bk_core.pulsar.messages.heads import read_heads
from tests.kit import pulsar_entries as kit
from tests.kit.apache_frames import entry_bytes, parse_entries

COUNT = FEW_ENTRIES + 10


def verified(entries: list[bytes], kind: DigestType = DigestType.CRC32C, first: int = 0) -> EntryBatch:
    """Return entries as they come from a bookie that got them from Apache's client."""
    digester = Digester(kind, b"pw", 7)
    batch = replace(EntryBatch.from_list(entries), ledger_id=7, first_entry_id=first, length_before=first)
    return parse_entries(entry_bytes(batch, digester), digester)


def damaged(dice: random.Random, entry: bytes) -> bytes:
    """Return an entry with a flipped bit in its checksum or behind it."""
    bad = bytearray(entry)
    bad[dice.randrange(2, len(bad))] ^= 1 << dice.randrange(8)
    return bytes(bad)


@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_checksums_fail_alike_with_and_without_known_crcs(seed: int, with_broker: bool, some_without: bool) -> None:
    dice = random.Random(seed)
    entries = [
        kit.entry(
            dice.randbytes(dice.choice((0, 1, 100, 70_000 if k == 3 else 300))),
            checksum=not (some_without and dice.random() < 0.3),
            broker={"index": k} if with_broker and dice.random() < 0.3 else None,
            sequence_id=k,
        )
        for k in range(COUNT)
    ]
    for row in dice.sample(range(COUNT), 4):
        entries[row] = damaged(dice, entries[row])
    batch = verified(entries)
    assert batch.payload_crcs is not None
    with_crcs, without = read_heads(batch), read_heads(replace(batch, payload_crcs=None))
    assert with_crcs.failed_checksum == without.failed_checksum
    assert with_crcs.problems == without.problems


@pytest.mark.parametrize("row", [0, COUNT - 1])
def test_a_wrong_checksum_under_a_right_digest_is_found(row: int) -> None:
    entries = [kit.entry(b"value", sequence_id=k) for k in range(COUNT)]
    entries[row] = entries[row][:-1] + b"x"
    assert read_heads(verified(entries)).failed_checksum == {row}


def test_a_part_of_a_batch_and_joined_batches_have_the_crcs_of_their_own_entries() -> None:
    entries = [kit.entry(b"%d" % k, sequence_id=k) for k in range(2 * COUNT)]
    first, second = verified(entries[:COUNT]), verified(entries[COUNT:], first=COUNT)
    together = joined([first.slice(3, COUNT), second])
    assert together.payload_crcs is not None
    assert together.payload_crcs.tolist() == [crc32c(entry) for entry in entries[3:]]
    at = np.array([5, 2, 9])
    chosen = first.select(at).payload_crcs
    assert chosen is not None
    assert chosen.tolist() == [crc32c(entries[k]) for k in at]


def test_batches_of_which_one_has_no_crcs_have_none_together() -> None:
    entries = [kit.entry(b"value", sequence_id=k) for k in range(COUNT + 1)]
    few = verified(entries[COUNT:], first=COUNT)
    assert few.payload_crcs is None
    together = joined([verified(entries[:COUNT]), few])
    assert together.payload_crcs is None
    assert not read_heads(together).problems


@pytest.mark.parametrize("first_bytes", [0, 5, 70_000])
def test_a_few_long_entries_have_the_crcs_of_their_payloads_if_their_digests_are_crc32c(first_bytes: int) -> None:
    payloads = [random.Random(k).randbytes(size) for k, size in enumerate((first_bytes, CRC_READ_BYTES, 300_001))]
    for kind in DigestType:
        digester = Digester(kind, b"pw", 7)
        batch = replace(EntryBatch.from_list(payloads), ledger_id=7, first_entry_id=4)
        entries = entry_bytes(batch, digester)
        begins, whole = [9, 9 + len(entries[0]) + 3], memoryview(b"h" * 9 + entries[0] + b"mid" + b"".join(entries[1:]))
        begins.append(begins[1] + len(entries[1]))
        few = split_few(whole, begins, [len(each) for each in entries], digester, keep_heads=True)
        assert few is not None
        wanted = [crc32c(each) for each in payloads] if kind is DigestType.CRC32C else None
        assert (None if few.payload_crcs is None else few.payload_crcs.tolist()) == wanted
        assert few.heads is not None
        ends = few.offsets()[1:].tolist()
        begins_of_payloads = (few.offsets()[:-1] + few.heads).tolist()
        assert [bytes(few.payload[a:b]) for a, b in zip(begins_of_payloads, ends, strict=True)] == payloads


@pytest.mark.parametrize("kind", [DigestType.CRC32, DigestType.MAC, DigestType.DUMMY])
def test_digests_of_other_types_give_no_crcs(kind: DigestType) -> None:
    assert verified([kit.entry(b"value")] * COUNT, kind).payload_crcs is None


@given(st.binary(max_size=10), st.lists(st.binary(min_size=4, max_size=4), min_size=1, max_size=5))
def test_crcs_behind_one_begin_are_those_of_the_whole_messages(begin: bytes, tails: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(tails), dtype=np.uint8).reshape(-1, 4)
    assert CRC32C_TABLES.behind(crc32c(begin + bytes(4)), rows).tolist() == [crc32c(begin + tail) for tail in tails]
