# SPDX-License-Identifier: Apache-2.0
"""The directory of an entry of codec arrow: its bytes, what it says of each region, and every way it can be wrong."""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries import arrow_directory
from bk_core.entries.arrow_directory import (
    BOUND_BYTES_MAX,
    HAS_MAX,
    HAS_MIN,
    MAX_RAISED,
    MIN_CUT,
    NO_BOUNDS,
    Bounds,
    Column,
    Directory,
    encode,
    parse,
    rounded_outward,
)
from bk_core.entries.digest import ENTRY_HEADER, Digester, crc32c
from bk_core.errors import IntegrityError
from bk_core.model import DigestType

HEAD = bytes(range(40))
REGIONS = [b"column 0" * 3, b"", b"column 2"]
BOUNDS = [Bounds(b"\x01", b"\x02", HAS_MIN | HAS_MAX), NO_BOUNDS, Bounds(b"", None, HAS_MIN)]


def columns_of(regions: list[bytes], bounds: list[Bounds]) -> list[Column]:
    return [Column(len(region), crc32c(region), k, bounds[k]) for k, region in enumerate(regions)]


def entry(regions: list[bytes] = REGIONS, bounds: list[Bounds] = BOUNDS, *, unit: int = 8) -> bytes:
    columns = columns_of(regions, bounds)
    return encode(9, len(HEAD), crc32c(HEAD), columns, unit=unit) + HEAD + b"".join(regions)


def read(data: bytes) -> Directory:
    return parse(memoryview(data), len(data))


def test_the_bytes_are_those_of_the_document_field_by_field() -> None:
    data = entry()
    rows = [(24, crc32c(REGIONS[0]), 0, 3, 1, 1, 0), (0, 0, 1, 0, 0, 0, 0), (8, crc32c(REGIONS[2]), 2, 1, 0, 0, 0)]
    rest = struct.pack("<IIII", 9, 3, 40, crc32c(HEAD)) + b"".join(struct.pack("<IIIBBBB", *row) for row in rows)
    rest += b"\x01\x02" + bytes(6)
    begin = struct.pack("<4sHHI", b"BKAD", 1, 0, 88)
    assert data[:88] == begin + struct.pack("<I", crc32c(begin + rest)) + rest


def test_what_is_written_is_read() -> None:
    data = entry()
    told = read(data)
    assert (told.rows, told.size, told.crc) == (9, 88, crc32c(data[:88]))
    assert told.columns == columns_of(REGIONS, BOUNDS)
    assert data[told.head] == HEAD
    assert [data[told.column(k)] for k in range(3)] == REGIONS
    assert parse(memoryview(data)[:88], len(data)) == told, "the first bytes of an entry are enough"


@given(st.lists(st.integers(0, 5), max_size=6), st.sampled_from([8, 64]))
def test_regions_cover_the_entry_and_their_checksums_make_its_digest(sizes: list[int], unit: int) -> None:
    regions = [bytes([k]) * 8 * size for k, size in enumerate(sizes)]
    data = entry(regions, [BOUNDS[k % 3] for k in range(len(regions))], unit=unit)
    told = read(data)
    places = [slice(0, told.size), told.head, *map(told.column, range(len(regions)))]
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    assert places[-1].stop == len(data)
    assert told.offsets[0] % unit == 0
    header = ENTRY_HEADER.pack(7, 12, 11, 4711)
    other = entry(REGIONS[:1], [NO_BOUNDS])
    before = [crc32c(header), 0, crc32c(b"other")]
    bound = arrow_directory.crcs_behind(before, [told, told, read(other)]).tolist()
    assert bound == [crc32c(header + data), crc32c(data), crc32c(b"other" + other)]
    assert bound[0].to_bytes(4, "big") == Digester(DigestType.CRC32C, b"", 7).digest(header, data)


def test_no_directories_have_no_checksums() -> None:
    assert arrow_directory.crcs_behind([], []).tolist() == []


def test_every_flipped_bit_is_noticed_by_the_check_of_its_region() -> None:
    data = entry()
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        if bit // 8 < 88:
            with pytest.raises(IntegrityError):
                read(bytes(bad))
            continue
        told = read(bytes(bad))
        places = [told.head, *map(told.column, range(3))]
        checks = [told.check_head, *(partial(told.check_column, k) for k in range(3))]
        for place, check in zip(places, checks, strict=True):
            if place.start <= bit // 8 < place.stop:
                with pytest.raises(IntegrityError):
                    check(bytes(bad[place]))
            else:
                check(bytes(bad[place]))


def test_a_region_of_another_length_is_refused() -> None:
    data = entry([b"\0" * 8], [NO_BOUNDS])
    told = read(data)
    for region in (b"", b"\0" * 16, b"\0" * 7):
        with pytest.raises(IntegrityError):
            told.check_column(0, region)
        with pytest.raises(IntegrityError):
            told.check_head(region)


def test_every_cut_and_every_extra_byte_is_refused() -> None:
    data = entry()
    for size in range(len(data)):
        with pytest.raises(IntegrityError):
            read(data[:size])
    for more in (b"\0", bytes(8)):
        with pytest.raises(IntegrityError):
            read(data + more)


def test_the_own_checksum_is_no_part_of_what_it_makes_of_the_entry() -> None:
    """A CRC at the end of what it covers would make the CRC of the whole a constant: any directory with a right one
    would then combine to the same digest."""
    one, other = entry(bounds=[NO_BOUNDS] * 3), entry(bounds=[NO_BOUNDS, NO_BOUNDS, Bounds(None, None, MIN_CUT)])
    assert len(one) == len(other)
    assert read(one).crc != read(other).crc


def resealed(data: bytes, at: int, form: str, *values: int) -> bytes:
    """A directory with other numbers and a right checksum."""
    size = struct.unpack_from("<I", data, 8)[0]
    bad = bytearray(data)
    struct.pack_into(form, bad, at, *values)
    struct.pack_into("<I", bad, 12, crc32c(bytes(bad[16:size]), crc32c(bytes(bad[:12]))))
    return bytes(bad)


@pytest.mark.parametrize(
    ("at", "form", "value", "why"),
    [
        (0, "<I", 0xFFFFFFFF, "no directory"),
        (4, "<H", 2, "version 2"),
        (6, "<H", 1, "impossible size"),
        (8, "<I", 80 - 1, "impossible size"),
        (8, "<I", 1 << 31, "impossible size"),
        (20, "<I", 4, "contradicts|cover|impossible"),
        (20, "<I", 0xFFFFFFFF, "impossible size"),
        (24, "<I", 48, "do not cover"),
        (24, "<I", 36, "do not cover"),
        (32, "<I", 16, "do not cover"),
        (32, "<I", 0xFFFFFFF8, "do not cover"),
        (40, "<I", 10, "contradicts"),
        (44, "<B", 16, "contradicts"),
        (45, "<B", BOUND_BYTES_MAX + 1, "contradicts"),
        (46, "<B", 10, "contradicts"),
        (47, "<B", 1, "contradicts"),
    ],
)
def test_what_cannot_be_is_refused_although_the_checksum_is_right(at: int, form: str, value: int, why: str) -> None:
    data = entry()
    assert resealed(data, 16, "<I", 9) == data
    with pytest.raises(IntegrityError, match=why):
        read(resealed(data, at, form, value))


def test_regions_begin_at_multiples_of_8() -> None:
    regions = [b"x" * 4, b"y" * 4]
    with pytest.raises(IntegrityError, match="do not cover"):
        read(entry(regions, [NO_BOUNDS] * 2))


@given(st.binary(max_size=120), st.integers(0, 88))
def test_any_bytes_are_a_directory_or_refused(noise: bytes, kept: int) -> None:
    for data in (noise, entry()[:kept] + noise):
        with suppress(IntegrityError):
            assert read(data).offsets[-1] == len(data)


# --- bounds -----------------------------------------------------------------------------------------------------------

NEAR = (
    st.binary(max_size=4)
    | st.integers(31, 34).map(lambda size: b"\xff" * size)
    | st.integers(29, 36).flatmap(
        lambda size: st.lists(st.sampled_from([0, 0x61, 0xC3, 0xFE, 0xFF]), min_size=size, max_size=size).map(bytes)
    )
)


@given(st.lists(NEAR, min_size=1, max_size=5))
def test_bounds_are_outward_and_as_near_as_their_length_allows(values: list[bytes]) -> None:
    least, greatest = min(values), max(values)
    low, high, bits = rounded_outward(least, greatest)
    assert low is not None
    assert low <= least
    assert len(low) <= BOUND_BYTES_MAX
    assert low == least[:BOUND_BYTES_MAX]
    assert bool(bits & MIN_CUT) == (low != least)
    assert bits & HAS_MIN
    assert (high is not None) == bool(bits & HAS_MAX)
    if high is None:
        assert greatest[:BOUND_BYTES_MAX] == b"\xff" * BOUND_BYTES_MAX
        assert len(greatest) > BOUND_BYTES_MAX
        return
    assert high >= greatest
    assert len(high) <= BOUND_BYTES_MAX
    assert bool(bits & MAX_RAISED) == (high != greatest)
    assert high[:-1] == greatest[: len(high) - 1] if bits & MAX_RAISED else high == greatest


def test_a_directory_keeps_bounds_of_all_lengths_apart() -> None:
    bounds = [
        rounded_outward(b"a" * low, b"b" * high) for low, high in ((0, 0), (1, 40), (32, 0), (33, 1), (5, 32))
    ] + [rounded_outward(b"", b"\xff" * 40), NO_BOUNDS]
    data = entry([b""] * len(bounds), bounds)
    assert [column.bounds for column in read(data).columns] == bounds


def test_magic_and_version_are_final() -> None:
    assert (arrow_directory.MAGIC, arrow_directory.VERSION) == (b"BKAD", 1)
