# SPDX-License-Identifier: Apache-2.0
"""Entry batches to frames and back, and frames cut out of frames, against lists of entries."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import (
    FrameKind,
    assemble,
    column_bytes,
    decode_frame,
    encode_frame,
    encode_one,
    encode_record,
    encode_striped,
    frame_extent,
    parse_header,
    slice_frame,
)
from bk_core.errors import EntryTooLargeError, IntegrityError, InvalidArgumentError
from bk_core.model import DigestType
from bk_core.quorum import write_set
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from tests.kit.amount import examples
from tests.kit.apache_frames import encode_apache, entry_bytes

PAYLOADS = st.lists(st.binary(max_size=30), min_size=1, max_size=30)
DIGESTS = st.sampled_from(DigestType)
AT = {"ledger_id": 3, "first_entry_id": 10, "lac": 8, "length_before": 50}
BATCH = EntryBatch.from_list([b"ab", b"", b"cde", b"f"])


def digester(kind: DigestType = DigestType.CRC32C) -> Digester:
    return Digester(kind, b"pw", 3)


def as_dict(batch: EntryBatch) -> dict[int, tuple[bytes, int, int, bytes]]:
    """Entry id to payload, LAC, ledger length and digest."""
    assert batch.digests is not None
    rows = zip(
        batch.to_list(),
        batch.entry_lacs().tolist(),
        batch.cumulative_lengths().tolist(),
        [row.tobytes() for row in batch.digests],
        strict=True,
    )
    return dict(zip(batch.entry_ids().tolist(), rows, strict=True))


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, EntryBatch, Digester]:
    """A frame of any form, the batch it was made of, and the ledger's digester."""
    payloads, kind, first = draw(PAYLOADS), digester(draw(DIGESTS)), draw(st.integers(0, 2**40))
    at = {"ledger_id": 3, "first_entry_id": first, "lac": first - 1, "length_before": draw(st.integers(0, 2**40))}
    batch, form = EntryBatch.from_list(payloads), draw(st.sampled_from(["plain", "ids", "lacs", "lengths", "striped"]))
    count, rng = len(payloads), np.random.default_rng(draw(st.integers(0, 99)))
    if form == "ids":
        ids = rng.permutation(first + 3 * np.arange(count)) if draw(st.booleans()) else first + 2 * np.arange(count)
        batch = replace(batch, ids=ids)
    if form == "lacs":
        lacs = first - 1 - rng.integers(0, 3, count)
        lacs[int(rng.integers(0, count))] = first - 1
        batch = replace(batch, lacs=np.maximum(lacs, -1))
    if form == "lengths":
        batch = replace(batch, ledger_lengths=2**41 + np.cumsum(rng.integers(30, 90, count)))
    if form == "striped":
        whole = decode_frame(encode_frame(batch, digester=kind, **at))
        size = draw(st.integers(2, 6))
        quorum, index = draw(st.integers(1, size - 1)), draw(st.integers(0, size - 1))
        assert whole.digests is not None
        frame = encode_striped(
            batch,
            digest_type=kind.digest_type,
            digests=whole.digests,
            ensemble_size=size,
            write_quorum=quorum,
            index=index,
            **at,
        )
        mask = np.array([index in write_set(entry_id, size, quorum) for entry_id in whole.entry_ids().tolist()])
        if frame is not None:
            return bytes(frame), whole.select(mask), kind
        assert not mask.any()
    frame = encode_frame(batch, digester=kind, **at)
    fields = {"ledger_id": 3, "lac": at["lac"], "length_before": at["length_before"], "first_entry_id": first}
    numbered = replace(batch, digest_type=kind.digest_type, **fields)
    return bytes(frame), replace(numbered, digests=kind.for_batch(numbered)), kind


@examples(3)
@given(written())
def test_what_is_written_is_read(case: tuple[bytes, EntryBatch, Digester]) -> None:
    frame, batch, kind = case
    read = decode_frame(frame, digester=kind, verify_digests=True)
    assert as_dict(read) == as_dict(batch)
    assert (read.ledger_id, read.digest_type) == (3, kind.digest_type)
    extent = frame_extent(frame)
    assert (extent.first, extent.last) == (read.first_entry_id, read.last_entry_id)
    assert (extent.count, extent.max_lac) == (read.count, read.lac)


@pytest.mark.parametrize("kind", DigestType)
@pytest.mark.parametrize("payload", [b"", b"a", bytearray(range(200)), memoryview(b"some of it")[5:]])
def test_a_frame_of_one_entry_is_the_frame_of_a_batch_of_one(kind: DigestType, payload: bytes) -> None:
    for first, before, session in ((0, 0, 0), (2**40, 2**41, 2**32 - 1)):
        at = {"lac": first - 1, "length_before": before, "session": session, "digester": digester(kind)}
        batch = EntryBatch.from_list([payload])
        assert encode_one(payload, entry_id=first, **at) == encode_frame(batch, ledger_id=3, first_entry_id=first, **at)
    with pytest.raises(EntryTooLargeError):
        encode_one(bytes(ENTRY_BYTES_MAX + 1), entry_id=first, **at)


@pytest.mark.rule("P6")
@examples(2)
@given(written())
def test_entries_read_are_written_back_unchanged(case: tuple[bytes, EntryBatch, Digester]) -> None:
    frame, batch, kind = case
    again = encode_frame(decode_frame(frame), digester=None)
    assert as_dict(decode_frame(again, digester=kind, verify_digests=True)) == as_dict(batch)
    if not parse_header(frame).flags & 1:
        assert again == frame


@examples(4)
@given(written(), st.integers(-2, 25), st.integers(-1, 25))
def test_a_slice_holds_the_wanted_entries_and_they_verify(
    case: tuple[bytes, EntryBatch, Digester], begin: int, size: int
) -> None:
    frame, batch, kind = case
    first = batch.first_entry_id + begin
    wanted = {i: entry for i, entry in as_dict(batch).items() if first <= i <= first + size}
    part = slice_frame(frame, first, first + size)
    if not wanted:
        assert part is None
        return
    assert part is not None
    read = decode_frame(part, digester=kind, verify_digests=True)
    assert as_dict(read) == wanted
    assert read.lac == max(lac for _, lac, _, _ in wanted.values())
    if len(wanted) == batch.count:
        assert part is frame
    smaller = slice_frame(part, min(wanted), min(wanted))
    assert smaller is not None
    assert list(as_dict(decode_frame(smaller, digester=kind, verify_digests=True))) == [min(wanted)]


@examples(1)
@given(PAYLOADS, DIGESTS, st.booleans(), st.integers(-1, 70), st.integers(0, 70))
def test_apache_entries_are_kept_verbatim_and_split_by_the_reader(
    payloads: list[bytes], kind: DigestType, gaps: bool, begin: int, size: int
) -> None:
    ids = np.array([5 + 2 * k for k in range(len(payloads))])
    batch = replace(EntryBatch.from_list(payloads), ledger_id=3, first_entry_id=5, lac=4, ids=ids if gaps else None)
    entries = entry_bytes(batch, digester(kind))
    frame = encode_apache(3, list(entries), session=9)
    header = parse_header(frame)
    assert (header.tag, header.first_entry_id, header.lac, header.length_before) == (9, 5, 4, -1)
    assert bytes(frame).endswith(b"".join(entries))
    read = decode_frame(frame, digester=digester(kind))
    assert entry_bytes(read, digester(kind)) == entries
    assert read.entry_ids().tolist() == batch.entry_ids().tolist()
    part = slice_frame(frame, 5 + begin, 5 + begin + size)
    wanted = [e for e, i in zip(entries, batch.entry_ids().tolist(), strict=True) if 0 <= i - 5 - begin <= size]
    got = [] if part is None else entry_bytes(decode_frame(part, digester=digester(kind)), digester(kind))
    assert got == wanted


def test_greatest_lac_inside_apache_entries_follows_a_slice() -> None:
    batch = replace(BATCH, ledger_id=3, first_entry_id=0, lacs=np.array([-1, 0, 7, 2]), lac=7)
    frame = encode_apache(3, list(entry_bytes(batch, digester())))
    assert frame_extent(frame).max_lac == 7
    assert [frame_extent(slice_frame(frame, k, k) or b"").max_lac for k in range(4)] == [-1, 0, 7, 2]


def test_apache_entries_under_other_ids_than_their_own_are_refused() -> None:
    entries = entry_bytes(replace(BATCH, ledger_id=3, first_entry_id=5), digester())
    frame = encode_apache(3, list(entries))
    lengths = np.fromiter(map(len, entries), dtype=np.uint32)
    decode_frame(frame, digester=digester())
    wrong = assemble((1, 16, 0, 3, 6, -1, -1, 4), [column_bytes(lengths, "<u4")], b"".join(entries), 0)
    with pytest.raises(IntegrityError, match="entry ids differ"):
        decode_frame(wrong, digester=digester())


@pytest.mark.parametrize("entries", [[], [bytes(31)], [b"\xff" * 32], [bytes(32)]])
def test_what_is_no_apache_entry_of_the_ledger_is_refused(entries: list[bytes]) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_apache(3, entries)


def test_payload_is_a_view_of_the_frame() -> None:
    frame = bytes(encode_frame(BATCH, digester=digester(), **AT))
    batch = decode_frame(frame)
    assert batch.payload.obj is frame
    assert batch.payload.readonly
    assert np.shares_memory(batch.lengths, np.frombuffer(frame, dtype=np.uint8))


def test_payload_of_a_writable_frame_is_read_only() -> None:
    assert decode_frame(encode_frame(BATCH, digester=digester(), **AT)).payload.readonly


@pytest.mark.rule("P6")
@pytest.mark.parametrize("changed", [{"lac": 9}, {"first_entry_id": 11}, {"length_before": 51}, {"ledger_id": 4}])
def test_kept_digests_are_not_put_over_other_numbers(changed: dict[str, int]) -> None:
    batch = decode_frame(encode_frame(BATCH, digester=digester(), **AT))
    with pytest.raises(InvalidArgumentError):
        encode_frame(batch, digester=None, **changed)


def damaged(frame: bytes, at: int) -> bytes:
    """A payload byte flipped, with a payload CRC that hides it: what a slice of rotten bytes looks like."""
    bad = bytearray(frame)
    bad[at] ^= 0x10
    header = parse_header(bad)
    bad[56:60] = crc32c.crc32c(bytes(bad[64 + header.columns_bytes :])).to_bytes(4, "little")
    return bytes(bad)


@pytest.mark.parametrize("kind", [kind for kind in DigestType if kind.digest_bytes])
def test_digest_finds_what_the_frame_checksums_do_not(kind: DigestType) -> None:
    frame = bytes(encode_frame(BATCH, digester=digester(kind), **AT))
    bad = damaged(frame, len(frame) - 2)
    assert decode_frame(bad, digester=digester(kind)).count == 4
    with pytest.raises(IntegrityError, match="ledger 3, entry 12"):
        decode_frame(bad, digester=digester(kind), verify_digests=True)


@pytest.mark.parametrize("kind", DigestType)
def test_a_slice_never_makes_damage_look_intact(kind: DigestType) -> None:
    frame = bytearray(encode_frame(BATCH, digester=digester(kind), **AT))
    frame[-2] ^= 1  # inside entry 12
    if kind is DigestType.DUMMY:
        with pytest.raises(IntegrityError):
            slice_frame(frame, 11, 12)
        return
    part = slice_frame(frame, 11, 12)
    assert part is not None
    with pytest.raises(IntegrityError, match="entry 12"):
        decode_frame(part, digester=digester(kind), verify_digests=True)
    assert slice_frame(frame, 10, 11) is not None


def test_a_slice_of_damaged_apache_entries_is_refused() -> None:
    frame = encode_apache(3, list(entry_bytes(replace(BATCH, ledger_id=3), digester(DigestType.DUMMY))))
    frame[-1] ^= 1
    with pytest.raises(IntegrityError):
        slice_frame(frame, 0, 1)


def test_a_frame_of_another_ledger_or_digest_type_is_refused() -> None:
    frame = encode_frame(BATCH, digester=digester(DigestType.DUMMY), **AT)
    with pytest.raises(IntegrityError, match="digest type"):
        decode_frame(frame, digester=digester(DigestType.MAC))
    with pytest.raises(IntegrityError, match="expected ledger 4"):
        decode_frame(frame, digester=Digester(DigestType.DUMMY, b"pw", 4))


def test_what_cannot_be_decoded_is_said() -> None:
    plain = encode_frame(BATCH, digester=digester(), **AT)
    apache = encode_apache(3, list(entry_bytes(replace(BATCH, ledger_id=3), digester())))
    for frame, options in ((encode_record(FrameKind.FENCE, 3), {}), (plain, {"verify_digests": True}), (apache, {})):
        with pytest.raises(InvalidArgumentError):
            decode_frame(frame, **options)
    assert slice_frame(encode_record(FrameKind.FENCE, 3), -5, 5) is None


@pytest.mark.rule("L5")
def test_entry_limit_is_kept_to_the_byte() -> None:
    over = EntryBatch(
        lengths=np.array([ENTRY_BYTES_MAX + 1], np.uint32), payload=memoryview(bytes(ENTRY_BYTES_MAX + 1))
    )
    with pytest.raises(EntryTooLargeError):
        encode_frame(over, digester=digester(), **AT)
    with pytest.raises(EntryTooLargeError):
        encode_striped(
            over,
            digest_type=DigestType.CRC32C,
            digests=np.zeros((1, 4), np.uint8),
            ensemble_size=2,
            write_quorum=1,
            index=0,
            **AT,
        )
    fits = EntryBatch.from_list([bytes(ENTRY_BYTES_MAX)])
    assert decode_frame(encode_frame(fits, digester=digester(), **AT)).payload_bytes == ENTRY_BYTES_MAX


@pytest.mark.rule("P6")
def test_an_entry_that_apache_allowed_is_written_back_though_over_our_limit() -> None:
    size = ENTRY_BYTES_MAX + 900
    over = EntryBatch(lengths=np.array([size], np.uint32), payload=memoryview(bytes(size)), ledger_id=3)
    read = decode_frame(encode_apache(3, list(entry_bytes(over, digester()))), digester=digester())
    again = decode_frame(encode_frame(read, digester=None), digester=digester(), verify_digests=True)
    assert as_dict(again) == as_dict(read)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ledger_id": 4},
        {"ledger_id": -1},
        {"first_entry_id": -1},
        {"lac": -2},
        {"length_before": -1},
        {"digester": None},
        {"batch": EntryBatch.from_list([])},
        {"batch": replace(BATCH, ids=np.array([11, 12, 14, 15]))},
        {"batch": replace(BATCH, lacs=np.array([1, 2, 9, 4]))},
    ],
)
def test_no_frame_is_made_of_what_a_reader_would_refuse(wrong: dict[str, object]) -> None:
    arguments = {"batch": BATCH, "digester": digester(), **AT} | wrong
    with pytest.raises(InvalidArgumentError):
        encode_frame(**arguments)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ensemble_size": 2},
        {"index": 3},
        {"write_quorum": 0},
        {"digests": np.zeros((3, 4), np.uint8)},
        {"digests": np.zeros((4, 5), np.uint8)},
        {"digest_type": DigestType.CRC32},
        {"batch": replace(BATCH, ids=np.array([10, 12, 14, 15]))},
    ],
)
def test_no_stripe_is_made_that_a_reader_would_refuse(wrong: dict[str, object]) -> None:
    shape = {"ensemble_size": 3, "write_quorum": 2}
    arguments = {"batch": BATCH, "digest_type": DigestType.CRC32C, "digests": np.zeros((4, 4), np.uint8), **shape}
    with pytest.raises(InvalidArgumentError):
        encode_striped(**(arguments | {"index": 0} | AT | wrong))


def test_frames_need_no_pyarrow() -> None:
    code = "import sys, bk_core.entries.frame, bk_core.entries.apache; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", DigestType)
def test_a_single_entry_may_be_bytes_or_a_view_of_bytes(kind: DigestType) -> None:
    payloads = (b"payload", bytearray(b"payload"), memoryview(b"payload"), memoryview(b"payload").cast("c"))
    at = {"entry_id": 4, "lac": 3, "length_before": 9}
    assert len({bytes(encode_one(each, digester=digester(kind), **at)) for each in payloads}) == 1
