# SPDX-License-Identifier: Apache-2.0
"""Frames are cut where their lengths say, however they come, and no length makes the cutter take more than it was
given."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import RemoteProtocolError
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, frames
from tests.kit.bookie_wire import cut_simply, frame

STRETCHES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 200)), max_size=8)


@pytest.mark.rule("L5")
@given(STRETCHES, st.binary(max_size=20), st.sampled_from([FRAME_BYTES_MAX, 30, 44]))
def test_stretches_of_equal_frames_and_a_rest(stretches: list[tuple[int, int]], rest: bytes, limit: int) -> None:
    burst = b"".join(frame(bytes(length)) * count for length, count in stretches) + rest
    cut = frames(burst, limit)
    begins, lengths, used, fault = cut_simply(burst, limit)
    assert (cut.offsets.tolist(), cut.lengths.tolist(), cut.used) == (begins, lengths, used)
    assert (cut.fault is None) == (fault is None)


@given(st.lists(st.integers(0, 50), max_size=300))
def test_frames_of_any_length(lengths: list[int]) -> None:
    burst = bytearray(b"".join(frame(bytes(length)) for length in lengths))
    for given_as in (bytes(burst), burst, memoryview(burst)):
        cut = frames(given_as)
        assert cut.lengths.tolist() == lengths
        assert cut.used == len(burst)


@pytest.mark.rule("L5")
def test_the_limit_counts_the_length_itself_as_netty_does() -> None:
    whole = frame(bytes(FRAME_BYTES_MAX - 4))
    assert frames(whole).lengths.tolist() == [FRAME_BYTES_MAX - 4]
    fault = frames(struct.pack(">I", FRAME_BYTES_MAX - 3)).fault
    assert isinstance(fault, RemoteProtocolError), "found before its first byte is there"


@pytest.mark.rule("L5")
@pytest.mark.parametrize("good", [0, 5, 100])
@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 6 << 20])
def test_a_frame_that_is_too_long_is_a_fault_behind_the_good_ones(good: int, length: int) -> None:
    cut = frames(frame(b"abc") * good + struct.pack(">I", length) + b"xyz")
    assert cut.offsets.size == good
    assert cut.used == 7 * good
    assert cut.fault is not None
