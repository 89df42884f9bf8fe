# SPDX-License-Identifier: Apache-2.0
"""Bytes of heads, pages and transactions: golden files, unknown fields, garbage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.digest import ledger_key
from bk_core.errors import LogError, MetadataCorruptError
from bk_core.logs.model.codec import (
    HEAD_LINE,
    PAGE_LINE,
    TXNS_LINE,
    decode_head,
    decode_page,
    decode_transactions,
    decode_unlinked,
    encode_head,
    encode_page,
    encode_transactions,
    encode_unlinked,
    page_name,
)
from bk_core.logs.model.head import (
    Extent,
    LogHead,
    LogPage,
    LogTransactions,
    PageRef,
    Published,
    PublishId,
    Schema,
    TransactionVersion,
    Unlinked,
)
from bk_core.logs.proto import log_pb2
from bk_core.model import DigestType, Fragment
from tests.kit.amount import examples

GOLDEN = Path(__file__).parents[2] / "golden"
UUID = "12345678-9abc-def0-1234-56789abcdef0"
BOOKIES = ("b1:3181", "b2:3181", "b3:3181", "b4:3181")

SEALED = Extent(
    ledger_id=17,
    first_entry_id=2,
    entry_count=1000,
    size_bytes=100_000,
    base_offset=5_000_000_000,
    created_ms=1_700_000_000_000,
    codec="arrow",
    schema_number=3,
    fragments=(Fragment(0, BOOKIES[:3]), Fragment(700, (BOOKIES[0], BOOKIES[3], BOOKIES[2]))),
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
)
OPEN = Extent(
    ledger_id=18,
    base_offset=SEALED.next_offset,
    created_ms=1_700_000_060_000,
    ensemble_size=3,
    write_quorum_size=2,
    ack_quorum_size=2,
    is_open=True,
)
REF = PageRef(
    name="0123456789abcdef-00112233",
    base_offset=4_999_999_000,
    next_offset=5_000_000_000,
    extents=5,
    size_bytes=123,
    level=1,
)
HEAD = LogHead(
    uuid=UUID,
    epoch=2,
    created_ms=1_690_000_000_000,
    digest_type=DigestType.CRC32C,
    ledger_key=ledger_key(b"secret"),
    start_offset=4_999_999_500,
    next_offset=SEALED.next_offset,
    pages=(REF,),
    tail=(SEALED, OPEN),
    published=(
        Published(
            publish_id=PublishId.stream("q", 41).digest,
            base_offset=SEALED.base_offset,
            rows=1000,
            time_ms=1_700_000_000_500,
        ),
    ),
    condemned=(3, 1 << 40),
    schemas=(Schema(number=3, page="fedcba9876543210-44556677"),),
    retention_ms=604_800_000,
    retention_bytes=1 << 40,
)
PAGE = LogPage(
    extents=(SEALED, replace(SEALED, ledger_id=19, base_offset=SEALED.next_offset, fragments=())),
    pages=(),
)
UNLINKED = Unlinked(pages=(REF,), names=("00000000000000ff-12345678",), ledgers=(17, 2**40, 2**62))
TRANSACTIONS = LogTransactions(
    app_id="nightly",
    versions=(
        TransactionVersion(
            version=7, publish_id=PublishId.txn("nightly", 7).digest, rows=12, time_ms=1_700_000_000_000
        ),
    ),
    last_used_ms=1_700_000_000_000,
)


def test_golden_head_is_written_and_read() -> None:
    data = (GOLDEN / "log-head.bin").read_bytes()
    assert encode_head(HEAD) == data
    assert decode_head(data) == HEAD


def test_golden_page_is_written_and_read() -> None:
    data = (GOLDEN / "log-page.bin").read_bytes()
    name = page_name(0x0123456789ABCDEF, data)
    assert name == "0123456789abcdef-" + (GOLDEN / "log-page.crc").read_text().strip()
    assert encode_page(PAGE) == data
    assert decode_page(data, name) == PAGE


def test_golden_transactions_are_written_and_read() -> None:
    data = (GOLDEN / "log-txns.bin").read_bytes()
    assert encode_transactions(TRANSACTIONS) == data
    assert decode_transactions(data) == TRANSACTIONS


def test_golden_record_of_what_was_unlinked_is_written_and_read() -> None:
    data = (GOLDEN / "log-unlinked.bin").read_bytes()
    assert encode_unlinked(UNLINKED) == data
    assert decode_unlinked(data) == UNLINKED
    with pytest.raises(MetadataCorruptError, match="unlinked record 7"):
        decode_unlinked(data[:-1], "7")
    newer = data + bytes([0x7A, 1, 65])  # field 15, which nobody knows
    assert encode_unlinked(decode_unlinked(newer)) == newer


def test_pages_of_references_and_of_schemas_survive_the_round_trip() -> None:
    for page in (LogPage(pages=(REF, replace(REF, base_offset=REF.next_offset))), LogPage(schema=b"schema")):
        data = encode_page(page)
        assert decode_page(data, page_name(7, data)) == page


def _with_unknown(message: log_pb2.LogHead | log_pb2.LogPage | log_pb2.LogTransactions, *inside: object) -> bytes:
    """Field 100, a varint, at every level named: what a newer version might have added."""
    field = bytes.fromhex("a00607")
    for part in (*inside, message):
        part.MergeFromString(field)
    return message.SerializeToString()


@pytest.mark.rule("M4")
def test_fields_of_a_newer_version_survive_a_rewrite_at_every_level() -> None:
    head = log_pb2.LogHead.FromString(encode_head(HEAD).removeprefix(HEAD_LINE))
    extent = head.tail[0]
    body = _with_unknown(
        head, extent, extent.fragments[1], head.pages[0], head.published[0], head.schemas[0], head.tail[1]
    )
    changed = replace(decode_head(HEAD_LINE + body), epoch=3)
    again = log_pb2.LogHead.FromString(encode_head(changed).removeprefix(HEAD_LINE))
    head.epoch = 3
    assert again == head
    assert again.ByteSize() == head.ByteSize()

    page = log_pb2.LogPage.FromString(encode_page(PAGE).removeprefix(PAGE_LINE))
    data = PAGE_LINE + _with_unknown(page, page.extents[1])
    assert encode_page(decode_page(data, page_name(1, data))) == data

    txns = log_pb2.LogTransactions.FromString(encode_transactions(TRANSACTIONS).removeprefix(TXNS_LINE))
    data = TXNS_LINE + _with_unknown(txns, txns.versions[0])
    assert encode_transactions(decode_transactions(data)) == data


def test_a_page_whose_bytes_are_not_those_of_its_name_is_refused() -> None:
    data = encode_page(PAGE)
    name = page_name(1, data)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(MetadataCorruptError, match="CRC32C"):
        decode_page(bytes(damaged), name)


def _head_message(**changes: object) -> bytes:
    message = log_pb2.LogHead.FromString(encode_head(HEAD).removeprefix(HEAD_LINE))
    for name, value in changes.items():
        setattr(message, name, value)
    return HEAD_LINE + message.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BookKeeperLogHeadVersion\t2\n" + encode_head(HEAD).removeprefix(HEAD_LINE),
        HEAD_LINE + b"\xff\xff",
        encode_head(HEAD)[:-3],
        _head_message(uuid=b"short"),
        _head_message(digest_type=9),
        _head_message(next_offset=1),
    ],
)
def test_a_head_that_cannot_be_read_is_said_to_be_corrupt(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError, match="head of log events"):
        decode_head(data, "events")


def test_a_bookie_outside_the_table_is_corrupt() -> None:
    message = log_pb2.LogHead.FromString(encode_head(HEAD).removeprefix(HEAD_LINE))
    del message.bookies[3]
    with pytest.raises(MetadataCorruptError):
        decode_head(HEAD_LINE + message.SerializeToString())
    page = log_pb2.LogPage.FromString(encode_page(PAGE).removeprefix(PAGE_LINE))
    del page.bookies[3]
    data = PAGE_LINE + page.SerializeToString()
    with pytest.raises(MetadataCorruptError):
        decode_page(data, page_name(1, data))


def test_a_page_with_a_gap_is_corrupt() -> None:
    page = log_pb2.LogPage.FromString(encode_page(PAGE).removeprefix(PAGE_LINE))
    page.extents[1].base_offset += 1
    data = PAGE_LINE + page.SerializeToString()
    with pytest.raises(MetadataCorruptError, match="is followed by"):
        decode_page(data, page_name(1, data))


@given(st.binary(max_size=200))
@examples(3)
def test_garbage_is_corrupt_or_a_sound_head_and_never_anything_else(body: bytes) -> None:
    for prefix in (HEAD_LINE, encode_head(HEAD)):
        try:
            head = decode_head(prefix + body)
        except MetadataCorruptError:
            continue
        assert head.problem() is None


@pytest.mark.rule("N3")
def test_records_over_their_limit_are_not_encoded() -> None:
    tail = (replace(OPEN, codec="x" * 9000),)
    with pytest.raises(LogError, match="too large"):
        encode_head(replace(HEAD, tail=tail, pages=(), start_offset=HEAD.next_offset))
    with pytest.raises(LogError, match="too large"):
        encode_transactions(LogTransactions(app_id="x" * (512 << 10)))
