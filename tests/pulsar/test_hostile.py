# SPDX-License-Identifier: Apache-2.0
"""Bytes that nobody should have written: rows or a typed error, never another exception, and never much memory."""

from __future__ import annotations

import tracemalloc

import pytest

from bk_core.errors import TopicError
from bk_core.pulsar.messages.batches import MESSAGES_MAX
from bk_core.pulsar.messages.decoder import DecodeOptions
from tests.kit import pulsar_entries as kit
from tests.kit.amount import some
from tests.pulsar.fuzz import LENIENT, columns_of, objects_of, read, round_of, values_of


@pytest.mark.long
@pytest.mark.parametrize("many", [1, 40])
@pytest.mark.parametrize("compacted", [False, True])
def test_mutated_entries_are_rows_or_a_typed_error(many: int, compacted: bool) -> None:
    for number in range(some(1200, 200) // many):
        for options in (DecodeOptions(), LENIENT):
            assert round_of(number, (many, compacted), options) == many


@pytest.mark.long
def test_mutated_values_are_rows_or_a_typed_error() -> None:
    for number in range(some(60, 12)):
        for options in (DecodeOptions(), LENIENT):
            assert values_of(number, options)


def test_mutated_values_are_bad_or_decoded_whichever_columns_are_read() -> None:
    for number in range(some(12, 1)):
        assert columns_of(number) > 10_000


@pytest.mark.long
def test_mutated_objects_of_offloaded_ledgers_give_all_entries_or_a_typed_error() -> None:
    for number in range(some(20, 2)):
        assert objects_of(number)


@pytest.mark.parametrize("size", [(1 << 32) - 1, 200 << 20, 100 << 20])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_sizes_that_lie_take_little_memory(kind: int, size: int) -> None:
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1, compression=kind, uncompressed_size=size)
    entry = kit.framed(head, kit.compressed(kind, b"x" * 1000))
    if kind == 3 and size < 128 << 20:
        return  # zstd may make so much of few bytes: the limit is what bounds it
    tracemalloc.start()
    try:
        with pytest.raises(TopicError):
            read([entry] * 3, DecodeOptions())
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_batch_that_claims_very_many_messages_takes_little_memory() -> None:
    entry = kit.entry(b"\0\0\0\x02\x18\0" * 10, num_messages_in_batch=(1 << 31) - 1)
    tracemalloc.start()
    try:
        with pytest.raises(TopicError):
            read([entry], DecodeOptions())
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_batch_of_more_messages_than_columns_are_made_for_is_refused() -> None:
    count = MESSAGES_MAX + 1
    tiny = b"\0\0\0\x02\x18\0"
    entry = kit.entry(tiny * count, num_messages_in_batch=count, compression=3)
    with pytest.raises(TopicError, match="more than"):
        read([entry], DecodeOptions())


def test_more_properties_than_memory_is_meant_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.pulsar.messages.scan.OCCURRENCES_MAX", 100)
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1)
    for _ in range(101):
        head.properties.add(key=b"k", value=b"v")
    one = kit.framed(head, b"x")
    for many in (1, 20):
        with pytest.raises(TopicError, match="cannot be read"):
            read([one] * many, DecodeOptions())
    few = kit.entry(b"x", properties={str(n): "v" for n in range(50)})
    assert read([few], DecodeOptions()) == 1
