# SPDX-License-Identifier: Apache-2.0
"""The frame of a single entry is decoded as every other frame is, or not at all."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.entries import frame as frame_layout
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ENTRY_HEADER, Digester
from bk_core.entries.frame import I64_MAX, LACS, TAG_OFFSET, assemble, encode_frame, encode_one, encode_record
from bk_core.entries.lone_frames import LONE_FRAME_BYTES, lone_entry
from bk_core.entries.verified import verified_batches
from bk_core.errors import BookKeeperError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX

CRC = Digester(DigestType.CRC32C, b"pw", 3)
PAYLOAD = b"an entry"
TYPE = int(DigestType.CRC32C)
HEAD = {"kind": 1, "flags": 0, "type": TYPE, "ledger": 3, "entry": 7, "lac": 6, "before": 9, "count": 1}


def verified(frame: bytes, digester: Digester = CRC) -> EntryBatch | None:
    """Return the batch of the frame, found by the code for all frames, or None if the frame is refused."""
    try:
        (batch,) = verified_batches(memoryview(frame), digester, always=True)
    except BookKeeperError:
        return None
    return batch


def as_told(batch: EntryBatch) -> tuple[object, ...]:
    assert batch.digests is not None
    assert (batch.ids, batch.lacs, batch.ledger_lengths, batch.heads, batch.payload.readonly) == (*[None] * 4, True)
    numbers = batch.ledger_id, batch.first_entry_id, batch.lac, batch.length_before, batch.digest_type
    columns = [(each.dtype, each.shape, each.tolist()) for each in (batch.lengths, batch.digests)]
    return batch.to_list(), *numbers, *columns


def framed(payload: bytes = PAYLOAD, length: int | None = None, **changed: int) -> bytes:
    """Return a frame with these fields in its header, whose checksums and digest are right."""
    head = {**HEAD, **changed}
    size = len(payload)
    total = min(max(head["before"] + size, -I64_MAX), I64_MAX)
    digest = CRC.digest(ENTRY_HEADER.pack(head["ledger"], head["entry"], head["lac"], total), payload)
    lengths = struct.pack("<I", size if length is None else length)
    return bytes(assemble(tuple(head.values()), [lengths, digest], payload, 5))


@settings(derandomize=True, deadline=None)
@given(
    st.binary(max_size=300),
    st.integers(0, I64_MAX - 1),
    st.integers(-1, I64_MAX),
    st.integers(0, I64_MAX - 300),
    st.integers(0, (1 << 32) - 1),
)
def test_an_entry_is_the_one_that_the_code_for_all_frames_returns(
    payload: bytes, entry_id: int, lac: int, before: int, tag: int
) -> None:
    frame = bytes(encode_one(payload, digester=CRC, entry_id=entry_id, lac=lac, length_before=before, session=tag))
    lone, batch = lone_entry(memoryview(bytearray(frame)), CRC), verified(frame)
    assert lone is not None
    assert batch is not None
    assert as_told(lone) == as_told(batch)


def test_each_bit_that_flips_is_found() -> None:
    good = framed()
    assert lone_entry(memoryview(good), CRC) is not None
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        is_tag = TAG_OFFSET <= bit // 8 < TAG_OFFSET + 4  # no checksum covers the tag
        assert (lone_entry(memoryview(bad), CRC) is not None) is is_tag, bit


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": 2},
        {"flags": LACS},
        {"type": int(DigestType.CRC32)},
        {"ledger": 4},
        {"ledger": -1},
        {"entry": -1},
        {"entry": I64_MAX},
        {"lac": -2},
        {"before": -1},
        {"before": I64_MAX - len(PAYLOAD) + 1},
        {"count": 0},
        {"count": 2},
        {"length": len(PAYLOAD) - 1},
    ],
    ids=str,
)
def test_a_frame_with_a_forbidden_number_is_refused_although_its_checksums_are_right(changed: dict[str, int]) -> None:
    frame = framed(**changed)
    assert verified(frame) is None
    assert lone_entry(memoryview(frame), CRC) is None


def test_a_frame_that_is_cut_off_or_followed_by_more_is_refused() -> None:
    good = framed()
    for frame in (good + good, good + b"x", *(good[:size] for size in range(len(good)))):
        assert lone_entry(memoryview(frame), CRC) is None


@pytest.mark.parametrize("kind", [kind for kind in DigestType if kind is not DigestType.CRC32C])
def test_entries_with_other_digests_are_left_to_the_code_for_all_frames(kind: DigestType) -> None:
    digester = Digester(kind, b"pw", 3)
    frame = bytes(encode_one(PAYLOAD, digester=digester, entry_id=7, lac=6, length_before=9))
    assert lone_entry(memoryview(frame), digester) is None
    assert lone_entry(memoryview(frame), CRC) is None


def test_frames_with_other_columns_and_records_are_left_to_the_code_for_all_frames() -> None:
    batch = EntryBatch(
        lengths=np.array([8], np.uint32), payload=memoryview(PAYLOAD), lac=6, lacs=np.array([6], np.int64)
    )
    listed = encode_frame(batch, digester=CRC, ledger_id=3, first_entry_id=7, lac=6, length_before=9)
    two = encode_frame(
        EntryBatch.from_list([PAYLOAD] * 2), digester=CRC, ledger_id=3, first_entry_id=7, lac=6, length_before=9
    )
    for frame in (listed, two, encode_record(2, 3, bytes(20))):
        assert len(frame) >= LONE_FRAME_BYTES
        assert lone_entry(memoryview(frame), CRC) is None


def test_an_entry_of_another_ledger_or_with_a_wrong_digest_is_refused() -> None:
    others = Digester(DigestType.CRC32C, b"pw", 4)
    other = encode_one(PAYLOAD, digester=others, entry_id=7, lac=6, length_before=9)
    wrong = assemble(tuple(HEAD.values()), [struct.pack("<I", len(PAYLOAD)), b"nope"], PAYLOAD, 0)
    for frame in (other, wrong):
        assert verified(bytes(frame)) is None
        assert lone_entry(memoryview(frame), CRC) is None


def test_a_frame_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_layout, "FRAME_BYTES_MAX", FRAME_BYTES_MAX + 1)
    frames = [framed(bytes(FRAME_BYTES_MAX - LONE_FRAME_BYTES + more)) for more in (0, 1)]
    monkeypatch.undo()
    assert [lone_entry(memoryview(frame), CRC) is not None for frame in frames] == [True, False]
    assert [verified(frame) is not None for frame in frames] == [True, False]
