# SPDX-License-Identifier: Apache-2.0
"""Apache's own bytes of entries and LAC bodies, both ways, and frames of them: one made alone is as one of a batch."""

from __future__ import annotations

import struct
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.entries.apache import lac_body, parse_lac_body, split_few
from bk_core.entries.apache_frame import check_apache, encode_apache, encode_apache_one
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ENTRY_HEADER, Digester
from bk_core.entries.frame import check_frame, parse_header
from bk_core.errors import IntegrityError, InvalidArgumentError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX
from tests.kit.amount import examples
from tests.kit.apache_frames import entry_bytes, parse_entries

HEADER = "00000000000000010000000000000000ffffffffffffffff0000000000000005"


def run(payloads: list[bytes], **fields: int) -> EntryBatch:
    return replace(EntryBatch.from_list(payloads), **({"ledger_id": 1} | fields))


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (DigestType.CRC32, "0000000030a56872"),
        (DigestType.CRC32C, "e3a5f74d"),
        (DigestType.MAC, "2c5f3dbb8c95c515351daad95c129012c5d7a5f9"),
        (DigestType.DUMMY, ""),
    ],
)
def test_entry_is_apaches_byte_for_byte(kind: DigestType, digest: str) -> None:
    (entry,) = entry_bytes(run([b"hello"]), Digester(kind, b"passwd", 1))
    assert entry.hex() == HEADER + digest + b"hello".hex()
    assert len(entry) == {1: 45, 2: 57, 3: 41, 4: 37}[kind]


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (DigestType.CRC32, "0000000065a4cab5"),
        (DigestType.CRC32C, "62842849"),
        (DigestType.MAC, "f74d0f05f449e19401f8c82138ea84ff7655d668"),
        (DigestType.DUMMY, ""),
    ],
)
def test_lac_body_is_apaches_byte_for_byte(kind: DigestType, digest: str) -> None:
    digester = Digester(kind, b"passwd", 1)
    body = lac_body(7, digester)
    assert body.hex() == "00000000000000010000000000000007" + digest
    assert parse_lac_body(memoryview(body), digester) == 7


@pytest.mark.rule("P5")
@pytest.mark.parametrize("kind", [kind for kind in DigestType if kind.digest_bytes])
def test_one_flipped_bit_of_a_lac_body_is_no_evidence(kind: DigestType) -> None:
    digester = Digester(kind, b"passwd", 1)
    body = lac_body(7, digester)
    for bit in range(8 * len(body)):
        bad = bytearray(body)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IntegrityError):
            parse_lac_body(bytes(bad), digester)
    for bad_size in (body[:-1], body + b"\0", b""):
        with pytest.raises(IntegrityError):
            parse_lac_body(bad_size, digester)


@pytest.mark.rule("P5")
@pytest.mark.parametrize("kind", DigestType)
def test_lac_body_of_another_ledger_is_no_evidence(kind: DigestType) -> None:
    with pytest.raises(IntegrityError):
        parse_lac_body(lac_body(7, Digester(kind, b"passwd", 2)), Digester(kind, b"passwd", 1))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.sampled_from(DigestType), st.booleans())
def test_entries_survive_the_way_to_apaches_bytes_and_back(
    payloads: list[bytes], kind: DigestType, equal: bool
) -> None:
    payloads = [payload.ljust(40) for payload in payloads] if equal else payloads
    digester = Digester(kind, b"pw", 1)
    entries = entry_bytes(run(payloads, first_entry_id=50, lac=48, length_before=1000), digester)
    batch = parse_entries(entries, digester)
    assert batch.to_list() == payloads
    assert (batch.ids, batch.lacs, batch.ledger_lengths) == (None, None, None)
    assert (batch.first_entry_id, batch.lac, batch.length_before) == (50, 48, 1000)
    assert entry_bytes(batch, digester) == entries


def test_entries_with_gaps_keep_their_ids_lacs_and_lengths() -> None:
    digester = Digester(DigestType.CRC32C, b"pw", 1)
    batch = replace(run([b"a", b"", b"ccc"]), ids=np.array([9, 4, 7]), lacs=np.array([3, -1, 2]), first_entry_id=4)
    batch = replace(batch, ledger_lengths=np.array([100, 20, 50]), lac=3, length_before=99)
    parsed = parse_entries(entry_bytes(batch, digester), digester)
    assert parsed.entry_ids().tolist() == [9, 4, 7]
    assert parsed.entry_lacs().tolist() == [3, -1, 2]
    assert parsed.cumulative_lengths().tolist() == [100, 20, 50]
    assert (parsed.first_entry_id, parsed.last_entry_id, parsed.lac) == (4, 9, 3)


def test_kept_digests_are_given_out_unchanged() -> None:
    digester = Digester(DigestType.CRC32C, b"pw", 1)
    batch = replace(run([b"a"]), digests=np.array([[1, 2, 3, 4]], dtype=np.uint8), digest_type=DigestType.CRC32C)
    assert entry_bytes(batch, digester)[0][32:] == b"\1\2\3\4a"


@pytest.mark.parametrize("equal", [True, False])
def test_the_first_bad_entry_is_named(equal: bool) -> None:
    digester = Digester(DigestType.CRC32C, b"pw", 1)
    entries = entry_bytes(run([b"x" * (3 if equal else k + 1) for k in range(20)], first_entry_id=70), digester)
    entries[13] = entries[13][:-1] + b"y"
    with pytest.raises(IntegrityError, match="entry 83"):
        parse_entries(entries, digester)


def test_short_or_foreign_entries_are_refused() -> None:
    digester = Digester(DigestType.DUMMY, b"pw", 1)
    with pytest.raises(IntegrityError, match="shorter"):
        parse_entries([bytes(31)], digester)
    with pytest.raises(IntegrityError, match="another ledger"):
        parse_entries([struct.pack(">qqqq", 2, 0, -1, 0)], digester)


def test_no_entries_are_no_bytes() -> None:
    digester = Digester(DigestType.CRC32C, b"pw", 1)
    assert entry_bytes(run([]), digester) == []
    assert parse_entries([], digester).count == 0


@settings(derandomize=True, deadline=None)
@given(
    st.sampled_from(DigestType),
    st.lists(st.tuples(st.binary(max_size=9), st.integers(-1, 2), st.integers(0, 1)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.one_of(st.none(), st.tuples(st.integers(0, 400), st.integers(0, 7))),
)
def test_a_few_entries_are_split_as_many_are(
    kind: DigestType, made: list[tuple[bytes, int, int]], before: int, flip: tuple[int, int] | None
) -> None:
    payloads, lacs, gaps = zip(*made, strict=True)
    digester, numbers = Digester(kind, b"passwd", 1), np.arange(len(made)) + np.cumsum(gaps)
    lengths = before + np.cumsum([len(each) for each in payloads]) + np.cumsum(gaps)
    columns = {"ids": numbers, "lacs": np.array(lacs), "ledger_lengths": lengths}
    batch = replace(run(list(payloads), lac=max(lacs)), **columns)
    entries = entry_bytes(batch, digester)
    whole = bytearray(b"".join(entries))
    if flip is not None:
        whole[flip[0] % len(whole)] ^= 1 << flip[1]
    sizes = [len(each) for each in entries]
    ends = np.cumsum(sizes).tolist()
    begins = [end - size for end, size in zip(ends, sizes, strict=True)]
    few = split_few(memoryview(bytes(whole)), begins, sizes, digester)
    try:
        wanted = parse_entries([bytes(whole[a:b]) for a, b in zip(begins, ends, strict=True)], digester)
    except IntegrityError:
        assert few is None
        return
    if wanted.ids is not None or wanted.length_before < 0:
        assert few is None
        return
    assert few is not None
    for field in fields(EntryBatch):
        one, other = getattr(few, field.name), getattr(wanted, field.name)
        assert np.array_equal(one, other) if isinstance(other, np.ndarray) else one == other, field.name


def test_entries_that_are_shorter_than_their_header_are_not_split() -> None:
    digester = Digester(DigestType.CRC32C, b"passwd", 1)
    assert split_few(memoryview(bytes(35)), [0], [35], digester) is None
    assert split_few(memoryview(b""), [], [], digester) is None


@examples(1)
@given(st.binary(max_size=30), st.integers(0, (1 << 63) - 2), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 9))
def test_an_apache_entry_alone_is_framed_as_in_a_batch_and_its_header_is_what_a_reader_parses(
    payload: bytes, entry_id: int, lac: int, session: int
) -> None:
    entry = ENTRY_HEADER.pack(3, entry_id, lac, 50) + payload
    made = encode_apache_one(3, entry_id, memoryview(entry), session)
    assert made is not None
    header, frame = made
    inside = np.array([ENTRY_HEADER.unpack_from(entry)])
    lengths = np.array([len(entry)], dtype=np.uint32)
    assert frame == encode_apache(3, inside, lengths, entry, session=session)
    assert header == parse_header(frame)
    check_frame(frame)
    check_apache(header, frame)


def test_an_apache_entry_that_says_other_ids_or_none_is_not_framed() -> None:
    entry = ENTRY_HEADER.pack(3, 5, 4, 50)
    assert encode_apache_one(3, 5, entry, 1) is not None
    for ledger_id, entry_id, body in ((4, 5, entry), (3, 6, entry), (3, 5, entry[:-1]), (3, 5, b"")):
        assert encode_apache_one(ledger_id, entry_id, body, 1) is None
    last = ENTRY_HEADER.pack(3, (1 << 63) - 1, 4, 50)
    assert encode_apache_one(3, (1 << 63) - 1, last, 1) is None
    with pytest.raises(InvalidArgumentError, match="a frame may have"):
        encode_apache_one(3, 5, entry + bytes(FRAME_BYTES_MAX), 1)
