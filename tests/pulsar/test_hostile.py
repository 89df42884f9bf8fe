# SPDX-License-Identifier: Apache-2.0
"""Bytes that nobody should have written: rows or a typed error, never another exception, and never much memory."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest

from bk_core.errors import TopicError
from bk_core.pulsar.messages.batches import MESSAGES_MAX
from bk_core.pulsar.messages.decoder import DecodeOptions, MessageDecoder
from bk_core.pulsar.messages.heads import read_heads
from bk_core.pulsar.messages.rows import TYPES, record_batch, schema_of
from bk_core.pulsar.model.transactions import Transactions
from tests.kit import pulsar_entries as kit
from tests.kit.amount import some

SCHEMA = schema_of(list(TYPES))


def seeds() -> list[bytes]:
    singles = [kit.single(b"v" * k, properties={"a": "b"}, partition_key=b"k", event_time=5) for k in range(9)]
    found = [kit.batch_entry(singles, compression=kind, checksum=False, broker={"index": 3}) for kind in range(5)]
    found.append(kit.entry(b"plain", properties={"k": "v"}, checksum=False, partition_key=b"x", ordering_key=b"y"))
    found.append(kit.entry(marker_type=22, txnid_most_bits=1, txnid_least_bits=2, checksum=False))
    found.append(
        kit.entry(b"abc", uuid=b"u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=6, checksum=False)
    )
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1, encryption_param=b"n" * 12)
    head.encryption_keys.add(key=b"client", value=b"wrapped")
    found.append(kit.framed(head, b"secret", checksum=False))
    return found


def mutated(data: bytes, dice: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        if found:
            found[dice.randrange(len(found))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    if dice.random() < 0.3:
        del found[dice.randrange(len(found) + 1) :]
    if dice.random() < 0.2:
        at = dice.randrange(len(found) + 1)
        found[at:at] = dice.randbytes(dice.randrange(6))
    return bytes(found)


def read(entries: list[bytes], options: DecodeOptions, *, compacted: bool = False) -> int:
    heads = read_heads(kit.ledger(entries), compacted=compacted)
    heads.note(Transactions())
    decoder = MessageDecoder(kit.TOPIC, options)
    return sum(record_batch(each, SCHEMA, kit.TOPIC).num_rows for each in decoder.messages(heads))


@pytest.mark.parametrize("many", [1, 40])
@pytest.mark.parametrize("compacted", [False, True])
def test_mutated_entries_are_rows_or_a_typed_error(many: int, compacted: bool) -> None:
    dice = random.Random(f"{many} {compacted}")
    originals = seeds()
    if compacted:
        originals = [kit.compacted(kit.EntryPosition(1, 2), each) for each in originals]
    for _ in range(some(1200, 200) // many):
        entries = [mutated(dice.choice(originals), dice) for _ in range(many)]
        with contextlib.suppress(TopicError):
            read(entries, DecodeOptions(), compacted=compacted)
        with contextlib.suppress(TopicError):  # a key that is no base64
            read(
                entries, DecodeOptions(corrupt="skip", encrypted="raw", message_bytes_max=1 << 20), compacted=compacted
            )


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
