# SPDX-License-Identifier: Apache-2.0
"""Decompression gives exactly the bytes that were compressed, or an error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.pulsar.messages.compression import CompressionError, decompressed
from tests.kit.pulsar_entries import compressed

KINDS = st.integers(0, 4)
COMPRESSED = st.integers(1, 4)


@given(KINDS, st.binary(max_size=5000), st.integers(0, 30))
def test_what_was_compressed_comes_back(kind: int, data: bytes, repeat: int) -> None:
    data *= repeat
    assert decompressed(kind, memoryview(compressed(kind, data)), len(data)) == data


@given(COMPRESSED, st.binary(min_size=1, max_size=3000), st.integers(-3000, 3000))
def test_another_size_is_an_error(kind: int, data: bytes, more: int) -> None:
    if more == 0 or len(data) + more <= 0:
        return
    with pytest.raises(CompressionError):
        decompressed(kind, compressed(kind, data), len(data) + more)


@given(COMPRESSED, st.binary(max_size=300), st.integers(0, 5000))
def test_any_bytes_are_decompressed_or_refused(kind: int, data: bytes, size: int) -> None:
    with contextlib.suppress(CompressionError):
        assert len(decompressed(kind, data, size)) == size


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_size_over_the_limit_is_refused_before_memory_is_taken(kind: int) -> None:
    with pytest.raises(CompressionError, match="more than 1000"):
        decompressed(kind, compressed(kind, b"x" * 1001), 1001, 1000)


@pytest.mark.parametrize("kind", [1, 2, 4])
def test_size_that_no_such_bytes_can_have_is_refused(kind: int) -> None:
    with pytest.raises(CompressionError, match="cannot have been"):
        decompressed(kind, b"x" * 10, 100_000_000)


@pytest.mark.parametrize("kind", [5, 6, -1])
def test_unknown_compression_is_told_apart(kind: int) -> None:
    with pytest.raises(CompressionError) as told:
        decompressed(kind, b"", 0)
    assert told.value.is_unknown
