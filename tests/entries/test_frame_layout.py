# SPDX-License-Identifier: Apache-2.0
"""What a reader of frames refuses: every flipped bit, every cut, every header that docs/formats.md §1 excludes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries import frame as frame_flags
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import (
    FRAME_BYTES_MAX,
    FrameExtent,
    FrameKind,
    assemble,
    check_frame,
    check_header,
    decode_frame,
    encode_frame,
    encode_record,
    encode_striped,
    entry_ids_of,
    frame_extent,
    frame_tag,
    parse_header,
    record_payload,
    slice_frame,
    split_frames,
    with_session,
)
from bk_core.errors import BookKeeperError, IntegrityError, InvalidArgumentError, ProtocolError, UnknownFlagsError
from bk_core.model import DigestType
from tests.kit.amount import examples
from tests.kit.apache_frames import encode_apache, entry_bytes
from tests.kit.flagged import UNKNOWN_FLAGS, with_flags

CRC = Digester(DigestType.CRC32C, b"pw", 3)
AT = {"ledger_id": 3, "first_entry_id": 10, "lac": 8, "length_before": 50}
BATCH = EntryBatch.from_list([b"ab", b"", b"cde"])


def striped(count: int = 3, index: int = 1, first: int = 10, size: int = 3, quorum: int = 2) -> bytes | None:
    batch = EntryBatch.from_list([b"x"] * count)
    at = AT | {"first_entry_id": first}
    digests = CRC.compute_run(first, 8, 50, batch.lengths, batch.payload)
    frame = encode_striped(
        batch,
        digest_type=DigestType.CRC32C,
        digests=digests,
        ensemble_size=size,
        write_quorum=quorum,
        index=index,
        **at,
    )
    return None if frame is None else bytes(frame)


def apache() -> bytes:
    return bytes(encode_apache(3, list(entry_bytes(replace(BATCH, ledger_id=3, first_entry_id=10), CRC))))


SMALL_FRAMES: dict[str, Callable[[], bytes | None]] = {
    "plain": lambda: bytes(encode_frame(BATCH, digester=CRC, **AT)),
    "one": lambda: bytes(encode_frame(BATCH.slice(0, 1), digester=CRC, **AT)),
    "ids": lambda: bytes(encode_frame(replace(BATCH, ids=np.array([12, 10, 19])), digester=CRC, **AT)),
    "lacs": lambda: bytes(encode_frame(replace(BATCH, lacs=np.array([8, 7, 8])), digester=CRC, **AT)),
    "striped": striped,
    "apache": apache,
    "record": lambda: encode_record(FrameKind.COPY_DROPPED, 3, bytes(8)),
    "empty record": lambda: encode_record(FrameKind.FENCE, 3),
}


@pytest.mark.parametrize("name", SMALL_FRAMES)
def test_every_flipped_bit_is_refused_except_in_the_tag(name: str) -> None:
    frame = SMALL_FRAMES[name]() or b""
    check_frame(frame)
    for bit in range(8 * len(frame)):
        bad = bytearray(frame)
        bad[bit // 8] ^= 1 << bit % 8
        if 60 <= bit // 8 < 64:
            check_frame(bad)
        else:
            with pytest.raises(IntegrityError):
                check_frame(bad)


@pytest.mark.parametrize("name", SMALL_FRAMES)
def test_every_cut_and_every_extra_byte_is_refused(name: str) -> None:
    frame = SMALL_FRAMES[name]() or b""
    for size in range(len(frame)):
        with pytest.raises(IntegrityError):
            check_frame(frame[:size])
        if size:
            with pytest.raises(IntegrityError):
                split_frames(frame + frame[:size])
    for check in (check_header, check_frame):
        with pytest.raises(IntegrityError):
            check(frame + b"\0")


def sealed(*, columns: bytes = b"", payload: bytes = b"", **fields: int) -> bytes:
    """A frame with both CRCs right, whatever it says."""
    names = ["magic", "version", "kind", "flags", "digest_type", "zero", "ledger_id", "first_entry_id", "lac"]
    values = dict(zip(names, (0x4B42, 1, 1, 0, 3, 0, 3, 10, 8), strict=True)) | {"before": 50, "count": 1}
    values |= {"columns_bytes": len(columns), "payload_bytes": len(payload)} | fields
    head = struct.pack("<HBBHBBqqqqIII", *values.values())
    return head + struct.pack("<III", crc32c.crc32c(head + columns), crc32c.crc32c(payload), 0) + columns + payload


ONE = struct.pack("<I", 2) + b"dgst"
STRIPE = struct.pack("<HHHHI", 3, 2, 1, 0, 2) + struct.pack("<II", 2, 5) + b"dgst"
STRIPED_ONE: dict[str, object] = {"flags": 1, "columns": STRIPE, "payload": b"xxxxx", "first_entry_id": 11}

REFUSED: dict[str, dict[str, object]] = {
    "another magic": {"magic": 0x4B43},
    "another version": {"version": 2},
    "byte 7": {"zero": 1},
    "kind 0": {"kind": 0},
    "kind 11": {"kind": 11},
    "a reserved flag": {"flags": frame_flags.DEFERRED_SYNC},
    "the other reserved flag": {"flags": frame_flags.MANY_LEDGERS},
    "the flag of partial frames": {"flags": frame_flags.PARTIAL},
    "an unknown flag": {"flags": 0x100},
    "an unknown digest type": {"digest_type": max(DigestType) + 1},
    "no digest type": {"digest_type": 0, "columns": ONE[:4]},
    "negative ledger": {"ledger_id": -1},
    "negative entry id": {"first_entry_id": -1},
    "LAC below none": {"lac": -2},
    "unknown length": {"before": -1},
    "length below unknown": {"before": -2},
    "no entries": {"count": 0, "columns": b"", "payload": b""},
    "too many entries for the columns": {"count": 2},
    "more columns than entries": {"columns": ONE + b"\0\0\0\0"},
    "lengths that do not add up": {"payload": b"xyz"},
    "an id over the greatest": {"first_entry_id": 2**63 - 1},
    "a length over the greatest": {"before": 2**63 - 2},
    "lengths of several that do not add up": {"count": 2, "columns": struct.pack("<II", 1, 2) + b"twodgsts"},
    "striped and ids": STRIPED_ONE | {"flags": 3, "columns": STRIPE + struct.pack("<q", 11)},
    "stripe with Qw = 0": STRIPED_ONE | {"columns": STRIPE[:2] + bytes(2) + STRIPE[4:]},
    "stripe with Qw = E": STRIPED_ONE | {"columns": b"\2\0" + STRIPE[2:] + b"dgst", "count": 2, "payload": b"xxxxxxx"},
    "stripe with an index over E": STRIPED_ONE | {"columns": STRIPE[:4] + b"\4\0" + STRIPE[6:]},
    "stripe of another span": STRIPED_ONE | {"columns": STRIPE[:8] + b"\1\0\0\0" + STRIPE[12:]},
    "stripe with a filled gap": STRIPED_ONE | {"columns": STRIPE[:6] + b"\1\0" + STRIPE[8:]},
    "stripe that holds more": STRIPED_ONE | {"columns": STRIPE[:4] + b"\0\0" + STRIPE[6:], "payload": b"xxxxxxx"},
    "stripe that holds others": STRIPED_ONE | {"columns": STRIPE[:4] + b"\2\0" + STRIPE[6:]},
    "stripe cut short": STRIPED_ONE | {"columns": STRIPE[:10]},
    "an id column with another first": {"flags": 2, "columns": ONE + struct.pack("<q", 11)},
    "an entry id over the last": {
        "flags": 2,
        "count": 2,
        "columns": struct.pack("<II8sqq", 2, 0, b"dgstdgst", 10, 2**63 - 1),
    },
    "a LAC above those listed": {"flags": 4, "columns": ONE + struct.pack("<q", 7)},
    "a LAC listed below none": {"flags": 4, "lac": -1, "columns": ONE + struct.pack("<q", -2)},
    "a ledger shorter than its entry": {"flags": 8, "columns": ONE + struct.pack("<q", 1)},
    "a stripe over the greatest length": STRIPED_ONE | {"before": 2**63 - 7},
    "apache with a digest": {"flags": 16, "before": -1},
    "apache with a length": {"flags": 16, "digest_type": 0, "columns": ONE[:4]},
    "apache and LACs": {
        "flags": 20,
        "digest_type": 0,
        "before": -1,
        "columns": struct.pack("<Iq", 32, 8),
        "payload": bytes(32),
    },
    "apache shorter than a header": {"flags": 16, "digest_type": 0, "before": -1, "columns": ONE[:4]},
    "a record with a count": {"kind": 3, "digest_type": 0, "first_entry_id": -1, "lac": -1, "before": -1},
    "a key of 19 bytes": {
        "kind": 2,
        "digest_type": 0,
        "first_entry_id": -1,
        "lac": -1,
        "before": -1,
        "count": 0,
        "columns": b"",
        "payload": bytes(19),
    },
}


def test_the_frames_that_the_refused_ones_differ_from_are_good() -> None:
    check_frame(sealed(columns=ONE, payload=b"xy"))
    check_frame(sealed(**STRIPED_ONE))
    apache_one = {"flags": 16, "digest_type": 0, "before": -1}
    check_frame(sealed(columns=struct.pack("<I", 32), payload=bytes(32), **apache_one))


@pytest.mark.parametrize("name", REFUSED)
def test_frames_with_right_checksums_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(IntegrityError):
        check_frame(sealed(**({"columns": ONE, "payload": b"xy"} | REFUSED[name])))


@pytest.mark.parametrize("flags", UNKNOWN_FLAGS)
def test_flags_that_are_reserved_or_unknown_break_the_protocol_and_the_frame(flags: int) -> None:
    frame = with_flags(sealed(columns=ONE, payload=b"xy"), flags)
    for refuse in (check_frame, check_header, parse_header, split_frames, lambda data: slice_frame(data, 0, 99)):
        with pytest.raises(UnknownFlagsError, match=f"{flags:#06x}") as refused:
            refuse(frame)
        assert isinstance(refused.value, ProtocolError)
        assert isinstance(refused.value, IntegrityError), "whoever meets it on a disk takes it for damage"


@pytest.mark.rule("L5")
def test_size_over_the_limit_is_refused_by_the_header_alone() -> None:
    fits = FRAME_BYTES_MAX - 64 - len(ONE)
    assert parse_header(sealed(columns=ONE, payload_bytes=fits)).size == FRAME_BYTES_MAX
    for fields in ({"payload_bytes": fits + 1}, {"columns_bytes": 2**32 - 1}, {"payload_bytes": 2**32 - 1}):
        with pytest.raises(IntegrityError, match="more than"):
            parse_header(sealed(columns=ONE, **fields))


@pytest.mark.rule("L5")
def test_no_frame_over_the_limit_is_made() -> None:
    fits = FRAME_BYTES_MAX - 64
    assert len(assemble((2, 0, 0, 3, -1, -1, -1, 0), [], bytes(fits), 0)) == FRAME_BYTES_MAX
    with pytest.raises(InvalidArgumentError, match="split"):
        assemble((2, 0, 0, 3, -1, -1, -1, 0), [], bytes(fits + 1), 0)


@examples(3)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_nothing_else(noise: bytes) -> None:
    for frame in (noise, b"BK\1\1" + noise, sealed(columns=ONE, payload=b"xy")[:48] + noise):
        try:
            split_frames(frame)
            check_frame(frame)
        except IntegrityError:
            pass
        assert check_frame(sealed(columns=ONE, payload=b"xy")).count == 1


@examples(4)
@given(
    flags=st.integers(0, 31),
    digest_type=st.integers(0, max(DigestType)),
    count=st.integers(0, 6),
    first_entry_id=st.integers(-1, 12),
    before=st.integers(-1, 5),
    columns=st.binary(max_size=120),
    payload=st.binary(max_size=20),
)
def test_a_sealed_frame_of_noise_is_decoded_or_refused(columns: bytes, payload: bytes, **fields: int) -> None:
    frame = sealed(columns=columns, payload=payload, **fields)
    try:
        check_frame(frame)
        decode_frame(frame, digester=CRC, verify_digests=True)
    except BookKeeperError as error:
        assert isinstance(error, IntegrityError)  # noqa: PT017 - noise may be a frame: then nothing is raised


def test_payload_damage_is_left_to_the_payload_crc() -> None:
    bad = bytearray(encode_frame(BATCH, digester=CRC, **AT))
    bad[-1] ^= 1
    assert check_header(bad).count == 3
    with pytest.raises(IntegrityError, match="payload"):
        check_frame(bad)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_extent_of_a_stripe_equals_the_ids_it_holds(size: int) -> None:
    for quorum in range(1, size):
        for index in range(size):
            for first in range(size):
                for span in range(1, 2 * size + 2):
                    held = [i for i in range(first, first + span) if (index - i) % size < quorum]
                    frame = striped(span, index, first, size, quorum)
                    if not held:
                        assert frame is None
                        continue
                    assert frame is not None
                    dense = held[-1] - held[0] + 1 == len(held)
                    assert frame_extent(frame) == FrameExtent(held[0], held[-1], dense, len(held), 8)
                    assert entry_ids_of(check_frame(frame), frame).tolist() == held


def test_extent_of_other_frames() -> None:
    ids = {(12, 10, 19): False, (12, 10, 11): True, (10, 10, 12): False}
    for listed, dense in ids.items():
        frame = encode_frame(replace(BATCH, ids=np.array(listed)), digester=CRC, **AT)
        assert frame_extent(frame) == FrameExtent(10, max(listed), dense, 3, 8)
    lacs = encode_frame(replace(BATCH, lacs=np.array([3, 8, 4])), digester=CRC, **AT)
    assert frame_extent(lacs) == FrameExtent(10, 12, True, 3, 8)
    foreign = sealed(columns=ONE + struct.pack("<q", 9), payload=b"xy", flags=4)
    assert frame_extent(foreign).max_lac == 9
    assert frame_extent(apache(), parse_header(apache())) == FrameExtent(10, 12, True, 3, -1)
    assert frame_extent(encode_record(FrameKind.FENCE, 3)) == FrameExtent(-1, -1, False, 0, -1)


def test_tag_is_outside_both_checksums() -> None:
    frame = encode_frame(BATCH, digester=CRC, session=7, **AT)
    assert frame_tag(frame) == 7
    copy = with_session(memoryview(frame), 2**32 - 1)
    assert (frame_tag(frame), frame_tag(copy)) == (7, 2**32 - 1)
    assert check_frame(copy).tag == 2**32 - 1
    assert copy[:60] + copy[64:] == frame[:60] + frame[64:]


@pytest.mark.parametrize(
    ("kind", "size"), [(2, 20), (3, 0), (4, 16), (4, 20), (4, 24), (4, 36), (5, 0), (6, 0), (7, 8)]
)
def test_records_give_their_payload_back(kind: int, size: int) -> None:
    payload = bytes(range(size))
    frame = encode_record(kind, 2**62, payload)
    header = check_frame(frame)
    assert (header.kind, header.ledger_id, header.size, header.span) == (kind, 2**62, 64 + size, 0)
    assert bytes(record_payload(frame)) == payload
    for bad in ((kind, 3, payload + b"\0"), (1, 3, b""), (8, 3, b""), (kind, -1, payload)):
        with pytest.raises(InvalidArgumentError):
            encode_record(*bad)


def test_headers_are_read_at_any_offset_of_any_buffer() -> None:
    frame = SMALL_FRAMES["plain"]() or b""
    window = memoryview(b"..." + frame)
    assert parse_header(window, 3) == parse_header(np.frombuffer(frame, dtype=np.int8).data) == check_frame(frame)
