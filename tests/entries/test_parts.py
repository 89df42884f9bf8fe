# SPDX-License-Identifier: Apache-2.0
"""Parts of entries: what is cut is what is checked, and no other bytes pass for it."""

from __future__ import annotations

import sys
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ENTRY_HEADER, Digester
from bk_core.entries.frame import (
    PARTIAL,
    apache_frame,
    assemble,
    check_frame,
    columns_of,
    decode_frame,
    encode_frame,
    encode_record,
    encode_striped,
    parse_header,
    split_frames,
)
from bk_core.entries.parts import CUT_ENTRIES_MAX, Heads, Parts, Regions, cut_frames
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import CUT_RANGES_MAX, Cut
from tests.kit.column_entries import column_entry, directory_of, regions_of

LEDGER, FIRST, WANTED = 7, 40, (0, 2)
ENTRIES = [column_entry(Random(seed), (24, 0, 400 + 8 * seed, 64)) for seed in range(6)]
DIRECTORIES = [directory_of(entry) for entry in ENTRIES]
HEADS = Heads(DIRECTORIES[0].size + 16)
REGIONS = Regions(FIRST, DIRECTORIES, WANTED)
LOOKS: list[Parts] = [HEADS, REGIONS]
EXPECTED = [[entry[: HEADS.bytes] for entry in ENTRIES], [regions_of(entry, WANTED) for entry in ENTRIES]]


def keyed(digest_type: DigestType = DigestType.CRC32C, ledger_id: int = LEDGER) -> Digester:
    return Digester(digest_type, b"secret", ledger_id)


def frame_of(entries: list[bytes], digest_type: DigestType = DigestType.CRC32C, ledger_id: int = LEDGER) -> bytes:
    made = EntryBatch.from_list(entries)
    key = keyed(digest_type, ledger_id)
    frame = encode_frame(
        made, digester=key, ledger_id=ledger_id, first_entry_id=FIRST, lac=3, length_before=99, session=1
    )
    return bytes(frame)


def cut(frame: bytes, parts: Parts, first: int = FIRST, last: int = FIRST + len(ENTRIES) - 1) -> memoryview:
    return memoryview(b"".join(cut_frames(frame, parts.cut(first, last))))


def got(parts: Parts, answer: memoryview, digest_type: DigestType = DigestType.CRC32C) -> dict[int, bytes]:
    batches = parts.verified(answer, keyed(digest_type))
    return {n: part for batch in batches for n, part in zip(batch.entry_ids().tolist(), batch.to_list(), strict=True)}


def expected(number: int) -> dict[int, bytes]:
    return dict(enumerate(EXPECTED[number], FIRST))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("digest_type", [kind for kind in DigestType if kind.has_parts])
def test_parts_are_those_of_the_entries_and_shorter(number: int, digest_type: DigestType) -> None:
    whole = frame_of(ENTRIES, digest_type)
    answer = cut(whole, LOOKS[number])
    assert len(answer) < len(whole)
    assert parse_header(answer, flags_known=0xFF).flags & PARTIAL
    assert got(LOOKS[number], answer, digest_type) == expected(number)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("digest_type", [kind for kind in DigestType if not kind.has_parts])
def test_entries_whose_digests_cannot_vouch_for_parts_come_whole(number: int, digest_type: DigestType) -> None:
    whole = frame_of(ENTRIES, digest_type)
    answer = cut(whole, LOOKS[number])
    assert bytes(answer) == whole
    assert got(LOOKS[number], answer, digest_type) == expected(number)


@pytest.mark.parametrize("number", [0, 1])
def test_entries_in_apaches_layout_come_whole(number: int) -> None:
    key, ids = keyed(), np.arange(FIRST, FIRST + len(ENTRIES))
    lengths = np.cumsum([len(entry) for entry in ENTRIES])
    headers = [ENTRY_HEADER.pack(LEDGER, int(n), 3, int(length)) for n, length in zip(ids, lengths, strict=True)]
    layout = [header + key.digest(header, e) + e for header, e in zip(headers, ENTRIES, strict=True)]
    whole = bytes(apache_frame(LEDGER, b"".join(layout), np.array(list(map(len, layout))), ids, 3))
    answer = cut(whole, LOOKS[number])
    assert bytes(answer) == whole
    assert got(LOOKS[number], answer) == expected(number)


@pytest.mark.parametrize("number", [0, 1])
def test_parts_of_a_striped_frame_keep_their_ids(number: int) -> None:
    made = EntryBatch.from_list(ENTRIES)
    digests = decode_frame(frame_of(ENTRIES)).digests
    assert digests is not None
    frame = encode_striped(
        made,
        ledger_id=LEDGER,
        first_entry_id=FIRST,
        lac=3,
        length_before=99,
        digest_type=DigestType.CRC32C,
        digests=digests,
        ensemble_size=3,
        write_quorum=2,
        index=1,
    )
    assert frame is not None
    found = got(LOOKS[number], cut(bytes(frame), LOOKS[number]))
    assert found == {n: part for n, part in expected(number).items() if n % 3 in (0, 1)}


@pytest.mark.parametrize("number", [0, 1])
def test_an_entry_that_nothing_is_wanted_of_costs_nothing(number: int) -> None:
    regions = Regions(FIRST, [None, *DIRECTORIES[1:]], WANTED)
    found = got(regions, cut(frame_of(ENTRIES), regions))
    assert found == {**expected(1), FIRST: b""}


def calls_of(name: str, parts: Parts, answers: list[memoryview]) -> int:
    """The number of calls of the functions of this name while the answers are verified, and directories taken."""
    seen = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        seen += event == "call" and frame.f_code.co_name == name

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        for answer in answers:
            for batch in parts.verified(answer, keyed()):
                for n, view in zip(batch.entry_ids().tolist(), batch.entry_views(), strict=True):
                    assert not isinstance(parts, Heads) or parts.directory(n, view) == DIRECTORIES[n - FIRST]
    finally:
        sys.setprofile(before)
    return seen


def test_a_directory_is_parsed_once() -> None:
    heads = Heads(HEADS.bytes)
    assert calls_of("parse", heads, [cut(frame_of(ENTRIES), heads)]) == len(ENTRIES)
    assert not heads._parsed, "directories that were taken are held no longer"


def test_a_directory_that_was_not_verified_is_parsed() -> None:
    heads = Heads(HEADS.bytes)
    heads.verified(cut(frame_of(ENTRIES), heads), keyed())
    other = memoryview(ENTRIES[1])
    assert heads.directory(FIRST, other) == DIRECTORIES[1], "of the bytes that are given, not of those verified before"


def test_an_answer_costs_nothing_for_the_rest_of_its_window() -> None:
    regions = Regions(FIRST, DIRECTORIES, WANTED)
    answers = [cut(frame_of(ENTRIES), regions)] * 3
    assert calls_of("_ranges", regions, answers) == 0


def resealed(frame: memoryview, **changes: Any) -> memoryview:
    """A frame with PARTIAL whose own checksums are right, with other contents: what a hostile bookie can send."""
    header = parse_header(frame, flags_known=0xFF)
    head: list[Any] = [header.kind, *header[1:8]]
    for name, value in changes.items():
        if name in header._fields:
            head[header._fields.index(name)] = value
    columns = bytes(changes.get("columns", frame[64 : 64 + header.columns_bytes]))
    payload = bytes(changes.get("payload", frame[64 + header.columns_bytes :]))
    made = memoryview(bytes(assemble(tuple(head), [columns], payload, 0)))
    check_frame(made, parse_header(made, flags_known=0xFF))
    return made


def lies(number: int) -> dict[str, memoryview]:
    parts, whole = LOOKS[number], frame_of(ENTRIES)
    honest = cut(whole, parts)
    header = parse_header(honest, flags_known=0xFF)
    payload = bytearray(honest[64 + header.columns_bytes :])
    payload[-20] ^= 1  # in the last column of the last entry
    turned = [*ENTRIES[1:], ENTRIES[0]]
    digests = columns_of(header, honest).digests
    other_digests = bytearray(honest[64 : 64 + header.columns_bytes])
    other_digests[4 * len(ENTRIES)] ^= 1
    longer = Heads(HEADS.bytes + 8) if number == 0 else Regions(FIRST, DIRECTORIES, (0, 1, 2, 3))
    neighbour = Regions(FIRST, DIRECTORIES, (0, 3))
    assert digests.shape == (len(ENTRIES), 4)
    made = {
        "a flipped bit": resealed(honest, payload=bytes(payload)),
        "another entry's part": resealed(honest, payload=bytes(cut(frame_of(turned), parts))[-header.payload_bytes :]),
        "another place": resealed(honest, first_entry_id=FIRST + 1),
        "another ledger": cut(frame_of(ENTRIES, ledger_id=LEDGER + 1), parts),
        "other bytes than asked for": cut(whole, longer),
        "another column": cut(whole, neighbour),
        "a record": memoryview(encode_record(3, LEDGER)),
        "a frame that is cut off": honest[:-1],
        "another digest type": cut(frame_of(ENTRIES, DigestType.DUMMY), parts),
    }
    if number == 0:
        made["another digest"] = resealed(honest, columns=bytes(other_digests))
        made["another LAC"] = resealed(honest, lac=4)
        made["another ledger length"] = resealed(honest, length_before=98)
        del made["another column"]
    return made


@pytest.mark.parametrize(("number", "lie"), [(number, lie) for number in (0, 1) for lie in lies(number)])
def test_no_other_bytes_pass_for_a_part(number: int, lie: str) -> None:
    with pytest.raises(IntegrityError):
        got(LOOKS[number], lies(number)[lie])


def test_a_head_that_ends_before_its_directory_is_refused() -> None:
    short = Heads(DIRECTORIES[0].size - 8)
    with pytest.raises(IntegrityError, match="impossible size"):
        got(short, cut(frame_of(ENTRIES), short))


def test_nobody_else_takes_a_frame_of_parts() -> None:
    answer = cut(frame_of(ENTRIES), HEADS)
    for take in (split_frames, check_frame, decode_frame, parse_header):
        with pytest.raises(IntegrityError):
            take(answer)


def test_frames_of_many_entries_are_not_cut() -> None:
    many = frame_of([b"x" * 100] * (CUT_ENTRIES_MAX + 1))
    assert [bytes(frame) for frame in cut_frames(many, Cut(head=8))] == [many]
    some = frame_of([b"x" * 100] * CUT_ENTRIES_MAX)
    assert len(cut_frames(some, Cut(head=8))[0]) < len(some)


def test_a_cut_that_cannot_be_is_refused() -> None:
    one = ((0, 8), (8, 8))
    assert Cut(0, 5, (one, ())).problem(5, 6) == ""
    assert Cut(0, 5, (one,)).problem(5, 6)
    assert Cut(0, 4, (one, ())).problem(5, 6)
    assert Cut(0, 5, (((0, 9), (8, 8)),)).problem(5, 5)
    assert Cut(0, 5, (((8, 8), (0, 8)),)).problem(5, 5)
    assert Cut(8, 5, (one,)).problem(5, 5)
    assert Cut(0, 5, (tuple((n, 1) for n in range(CUT_RANGES_MAX + 1)),)).problem(5, 5)
    assert Cut(0, 5, (((0, 100), (90, 20)),)).spans(5, 95) == [(0, 95), (90, 95)]
    assert np.array(Cut(head=8).spans(5, 3)).tolist() == [[0, 3]]
