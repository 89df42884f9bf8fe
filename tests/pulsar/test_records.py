# SPDX-License-Identifier: Apache-2.0
"""Records of the metadata store: managed ledgers, cursors, partitions, schemas; and positions and transactions."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.pulsar.messages.compression import decompressed
from bk_core.pulsar.model.managed_ledger import Cursor, ManagedLedger, TopicLedger, partition_count
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.offload import OffloadedCopy, offloaded_copy
from bk_core.pulsar.model.schemas import TopicSchema, decode_schema, schema_versions
from bk_core.pulsar.model.transactions import ABORT, COMMIT, Transactions, TxnId
from bk_core.pulsar.proto import managed_ledger_pb2 as proto
from tests.kit.pulsar_entries import compressed

RECORD = proto.ManagedLedgerInfo(
    ledgers=[
        proto.LedgerInfo(ledger_id=3, entries=10, size=1000, timestamp=1_700_000_000_000),
        proto.LedgerInfo(
            ledger_id=5,
            entries=4,
            size=400,
            timestamp=1_700_000_000_001,
            offload_context=proto.OffloadContext(
                uid_msb=0x0123_4567_89AB_4CDE,
                uid_lsb=-1,
                complete=True,
                bookkeeper_deleted=True,
                driver=proto.OffloadDriver(
                    name=b"aws-s3",
                    properties=[
                        proto.KeyValue(key=b"bucket", value=b"cold"),
                        proto.KeyValue(key=b"region", value=b"eu-1"),
                        proto.KeyValue(key=b"serviceEndpoint", value=b"http://s3:9000"),
                    ],
                ),
            ),
        ),
        proto.LedgerInfo(ledger_id=9),
    ],
    properties=[proto.KeyValue(key=b"a", value=b"b")],
)
COPY = OffloadedCopy("aws-s3", ("01234567-89ab-4cde-ffff-ffffffffffff-ledger-5",), 3, "cold", "eu-1", "http://s3:9000")
LEDGERS = (
    TopicLedger(3, 10, 1000, 1_700_000_000_000),
    TopicLedger(5, 4, 400, 1_700_000_000_001, COPY, False),
    TopicLedger(9, -1, -1, 0),
)


def compressed_record(kind: int, data: bytes) -> bytes:
    head = proto.CompressedInfo(compression=kind, uncompressed_size=len(data)).SerializeToString()
    return b"\x47\x78" + struct.pack(">I", len(head)) + head + compressed(kind, data)


@pytest.mark.parametrize("kind", [None, 0, 1, 2, 3, 4])
def test_managed_ledger_is_read_plain_and_compressed(kind: int | None) -> None:
    data = RECORD.SerializeToString()
    stored = data if kind is None else compressed_record(kind, data)
    found = ManagedLedger.decode("/x", stored, decompressed)
    assert found == ManagedLedger(LEDGERS, None, (("a", "b"),))
    assert [each.is_open for each in found.ledgers] == [False, False, True]


def test_copy_of_a_streaming_offloader_has_an_object_for_each_segment() -> None:
    driver = proto.OffloadDriver(name=b"S3", properties=[proto.KeyValue(key=b"bucket", value=b"cold")])
    info = proto.LedgerInfo(ledger_id=5, entries=10)
    for number in (1, 2):
        info.offload_context.segments.add(
            uid_msb=0, uid_lsb=number, complete=True, end_entry_id=5 * number - 1, driver=driver
        )
    objects = tuple(f"00000000-0000-0000-0000-00000000000{number}" for number in (1, 2))
    assert offloaded_copy(info) == OffloadedCopy("S3", objects, 9, "cold")
    info.offload_context.segments[1].complete = False
    assert offloaded_copy(info) is None
    info.offload_context.segments[1].complete, info.offload_context.segments[1].end_entry_id = True, 8
    assert offloaded_copy(info) is None


def test_ledgers_are_in_order_whatever_order_a_broker_wrote_them_in() -> None:
    record = proto.ManagedLedgerInfo(ledgers=[proto.LedgerInfo(ledger_id=each) for each in (8, 9, 2, 4, 7)])
    found = ManagedLedger.decode("/x", record.SerializeToString(), decompressed)
    assert [each.ledger_id for each in found.ledgers] == [2, 4, 7, 8, 9]


def test_terminated_topic_says_where() -> None:
    record = proto.ManagedLedgerInfo(terminated_position=proto.Position(ledger_id=3, entry_id=-1))
    assert ManagedLedger.decode("/x", record.SerializeToString(), decompressed).terminated_at == EntryPosition(3, -1)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x47\x78",
        b"\x47\x78\0\0\0\x09a",
        compressed_record(4, b"abc")[:-1],
        b"\x47\x78\0\0\0\x02\x08\x09abc",
        proto.ManagedLedgerInfo(
            ledgers=[proto.LedgerInfo(ledger_id=5), proto.LedgerInfo(ledger_id=5)]
        ).SerializeToString(),
    ],
)
def test_record_that_cannot_be_read_is_named(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError, match="/managed-ledgers/x"):
        ManagedLedger.decode("/managed-ledgers/x", data, decompressed)


@given(st.integers(0, 4), st.data())
def test_mutated_records_are_read_or_refused(kind: int, data: st.DataObject) -> None:
    stored = bytearray(compressed_record(kind, RECORD.SerializeToString()))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(stored[: data.draw(st.integers(0, len(stored)))])
    with contextlib.suppress(MetadataCorruptError):
        ManagedLedger.decode("/x", cut, decompressed)
    with contextlib.suppress(MetadataCorruptError):
        Cursor.decode("/x", cut, decompressed)
    with contextlib.suppress(MetadataCorruptError):
        schema_versions("/x", cut)
    with contextlib.suppress(MetadataCorruptError):
        decode_schema("/x", 0, cut)


def test_cursor_is_read_from_its_node_and_from_an_entry() -> None:
    record = proto.CursorInfo(
        cursors_ledger_id=-1,
        mark_delete_ledger_id=3,
        mark_delete_entry_id=7,
        properties=[proto.LongProperty(name=b"CompactedTopicLedger", value=77)],
    )
    found = Cursor.decode("/x", record.SerializeToString(), decompressed)
    assert found == Cursor(-1, EntryPosition(3, 7), (("CompactedTopicLedger", 77),))
    assert found.compacted_ledger == 77
    entry = proto.CursorPosition(ledger_id=3, entry_id=8)
    assert Cursor.of_entry("x", entry.SerializeToString(), 12) == Cursor(12, EntryPosition(3, 8))
    assert Cursor.of_entry("x", entry.SerializeToString(), 12).compacted_ledger == -1


@pytest.mark.parametrize(("data", "count"), [(b'{"partitions":3}', 3), (b'{"partitions":0,"properties":null}', 0)])
def test_partitions_are_counted(data: bytes, count: int) -> None:
    assert partition_count("/x", data) == count


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"partitions":true}', b'{"partitions":-1}', b"[" * 100_000])
def test_record_without_partitions_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError, match="/x"):
        partition_count("/x", data)


def test_schema_is_found_by_its_versions() -> None:
    index = [proto.SchemaIndexEntry(version=k, position=proto.Position(ledger_id=20 + k, entry_id=0)) for k in range(2)]
    locator = proto.SchemaLocator(info=index[1], index=index)
    versions = schema_versions("/x", locator.SerializeToString())
    assert [(each.version, each.position) for each in versions] == [(0, (20, 0)), (1, (21, 0))]
    info = proto.SchemaInfo(type=3, schema=b'{"type":"record"}', props=[proto.KeyValue(key=b"k", value=b"v")])
    entry = proto.SchemaEntry(schema_data=info.SerializeToString(), index=index[:1])
    schema, older = decode_schema("x", 1, entry.SerializeToString())
    assert schema == TopicSchema(1, "JSON", b'{"type":"record"}', False, (("k", "v"),))
    assert older == versions[:1]


IDS = st.builds(
    MessageId,
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 63) - 1),
    st.integers(-1, 1000),
    st.integers(-1, 1000),
    st.integers(0, 1000),
    st.none() | st.builds(EntryPosition, st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
)


@given(IDS)
def test_message_id_comes_back_from_its_bytes(each: MessageId) -> None:
    assert MessageId.deserialize(each.serialize()) == each


def test_message_id_has_the_bytes_of_pulsars_clients() -> None:
    assert MessageId(3, 0).serialize() == bytes.fromhex("08031000")
    assert MessageId(300, 5, 2, 0, 10).serialize() == bytes.fromhex("08ac0210051802200030" + "0a")


@pytest.mark.parametrize("data", [b"", b"\xff", b"abc", b"\x08" + b"\xff" * 9 + b"\x01\x10\x00"])
def test_bytes_that_are_no_message_id_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        MessageId.deserialize(data)


def test_positions_compare_as_they_follow() -> None:
    assert EntryPosition(3, 9) < EntryPosition(4, 0) < EntryPosition(4, 1)
    assert EntryPosition.parse("4:1") == EntryPosition(4, 1)
    with pytest.raises(InvalidArgumentError):
        EntryPosition.parse("4")


def test_reads_end_before_the_first_undecided_transaction() -> None:
    found = Transactions()
    a, b, c = (TxnId(0, k) for k in range(3))
    for at, txn in enumerate((a, b, a, c)):
        found.message(txn, EntryPosition(1, at))
    assert found.first_undecided == EntryPosition(1, 0)
    found.marker(COMMIT, a)
    assert found.first_undecided == EntryPosition(1, 1)
    found.marker(20, b)  # committing: says nothing
    found.marker(ABORT, b)
    found.marker(COMMIT, b)  # the first marker decides
    assert (found.aborted, found.first_undecided) == ({b}, EntryPosition(1, 3))
    found.marker(ABORT, c)
    found.message(c, EntryPosition(1, 9))
    assert (found.aborted, found.committed, found.first_undecided) == ({b, c}, {a}, None)
