# SPDX-License-Identifier: Apache-2.0
"""Rows of entries, compared with those that protobuf gives one by one; and what becomes of every kind of entry."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    CorruptMessageError,
    InvalidArgumentError,
    MessageChecksumError,
    MessageEncryptedError,
    UnsupportedTopicError,
)
from bk_core.pulsar.messages.decoder import DecodeOptions, MessageDecoder, OnCorrupt
from bk_core.pulsar.messages.heads import read_heads
from bk_core.pulsar.messages.row_maker import RowMaker
from bk_core.pulsar.messages.rows import DEFAULT_COLUMNS, TYPES, record_batch, schema_of, spans
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.topic_name import TopicName
from tests.kit import pulsar_entries as kit
from tests.kit import pulsar_reference as reference
from tests.kit.amount import examples

TEXT = st.text(max_size=6)
U64 = st.integers(0, (1 << 63) - 1)
KEY = st.none() | st.binary(max_size=6)


def decode(batch: EntryBatch, decoder: MessageDecoder | None = None, **how: Any) -> pa.Table:
    decoder = decoder or MessageDecoder(kit.TOPIC)
    schema = schema_of(list(TYPES))
    partition = how.pop("partition", -1)
    found = decoder.messages(read_heads(batch, **how))
    return pa.Table.from_batches([record_batch(each, schema, kit.TOPIC, partition) for each in found], schema=schema)


def rows(batch: EntryBatch, **how: Any) -> list[dict[str, Any]]:
    """Rows with plain numbers for times."""
    table = decode(batch, **how)
    for name in ("__publishTime", "__eventTime"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.int64()))
    return [dict(row) for row in table.to_pylist()]


def values(batch: EntryBatch, decoder: MessageDecoder | None = None) -> list[bytes | None]:
    found: list[bytes | None] = decode(batch, decoder)["value"].to_pylist()
    return found


@st.composite
def metadata(draw: st.DrawFn) -> dict[str, Any]:
    """Fields that a message has alone and in a batch."""
    found: dict[str, Any] = {"properties": draw(st.dictionaries(TEXT, TEXT, max_size=3))}
    if (key := draw(KEY)) is not None:
        found["partition_key"] = key
    for name, kind in (("event_time", U64), ("sequence_id", U64), ("ordering_key", st.binary(max_size=4))):
        if draw(st.booleans()):
            found[name] = draw(kind)
    found["null_value"] = draw(st.booleans())
    found["null_partition_key"] = draw(st.booleans())
    return found


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    fields: dict[str, Any] = {
        "compression": draw(st.integers(0, 4)),
        "checksum": draw(st.booleans()),
        "broker": draw(st.none() | st.builds(dict, index=U64, broker_timestamp=U64)),
        "producer_name": draw(st.text(min_size=1, max_size=6)).encode(),
        "publish_time": draw(st.integers(1, (1 << 63) - 1)),
    }
    if draw(st.booleans()):
        fields["schema_version"] = draw(st.binary(min_size=8, max_size=8))
    if draw(st.integers(0, 9)) == 0:
        return kit.entry(marker_type=draw(st.sampled_from([10, 20, 21, 22])))
    if draw(st.booleans()):
        return kit.entry(draw(st.binary(max_size=300)), **{**fields, **draw(metadata())})
    messages = draw(st.lists(st.builds(dict, payload=st.binary(max_size=200), fields=metadata()), max_size=5))
    singles = [kit.single(each["payload"], compacted_out=draw(st.booleans()), **each["fields"]) for each in messages]
    return kit.batch_entry(singles, **fields)


@pytest.mark.long
@given(st.lists(entries(), max_size=30), st.integers(-1, 300), st.sampled_from([0, 7, 1 << 40]))
def test_rows_equal_those_of_protobuf(data: list[bytes], partition: int, ledger_id: int) -> None:
    batch = kit.ledger(data, ledger_id=ledger_id, first=126)
    expected = reference.rows_of(batch, partition=partition)
    for each in (batch, kit.with_heads(batch)):
        found = rows(each, partition=partition)
        for row in found:
            assert (row.pop("__topic"), row.pop("__partition")) == (kit.TOPIC, partition)
        assert found == expected


def test_rows_of_many_equal_entries_equal_those_of_protobuf() -> None:
    data = [
        kit.entry(bytes([k % 251]) * (k % 40), properties={"k": str(k)} if k % 3 else {}, sequence_id=k)
        for k in range(3000)
    ]
    batch = kit.ledger(data)
    found = rows(batch)
    assert rows(kit.with_heads(batch)) == found
    for row in found:
        del row["__topic"], row["__partition"]
    assert found == reference.rows_of(batch)


def test_default_columns_are_those_of_pulsar_spark() -> None:
    assert schema_of(None).names == list(DEFAULT_COLUMNS)
    assert DEFAULT_COLUMNS == (
        "value", "__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties",
    )  # fmt: skip


@pytest.mark.parametrize("columns", [[], "value", ["value", "value"], ["valeu"]])
def test_columns_that_cannot_be_are_refused(columns: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        schema_of(columns)


def test_key_in_base64_is_decoded() -> None:
    batch = kit.ledger(
        [
            kit.entry(b"a", partition_key=b"AAH/", partition_key_b64_encoded=True),
            kit.batch_entry([kit.single(b"b", partition_key=b"AAH/", partition_key_b64_encoded=True)]),
            kit.entry(b"c", partition_key=b"AAH/"),
        ]
    )
    assert decode(batch)["__key"].to_pylist() == [b"\0\1\xff", b"\0\1\xff", b"AAH/"]


def test_key_that_is_no_base64_is_named_or_its_message_is_left_out() -> None:
    good, bad = ({"partition_key": key, "partition_key_b64_encoded": True} for key in (b"AAH/", b"A!"))
    batch = kit.ledger([kit.batch_entry([kit.single(b"a", **good), kit.single(b"b", **bad)]), kit.entry(b"c", **bad)])

    def made(columns: list[str], corrupt: OnCorrupt) -> tuple[list[Any], list[str]]:
        maker = RowMaker(TopicName.parse(kit.TOPIC), schema_of(columns), DecodeOptions(corrupt=corrupt))
        found = [row for each in maker.rows(maker.heads(batch), Bounds()) for row in each.to_pylist()]
        return found, [str(each) for each in maker.take_reports()]

    with pytest.raises(CorruptMessageError, match=r"7:0.*not valid base64"):
        made(["value", "__key"], "fail")
    rows_left, reports = made(["value", "__key"], "skip")
    assert rows_left == [{"value": b"a", "__key": b"\0\1\xff"}]
    assert ["7:0" in reports[0], "7:1" in reports[1], len(reports)] == [True, True, 2]
    assert made(["value"], "fail") == ([{"value": each} for each in (b"a", b"b", b"c")], [])


def test_properties_that_are_no_text_get_replacement_characters() -> None:
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1)
    head.properties.add(key=b"\xff", value=b"v")
    batch = kit.ledger([kit.framed(head, b"x")])
    assert decode(batch)["__messageProperties"].to_pylist() == [[("\ufffd", "v")]]


def test_wrong_checksum_is_an_error_that_names_the_entry() -> None:
    wrong = bytearray(kit.entry(b"payload"))
    wrong[-1] ^= 1
    batch = kit.ledger([kit.entry(b"right"), bytes(wrong)], first=5)
    with pytest.raises(MessageChecksumError, match="entry 7:6 of persistent://public/default/kit"):
        decode(batch)
    decoder = MessageDecoder(kit.TOPIC, DecodeOptions(corrupt="skip"))
    assert values(batch, decoder) == [b"right"]
    assert [type(each) for each in decoder.reports] == [MessageChecksumError]
    assert [row["value"] for row in rows(batch, check=False)] == [b"right", b"payloae"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (b"\x0e\x02\0\0", "broker"),
        (b"\x0e\x02\0\0\0\x09abc", "broker"),
        (b"\x0e\x01\0", "checksum"),
        (b"\0\0\0\x20abc", "metadata are cut off"),
        (b"\0\0\0\x03abc", "cannot be read"),
        (b"\0\0\0\x02\x10\x01", "publish time"),
        (kit.entry(b"abc", compression=1, uncompressed_size=4), "LZ4"),
        (kit.entry(b"abc", compression=2, uncompressed_size=2), "ZLIB"),
        (kit.entry(b"abc", compression=3, uncompressed_size=1 << 31), "more than"),
        (kit.entry(b"abc", compression=4, uncompressed_size=100_000), "cannot have been"),
        (kit.entry(b"", num_messages_in_batch=1), "cannot be 1 messages"),
        (kit.entry(kit.single(b"abc")[:-1], num_messages_in_batch=1), "cut off"),
        (kit.entry(kit.single(b"abcdefgh"), num_messages_in_batch=2), "fewer messages"),
        (kit.entry(b"\0\0\0\x02\x28\x01....", num_messages_in_batch=1), "no payload size"),
        (kit.entry(b"\0\0\0\x04\x18\x01\x18\x02....", num_messages_in_batch=1), "cannot be read"),
    ],
)
def test_entry_that_is_no_message_is_an_error_or_left_out(data: bytes, why: str) -> None:
    batch = kit.ledger([kit.entry(b"before"), data, kit.entry(b"behind")])
    with pytest.raises(CorruptMessageError, match="entry 7:1 ") as told:
        decode(batch)
    assert why in str(told.value)
    decoder = MessageDecoder(kit.TOPIC, DecodeOptions(corrupt="skip"))
    assert values(batch, decoder) == [b"before", b"behind"]
    assert len(decoder.reports) == 1


@pytest.mark.parametrize(
    "data", [kit.framed(kit.proto.MessageMetadata(publish_time=1, compression=9), b"x"), kit.entry(marker_type=77)]
)
def test_unknown_compression_or_marker_is_not_taken_for_another(data: bytes) -> None:
    with pytest.raises(UnsupportedTopicError, match=r"7:0.*unknown type|7:0.*not known"):
        decode(kit.ledger([data]))


def test_metadata_with_unknown_fields_are_read() -> None:
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=5)
    unknown = b"\xfa\x0f\x03abc" + b"\xf8\x0f\x96\x01" + b"\xf9\x0f12345678" + b"\xfd\x0f1234"
    head.MergeFromString(unknown)
    assert values(kit.ledger([kit.framed(head, b"x")] * 40)) == [b"x"] * 40
    assert values(kit.ledger([kit.framed(head, b"x")])) == [b"x"]


def test_chunks_are_joined_across_batches_and_other_messages() -> None:
    decoder = MessageDecoder(kit.TOPIC)
    first = kit.ledger([kit.chunk(0, b"aaa"), kit.entry(b"between"), kit.chunk(1, b"bbb")])
    assert values(first, decoder) == [b"between"]
    found = decode(kit.ledger([kit.chunk(2, b"ccc")], ledger_id=9), decoder)
    assert found["value"].to_pylist() == [b"aaabbbccc"]
    assert MessageId.deserialize(found["__messageId"][0].as_py()) == MessageId(9, 0, first_chunk=EntryPosition(7, 0))
    assert values(kit.ledger([kit.chunk(2, b"ccc")], ledger_id=9), decoder) == [], "the message was forgotten"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            [
                kit.chunk(0, b"xxx"),
                kit.chunk(0, b"aaa"),
                kit.chunk(1, b"bbb"),
                kit.chunk(1, b"bbb"),
                kit.chunk(2, b"ccc"),
            ],
            [b"aaabbbccc"],
        ),
        ([kit.chunk(0, b"aaa"), kit.chunk(2, b"ccc"), kit.chunk(1, b"bbb")], []),
        ([kit.chunk(1, b"bbb"), kit.chunk(2, b"ccc")], []),
        (
            [
                kit.chunk(0, b"a", count=2, total=2),
                kit.chunk(0, b"c", count=2, total=2, uuid=b"v"),
                kit.chunk(1, b"d", count=2, total=2, uuid=b"v"),
                kit.chunk(1, b"b", count=2, total=2),
            ],
            [b"cd", b"ab"],
        ),
    ],
)
def test_chunks_that_come_twice_or_not_are_taken_as_pulsar_does(data: list[bytes], expected: list[bytes]) -> None:
    assert values(kit.ledger(data)) == expected


def test_chunked_message_is_decompressed_as_a_whole() -> None:
    whole = kit.compressed(3, b"z" * 5000)
    parts = [whole[:5], whole[5:10], whole[10:]]
    data = [kit.chunk(k, part, total=len(whole), compression=3, uncompressed_size=5000) for k, part in enumerate(parts)]
    assert values(kit.ledger(data)) == [b"z" * 5000]


@pytest.mark.parametrize("data", [[kit.chunk(0, b"aaaa", total=3)], [kit.chunk(0, b"a", total=1 << 30)]])
def test_chunks_that_lie_about_their_size_are_refused(data: list[bytes]) -> None:
    with pytest.raises(CorruptMessageError):
        decode(kit.ledger(data))


def test_entries_of_a_compacted_ledger_have_their_ids_in_the_topic() -> None:
    batch = kit.ledger(
        [
            kit.compacted(EntryPosition(3, 500), kit.entry(b"a", partition_key=b"k")),
            kit.compacted(
                EntryPosition(4, 2),
                kit.batch_entry([kit.single(b"b", compacted_out=True), kit.single(b"c", compacted_out=False)]),
            ),
        ]
    )
    found = decode(batch, compacted=True)
    assert found["value"].to_pylist() == [b"a", b"c"]
    ids = [MessageId.deserialize(each) for each in found["__messageId"].to_pylist()]
    assert ids == [MessageId(3, 500), MessageId(4, 2, batch_index=1, batch_size=2)]


def test_encrypted_message_without_a_key_names_whom_it_is_for() -> None:
    head = kit.proto.MessageMetadata(producer_name=b"p", publish_time=1, encryption_param=b"n" * 12)
    head.encryption_keys.add(key=b"client-rsa", value=b"wrapped")
    head.num_messages_in_batch = 3
    batch = kit.ledger([kit.framed(head, b"secret")])
    with pytest.raises(MessageEncryptedError, match="client-rsa"):
        decode(batch)
    with pytest.raises(MessageEncryptedError):
        values(batch, MessageDecoder(kit.TOPIC, DecodeOptions(corrupt="skip")))
    assert values(batch, MessageDecoder(kit.TOPIC, DecodeOptions(encrypted="raw"))) == [b"secret"]


def test_many_bytes_come_in_several_parts() -> None:
    big = [kit.entry(b"x" * (3 << 20), compression=1) for _ in range(25)]
    decoder = MessageDecoder(kit.TOPIC)
    parts = [len(each) for each in decoder.messages(read_heads(kit.ledger(big)))]
    assert sum(parts) == 25
    assert len(parts) > 1


def test_rows_that_are_not_kept_are_not_looked_at() -> None:
    batch = kit.ledger([kit.entry(b"a"), b"rubbish", kit.entry(b"c")])
    keep = np.array([True, False, True])
    decoder = MessageDecoder(kit.TOPIC)
    schema = schema_of(["value"])
    found = [record_batch(each, schema, kit.TOPIC) for each in decoder.messages(read_heads(batch), keep)]
    assert pa.Table.from_batches(found)["value"].to_pylist() == [b"a", b"c"]


def test_no_entries_give_no_rows() -> None:
    assert rows(kit.ledger([])) == []


@pytest.mark.parametrize("longest", [12, 40])
@examples(1.0)
@given(data=st.binary(min_size=64, max_size=200), seed=st.integers(0, 1 << 30))
def test_bytes_at_any_positions_become_an_array(longest: int, data: bytes, seed: int) -> None:
    random = Random(seed)
    lengths = [random.choice([-1, 0, 1, 12, 13, longest]) for _ in range(random.randrange(20))]
    begins = [random.randrange(len(data) - 40) for _ in lengths]
    if random.random() < 0.5:
        begins = np.cumsum([0, *(max(n, 0) + 1 for n in lengths)])[: len(lengths)].tolist()
        data = data.ljust(begins[-1] + 41 if begins else 0)
    if random.random() < 0.5:
        lengths = [13 if 0 < n < 13 else n for n in lengths]
    found = spans(np.frombuffer(data, dtype=np.uint8), np.array(begins, np.int64), np.array(lengths, np.int64))
    found.validate(full=True)
    assert found.type == pa.binary()
    wanted = [None if n < 0 else data[at : at + n] for at, n in zip(begins, lengths, strict=True)]
    assert found.to_pylist() == wanted
