# SPDX-License-Identifier: Apache-2.0
"""Slots are used again, and never while somebody refers to them."""

from __future__ import annotations

import errno
import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_core.memory import slots as slots_module
from bk_core.memory.huge_pages import private_memory
from bk_core.memory.slots import SLOT_BYTES_MIN, Slots

MIB = 1 << 20


def place(of: object) -> int:
    return int(np.frombuffer(of, np.uint8).ctypes.data)  # type: ignore[call-overload]  # any buffer


def memory_of(slot: memoryview) -> Any:
    """The mmap that it is a part of."""
    lent: Any = slot.obj
    return lent.base.obj


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


def test_large_slots_of_one_size_lie_in_one_memory_and_small_ones_alone() -> None:
    """Of small ones each size would have a huge page of its own. All begin at pages."""
    slots = Slots()

    large, small = ([slots.take(size) for _ in range(7)] for size in (MIB, 100_000))

    assert len({id(memory_of(each)) for each in large}) == 1
    assert len({place(each) for each in large}) == 7
    assert len({id(memory_of(each)) for each in small}) == 7
    assert not any(place(each) % mmap.PAGESIZE for each in (*large, *small))


def test_a_process_that_may_not_have_many_slots_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(size: int) -> mmap.mmap:
        if size > MIB:
            raise OSError(errno.ENOMEM, "no memory")
        return private_memory(size)

    monkeypatch.setattr(slots_module, "private_memory", refusing)
    assert len(Slots().take(MIB)) == MIB
    with pytest.raises(OSError, match="no memory"):
        Slots().take(2 * MIB)


def test_a_slot_beyond_those_that_are_kept_gives_its_bytes_back() -> None:
    slots = Slots(free_bytes_max=MIB)
    first, second = slots.take(MIB), slots.take(MIB)
    first[:1], second[:1] = b"x", b"x"
    memory = np.frombuffer(memory_of(first), np.uint8)  # of both
    begins = [place(each) - place(memory) for each in (first, second)]

    del first
    slots.take(1)  # the first is free now
    del second
    slots.take(1)

    assert [int(memory[begin]) for begin in begins] == [ord("x"), 0]


def test_a_slot_that_is_not_kept_gives_its_bytes_back_and_its_neighbours_keep_theirs() -> None:
    slots = Slots(free_bytes_max=0)
    taken = [slots.take(MIB) for _ in range(3)]
    for each in taken:
        each[:1] = b"x"
    memory = np.frombuffer(memory_of(taken[0]), np.uint8)  # of all three
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
