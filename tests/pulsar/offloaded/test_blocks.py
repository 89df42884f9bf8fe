# SPDX-License-Identifier: Apache-2.0
"""Objects of the jcloud offloader: index and blocks of both versions, pieces of any size, and bytes that lie."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.pulsar.offloaded import blocks
from bk_core.pulsar.offloaded.blocks import BlockParser, OffloadFormatError, OffloadIndex, parse_index
from tests.kit.amount import some
from tests.kit.offloaded import FILL, HEAD_BYTES, index_of, offload

ENTRIES = [bytes([65 + n]) * (n * 7) for n in range(20)]


def entries_of(
    data: bytes, index: OffloadIndex, last: int, *, wanted: int = 0, step: int = 1 << 20
) -> dict[int, bytes]:
    """The entries of all blocks, which are fed in pieces of ``step`` bytes."""
    found, lasts = dict[int, bytes](), [*(index.firsts[1:] - 1).tolist(), last]
    for number, of_block in enumerate(lasts):
        begin, size = int(index.offsets[number]), int(index.lengths[number])
        parser = BlockParser(index, number, of_block, wanted)
        for at in range(begin, begin + size, step):
            batch = parser.feed(data[at : min(at + step, begin + size)])
            if batch is not None:
                found |= dict(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))
        parser.finish()
    return found


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("fill", [0, 1, 6])
@pytest.mark.parametrize("step", [1, 13, 1 << 20])
def test_entries_come_back_in_pieces_of_any_size(streaming: bool, fill: int, step: int) -> None:
    data, index = offload({7: ENTRIES}, 700, streaming=streaming, fill=fill)
    parsed = parse_index(index, 7)
    assert len(parsed) > 2
    assert entries_of(data, parsed, 19, step=step) == dict(enumerate(ENTRIES))
    assert entries_of(data, parsed, 19, step=step, wanted=9) == dict(list(enumerate(ENTRIES))[9:])


def test_ledgers_of_one_streaming_object_are_told_apart() -> None:
    data, index = offload({7: ENTRIES, 9: ENTRIES[::-1]}, 400, streaming=True)
    assert entries_of(data, parse_index(index, 7), 19) == dict(enumerate(ENTRIES))
    assert entries_of(data, parse_index(index, 9), 19) == dict(enumerate(ENTRIES[::-1]))
    with pytest.raises(OffloadFormatError, match="ledger 8 0 times"):
        parse_index(index, 8)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.integers(450, 2000), st.integers(1, 500))
def test_any_entries_come_back(entries: list[bytes], block_bytes: int, step: int) -> None:
    data, index = offload({1: entries}, block_bytes)
    assert entries_of(data, parse_index(index, 1), len(entries) - 1, step=step) == dict(enumerate(entries))


def test_small_and_large_entries_are_both_freed_of_their_heads() -> None:
    for size in (1, 100, 5000):
        entries = [random.Random(size + n).randbytes(size) for n in range(30)]
        data, index = offload({1: entries}, 20_000)
        assert entries_of(data, parse_index(index, 1), 29) == dict(enumerate(entries))


def wrong_indexes() -> list[tuple[str, bytes]]:
    _, index = offload({7: ENTRIES}, 700)
    row = [(0, 1, 0), (5, 2, 700)]

    def patched(at: int, layout: str, value: int) -> bytes:
        return index[:at] + struct.pack(layout, value) + index[at + struct.calcsize(layout) :]

    return [
        ("has 0 bytes", b""),
        ("begins with", b"\0" + index[1:]),
        ("and says", index[:-1]),
        ("and says", index + b"x"),
        ("bytes of data", patched(8, ">Q", 1 << 63)),
        ("heads of", patched(16, ">Q", 1 << 40)),
        ("heads of", patched(16, ">Q", 3)),
        ("blocks, and has", patched(24, ">I", (1 << 32) - 1)),
        ("0 blocks", patched(24, ">I", 0)),
        ("behind its last", patched(24, ">I", 1)),
        ("blocks, and has", patched(28, ">I", (1 << 32) - 1)),
        ("out of order", index_of({7: row[::-1]}, 1400, streaming=False)),
        ("out of order", index_of({7: [(0, 1, 0), (0, 2, 700)]}, 1400, streaming=False)),
        ("out of order", index_of({7: [(0, 1, 0), (5, 2, 50)]}, 1400, streaming=False)),
        ("out of order", index_of({7: [(0, 1, 9), (5, 2, 700)]}, 1400, streaming=False)),
        ("out of order", index_of({7: [(0, 1, 0), (5, 2, -700)]}, 1400, streaming=False)),
        ("out of order", index_of({7: row}, 700, streaming=False)),
        ("cut off", struct.pack(">IIQQ", blocks.INDEX_MAGIC, 24, 9, 128)),
        ("cut off", struct.pack(">IIQQ", blocks.STREAMING_INDEX_MAGIC, 25, 9, 128) + b"x"),
        ("2 times", _twice()),
    ]


def _twice() -> bytes:
    _, index = offload({7: ENTRIES}, 700, streaming=True)
    doubled = index + index[24:]
    return doubled[:4] + struct.pack(">I", len(doubled)) + doubled[8:]


@pytest.mark.parametrize(("why", "index"), wrong_indexes(), ids=lambda value: value if isinstance(value, str) else "")
def test_index_that_cannot_be_is_refused(why: str, index: bytes) -> None:
    with pytest.raises(OffloadFormatError, match=why):
        parse_index(index, 7)


def damaged(data: bytes, at: int, by: bytes) -> bytes:
    return data[:at] + by + data[at + len(by) :]


@pytest.mark.parametrize(
    ("why", "at", "by"),
    [
        ("head of block 0", 0, b"\0"),
        ("head of block 0", 19, b"\1"),  # the length of the block
        ("head of block 0", 27, b"\1"),  # the first entry
        ("length of -", HEAD_BYTES, b"\x80"),
        ("length of", HEAD_BYTES, b"\x7f\xff\xff\xff"),
        ("length of -19079507", HEAD_BYTES, FILL),
        ("has the id", HEAD_BYTES + 4, b"\x01"),
        ("not its fill", -1, b"\0"),
        ("not its fill", -5, b"\0"),
    ],
)
@pytest.mark.parametrize("step", [17, 1 << 20])
def test_block_that_is_damaged_is_refused(why: str, at: int, by: bytes, step: int) -> None:
    data, index = offload({7: ENTRIES}, 4000, fill=9)
    with pytest.raises(OffloadFormatError, match=why):
        entries_of(damaged(data, at % len(data), by), parse_index(index, 7), 19, step=step)


def test_block_without_its_last_entries_is_refused() -> None:
    data, index = offload({7: ENTRIES}, 4000, fill=30)
    with pytest.raises(OffloadFormatError, match="entry 20"):
        entries_of(data, parse_index(index, 7), 25)
    data, index = offload({7: ENTRIES}, 4000, fill=3)
    with pytest.raises(OffloadFormatError, match="ends before entry 20"):
        entries_of(data, parse_index(index, 7), 20)
    parser = BlockParser(parse_index(index, 7), 0, 19)
    parser.feed(data[:500])
    with pytest.raises(OffloadFormatError, match="ends before"):
        parser.finish()
    with pytest.raises(OffloadFormatError, match="has more"):
        parser.feed(bytes(1 << 20))


def test_lengths_that_lie_take_little_memory() -> None:
    """A block may say that it is huge. What is held is bounded by what was fed."""
    size = 1 << 40
    index = index_of({7: [(0, 1, 0)]}, size, streaming=False)
    head = struct.pack(">IQQQ", blocks.BLOCK_MAGIC, HEAD_BYTES, size, 0).ljust(HEAD_BYTES, b"\0")
    parser = BlockParser(parse_index(index, 7), 0, 1 << 50)
    tracemalloc.start()
    try:
        assert parser.feed(head) is None
        with pytest.raises(OffloadFormatError, match="length"):
            parser.feed(struct.pack(">iq", blocks.ENTRY_BYTES_MAX + 1, 0))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def _mutated(data: bytes, dice: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        found[dice.randrange(len(found))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    if dice.random() < 0.2:
        del found[dice.randrange(1, len(found)) :]
    return bytes(found)


@pytest.mark.long
@pytest.mark.parametrize("streaming", [False, True])
def test_mutated_objects_give_the_entries_or_a_typed_error(streaming: bool) -> None:
    """An error, or every id once and in order: never fewer entries. Only bytes within an entry may differ."""
    sizes = [len(each) for each in ENTRIES]
    for seed in range(some(20_000, 1000)):
        dice = random.Random(seed)
        data, index = offload({7: ENTRIES}, dice.choice((400, 700, 4000)), streaming=streaming, fill=dice.randrange(9))
        if dice.random() < 0.5:
            data = _mutated(data, dice)
        else:
            index = _mutated(index, dice)
        try:
            parsed = parse_index(index, 7)
            if parsed.object_bytes != len(data):
                continue  # the reader compares these two
            found = entries_of(data, parsed, 19, step=dice.choice((50, 1 << 20)))
        except OffloadFormatError:
            continue
        assert _sizes(found) == sizes, seed


def _sizes(found: dict[int, bytes]) -> Sequence[int]:
    assert list(found) == list(range(len(found)))
    return [len(each) for each in found.values()]
