# SPDX-License-Identifier: Apache-2.0
"""Slots are used again, and never while somebody refers to them."""

from __future__ import annotations

import itertools
import mmap
import re
from pathlib import Path

import numpy as np

from bk_core.transport.slots import SLOT_BYTES_MIN, Slots


def place(of: object) -> int:
    return int(np.frombuffer(of, np.uint8).ctypes.data)  # type: ignore[call-overload]  # any buffer


def test_pieces_are_joined_in_a_slot_that_is_used_again() -> None:
    slots, pieces = Slots(), [b"head", memoryview(b"x" * SLOT_BYTES_MIN), b"", b"tail"]

    joined = slots.join(pieces)
    first, is_same = place(joined), bytes(joined) == b"".join(pieces)
    other = slots.join(pieces)  # the first is in use
    second = place(other)
    del joined
    third = place(slots.join(pieces))

    assert is_same
    assert second != first == third


def test_slots_of_one_size_lie_side_by_side_at_pages() -> None:
    slots = Slots()

    taken = [slots.take(100_000) for _ in range(20)]
    places = sorted(map(place, taken))

    assert {other - one for one, other in itertools.pairwise(places)} == {SLOT_BYTES_MIN * 2}
    assert places[0] % mmap.PAGESIZE == 0


def test_a_slot_that_is_not_kept_gives_its_bytes_back_and_its_neighbours_keep_theirs() -> None:
    slots = Slots(free_bytes_max=0)
    taken = [slots.take(1) for _ in range(3)]
    for each in taken:
        each[:1] = b"x"
    memory = np.frombuffer(taken[0].obj.base, np.uint8)  # type: ignore[attr-defined]  # of all three
    begins = [place(each) - place(memory) for each in taken]

    del taken[1], each
    del taken[1]

    assert [int(memory[begin]) for begin in begins] == [ord("x"), 0, 0]


def test_slots_ask_for_huge_pages() -> None:
    """Where the kernel has them."""
    wanted = Path("/sys/kernel/mm/transparent_hugepage").exists()
    slot = Slots().take(1 << 20)
    begin = place(slot)

    mapped = Path("/proc/self/smaps").read_text(encoding="ascii") if wanted else ""
    of_slot = [each for each in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", mapped) if _holds(each, begin)]

    assert [bool(re.search(r"^VmFlags:.* hg\b", each, re.MULTILINE)) for each in of_slot] == [True] * wanted


def _holds(mapping: str, address: int) -> bool:
    begin, end = (int(each, 16) for each in mapping.split(" ", 1)[0].split("-"))
    return begin <= address < end


def test_few_bytes_take_no_slot() -> None:
    slots = Slots()

    assert slots.join([b"ab", b"c"]) == b"abc"
    assert place(slots.take(1)) % 4096 == 0
