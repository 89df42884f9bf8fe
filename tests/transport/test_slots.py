# SPDX-License-Identifier: Apache-2.0
"""Slots are used again, and never while somebody refers to them."""

from __future__ import annotations

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


def test_few_bytes_take_no_slot() -> None:
    slots = Slots()

    assert slots.join([b"ab", b"c"]) == b"abc"
    assert place(slots.take(1)) % 4096 == 0
