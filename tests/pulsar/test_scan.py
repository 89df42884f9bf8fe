# SPDX-License-Identifier: Apache-2.0
"""Fields of many messages at once: the same as one by one, and the same as protobuf's own reader."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bk_core.pulsar.messages.scan import _FEW, Wanted, scan, varints

WANTED = Wanted(numbers=frozenset({1, 9}), spans=frozenset({2}), repeated=frozenset({3}))


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


NUMBERS = st.integers(0, (1 << 64) - 1)
FIELDS = st.one_of(
    st.tuples(st.sampled_from([1, 2, 9, 300]), st.just(0), NUMBERS),
    st.tuples(st.sampled_from([1, 2, 3, 300]), st.just(2), st.binary(max_size=150)),
    st.tuples(st.sampled_from([1, 2, 3]), st.just(1), st.binary(min_size=8, max_size=8)),
    st.tuples(st.sampled_from([1, 2, 3]), st.just(5), st.binary(min_size=4, max_size=4)),
)


def signed64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def encoded(number: int, wire: int, value: int | bytes) -> bytes:
    tag = varint(number << 3 | wire)
    if isinstance(value, int):
        return tag + varint(value)
    return tag + (varint(len(value)) if wire == 2 else b"") + value


class Scanned(NamedTuple):
    """The result of a scan: ``bad`` of all messages, and the fields of the good ones."""

    bad: list[bool]
    spans: list[bytes | None]
    repeated: list[tuple[int, bytes]]
    numbers: list[tuple[list[int], list[bool]]]


def scanned(messages: list[bytes], narrow: int) -> Scanned:
    data = np.frombuffer(b"".join(messages) or b"\0", dtype=np.uint8)
    ends = np.cumsum([len(each) for each in messages], dtype=np.int64)
    begins = ends - [len(each) for each in messages]
    found = scan(data, begins.astype(np.int64), ends, WANTED, narrow=narrow)
    good = ~found.bad
    spans = [
        bytes(data[b : b + n]) if n >= 0 else None
        for b, n, ok in zip(*(c.tolist() for c in found.span(2)), good.tolist(), strict=True)
        if ok
    ]
    rows, begins, sizes = found.occurrences(3)
    repeated = [
        (row, bytes(data[b : b + n]))
        for row, b, n in zip(rows.tolist(), begins.tolist(), sizes.tolist(), strict=True)
        if good[row]
    ]
    numbers = [(found.number(k)[good].tolist(), found.has(k)[good].tolist()) for k in (1, 9)]
    return Scanned(found.bad.tolist(), spans, repeated, numbers)


@given(st.lists(st.lists(FIELDS, max_size=8), max_size=30))
def test_many_at_once_equal_one_by_one_and_what_was_written(messages: list[list[tuple[int, int, int | bytes]]]) -> None:
    data = [b"".join(encoded(*each) for each in fields) for fields in messages]
    wide = scanned(data, 0)
    assert wide == scanned(data, 1 << 30)
    bad, spans, repeated, numbers = wide
    assert bad == [False] * len(data)
    last = [[v for k, w, v in fields if (k, w) == (2, 2)] for fields in messages]
    assert spans == [found[-1] if found else None for found in last]
    assert repeated == [(row, v) for row, fields in enumerate(messages) for k, w, v in fields if (k, w) == (3, 2)]
    signed = [[signed64(v) for k, _, v in fields if k == 1 and isinstance(v, int)] for fields in messages]
    assert numbers[0] == ([f[-1] if f else 0 for f in signed], [bool(f) for f in signed])


@given(st.lists(st.binary(max_size=60), max_size=30))
def test_any_bytes_are_found_bad_alike(data: list[bytes]) -> None:
    assert scanned(data, 0) == scanned(data, 1 << 30)


@given(st.lists(FIELDS, min_size=1, max_size=4), st.data())
def test_cut_message_never_reaches_into_the_next(
    fields: list[tuple[int, int, int | bytes]], data: st.DataObject
) -> None:
    whole = b"".join(encoded(*each) for each in fields)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert scanned([cut, whole], 0) == scanned([cut, whole], 1 << 30)
    assert scanned([cut, whole], 0).bad[1] is False


def test_message_of_very_many_fields_beside_many_others_is_read() -> None:
    many = encoded(3, 2, b"") * 5000
    bad, _, repeated, _ = scanned([many] * 20, 12)
    assert not any(bad)
    assert len(repeated) == 100_000


LAYOUTS = st.lists(st.sampled_from([(1, 0), (9, 0), (2, 2), (3, 2), (300, 0)]), min_size=1, max_size=5)


@given(LAYOUTS, st.integers(0, 1 << 32), st.booleans())
def test_messages_of_one_layout_are_read_as_one_by_one(
    layout: list[tuple[int, int]], seed: int, are_long: bool
) -> None:
    dice, count = random.Random(seed), _FEW + 20

    def value(wire: int) -> int | bytes:
        if wire == 2:
            return dice.randbytes(dice.choice((0, 1, 130)))
        return dice.getrandbits(dice.choice((21, 28, 41, 49, 56, 57, 64) if are_long else (1, 7, 8, 14)))

    data = [b"".join(encoded(number, wire, value(wire)) for number, wire in layout) for _ in range(count)]
    assert scanned(data, 0) == scanned(data, 1 << 30)
    assert not any(scanned(data, 0).bad)
    for row in dice.sample(range(count), 5):
        data[row] = data[row][: dice.randrange(len(data[row]))]
    assert scanned(data, 0) == scanned(data, 1 << 30)


@given(st.integers(0, 1 << 32), st.integers(0, 12))
def test_varints_read_together_are_those_read_alone(seed: int, more: int) -> None:
    dice = random.Random(seed)
    values = [dice.getrandbits(dice.randrange(1, 65)) for _ in range(_FEW * 3)]
    ends = np.cumsum([len(varint(value)) for value in values])
    at, stop = np.append(0, ends[:-1]), ends.copy()
    cut = np.array([dice.random() < 0.1 for _ in values])
    stop[cut] -= 1
    found, after, is_bad = varints(np.frombuffer(b"".join(map(varint, values)) + b"\x80" * more, np.uint8), at, stop)
    assert is_bad.tolist() == cut.tolist()
    assert found.tolist() == values
    assert after.tolist() == ends.tolist()


def test_varints_without_an_end_are_bad() -> None:
    data = np.frombuffer(b"\x80" * 400 + b"\x01", np.uint8)
    at = np.arange(_FEW * 2 + 20, dtype=np.int64)
    _, _, is_bad = varints(data, at, np.full(at.size, data.size))
    assert is_bad.all()
