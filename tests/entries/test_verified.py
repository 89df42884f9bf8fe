# SPDX-License-Identifier: Apache-2.0
"""The frames of a bookie's answer become verified batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import FEW_ENTRIES, Digester
from bk_core.entries.frame import FRAME_HEADER_BYTES, assemble, column_bytes, encode_frame, encode_record, parse_header
from bk_core.entries.verified import verified_batches
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from tests.kit.apache_frames import behind_heads, encode_apache, entry_bytes

CRC = Digester(DigestType.CRC32C, b"pw", 3)
STAMPED = 77
"""A tag of a stored frame, whose digests need no check."""


def entries(payloads: list[bytes], first: int = 0, digester: Digester = CRC) -> list[bytes]:
    """Return entries in Apache's layout, with consecutive ids."""
    batch = replace(
        EntryBatch.from_list(payloads),
        ledger_id=digester.ledger_id,
        first_entry_id=first,
        lac=first - 1,
        length_before=9,
    )
    return entry_bytes(batch, digester)


def framed(made: list[bytes], sizes: list[int], ledger_id: int = 3) -> list[bytearray]:
    """Return frames of these entries, with so many entries each."""
    ends = np.cumsum(sizes).tolist()
    return [
        encode_apache(ledger_id, list(made[end - n : end]), session=STAMPED) for end, n in zip(ends, sizes, strict=True)
    ]


def read(frames: list[bytearray] | bytes, digester: Digester = CRC, *, always: bool = False) -> list[EntryBatch]:
    return verified_batches(
        memoryview(b"".join(frames) if isinstance(frames, list) else frames), digester, always=always
    )


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), min_size=1, max_size=8),
    st.sampled_from(DigestType),
)
def test_consecutive_apache_frames_become_one_batch(payloads: list[list[bytes]], kind: DigestType) -> None:
    digester = Digester(kind, b"pw", 3)
    made = entries([each for some in payloads for each in some], 50, digester)
    (batch,) = read(framed(made, list(map(len, payloads))), digester)
    assert entry_bytes(batch, digester) == made
    assert (batch.first_entry_id, batch.ids, batch.length_before) == (50, None, 9)


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), min_size=1, max_size=8),
    st.sampled_from(DigestType),
    st.integers(0, 39),
    st.integers(0, 39),
)
def test_with_heads_nothing_is_copied_and_every_part_has_the_same_payloads(
    payloads: list[list[bytes]], kind: DigestType, start: int, stop: int
) -> None:
    digester = Digester(kind, b"pw", 3)
    made = entries([each for some in payloads for each in some], 50, digester)
    frames = memoryview(b"".join(framed(made, list(map(len, payloads)))))
    (plain,) = verified_batches(frames, digester, always=False)
    (batch,) = verified_batches(frames, digester, always=False, keep_heads=True)
    assert batch.payload.obj is frames.obj
    assert (batch.first_entry_id, batch.lac, batch.ids, batch.length_before) == (50, plain.lac, None, -1)
    for some, wanted in (
        (batch, plain),
        (batch.slice(start, stop), plain.slice(start, stop)),
        (batch.select(np.arange(len(batch)) % 3 == 1), plain.select(np.arange(len(batch)) % 3 == 1)),
        (EntryBatch.concat([batch, batch]), EntryBatch.concat([plain, plain])),
        (EntryBatch.concat([batch, plain]), EntryBatch.concat([plain, plain])),
    ):
        assert behind_heads(some) == wanted.to_list()
        assert some.entry_ids().tolist() == wanted.entry_ids().tolist()


def test_many_entries_keep_their_heads_as_few_do() -> None:
    payloads = [b"%d" % k for k in range(3 * FEW_ENTRIES)]
    frames = memoryview(b"".join(framed(entries(payloads), [FEW_ENTRIES] * 3)))
    (batch,) = verified_batches(frames, CRC, always=False, keep_heads=True)
    assert behind_heads(batch) == payloads
    assert (batch.payload.obj is frames.obj, batch.length_before, batch.ledger_lengths) == (True, -1, None)


def test_frames_with_a_gap_between_them_stay_apart() -> None:
    frames = framed(entries([b"a", b"b"]), [2]) + framed(entries([b"c", b"d"], 3), [1, 1])
    assert [(batch.first_entry_id, batch.to_list()) for batch in read(frames)] == [(0, [b"a", b"b"]), (3, [b"c", b"d"])]


def test_frames_of_other_kinds_stay_apart() -> None:
    ours = encode_frame(
        EntryBatch.from_list([b"c"]),
        digester=CRC,
        ledger_id=3,
        first_entry_id=2,
        lac=1,
        length_before=11,
        session=STAMPED,
    )
    frames = [*framed(entries([b"a", b"b"]), [1, 1]), ours, *framed(entries([b"d", b"e"], 3), [1, 1])]
    assert [batch.to_list() for batch in read(frames)] == [[b"a", b"b"], [b"c"], [b"d", b"e"]]


@pytest.mark.rule("P4")
@pytest.mark.parametrize("frame", range(3))
def test_each_bit_that_flips_in_a_run_of_frames_is_found(frame: int) -> None:
    frames = framed(entries([b"first", b"second", b"third"]), [1, 1, 1])
    whole = b"".join(frames)
    begin = sum(map(len, frames[:frame]))
    for bit in range(8 * begin, 8 * (begin + len(frames[frame]))):
        if begin + FRAME_HEADER_BYTES - 8 <= bit // 8 < begin + FRAME_HEADER_BYTES:
            continue  # the payload's CRC, which is not needed beside digests, and the tag
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IntegrityError):
            read(bytes(bad))


@pytest.mark.rule("P4")
@pytest.mark.parametrize("sizes", [[3], [1, 2]])
def test_each_bit_that_flips_in_a_payload_without_digests_is_found(sizes: list[int]) -> None:
    dummy = Digester(DigestType.DUMMY, b"pw", 3)
    frames = framed(entries([b"first", b"second", b"third"], 0, dummy), sizes)
    whole = b"".join(frames)
    for bit in range(8 * (len(whole) - len(b"third")), 8 * len(whole)):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IntegrityError):
            read(bytes(bad), dummy)


@pytest.mark.rule("P4")
def test_a_wrong_digest_in_a_frame_with_right_checksums_is_found_and_its_entry_named() -> None:
    made = entries([b"first", b"second", b"third"], 70)
    made[1] = made[1][:-1] + b"x"
    with pytest.raises(IntegrityError, match="entry 71"):
        read(framed(made, [1, 1, 1]))


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_entries_under_other_ids_than_their_own_are_refused(wrong: int) -> None:
    made = entries([b"a", b"b", b"c"], 5)
    firsts = [5, 6, 7]
    made[wrong] = entries([b"x"], 20)[0]
    frames = [
        assemble((1, 16, 0, 3, first, -1, -1, 1), [column_bytes(np.array([len(entry)]), "<u4")], entry, STAMPED)
        for first, entry in zip(firsts, made, strict=True)
    ]
    with pytest.raises(IntegrityError, match="entry ids differ"):
        read(frames)


def test_all_entries_under_other_ids_than_their_own_are_refused() -> None:
    frames = [
        assemble((1, 16, 0, 3, 5 + k, -1, -1, 1), [column_bytes(np.array([len(entry)]), "<u4")], entry, STAMPED)
        for k, entry in enumerate(entries([b"a", b"b", b"c"], 6))
    ]
    with pytest.raises(IntegrityError, match="entry ids differ"):
        read(frames)


def test_frames_of_another_ledger_are_refused() -> None:
    other = Digester(DigestType.CRC32C, b"pw", 4)
    frames = framed(entries([b"a"]), [1]) + framed(entries([b"b", b"c"], 1, other), [1, 1], 4)
    with pytest.raises(IntegrityError, match="expected ledger 3"):
        read(frames)


def test_a_record_in_an_answer_is_refused() -> None:
    frames = [*framed(entries([b"a", b"b"]), [1, 1]), bytearray(encode_record(3, 3))]
    with pytest.raises(IntegrityError, match="a record"):
        read(frames)


@pytest.mark.parametrize(("tag", "always", "found"), [(0, False, True), (STAMPED, True, True), (STAMPED, False, False)])
def test_digests_of_our_frames_are_verified_if_the_bookie_may_have_made_the_checksums(
    tag: int, always: bool, found: bool
) -> None:
    batch = replace(
        EntryBatch.from_list([b"a"]), ledger_id=3, first_entry_id=0, length_before=0, digest_type=DigestType.CRC32C,
        digests=np.zeros((1, 4), dtype=np.uint8),
    )  # fmt: skip
    frame = encode_frame(batch, digester=None, session=tag)
    assert parse_header(frame).tag == tag
    if found:
        with pytest.raises(IntegrityError, match="digest differs"):
            read([frame], always=always)
    else:
        assert read([frame], always=always)[0].to_list() == [b"a"]
