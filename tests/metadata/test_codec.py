# SPDX-License-Identifier: Apache-2.0
"""Ledger metadata: Apache's bytes in all three versions, and refusal of everything else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.metadata.codec import decode_ledger, encode_ledger
from bk_core.metadata.proto.ledger_pb2 import LedgerMetadataFormat
from bk_core.model import DigestType, Fragment, LedgerMetadata, LedgerState

HEADER = b"BookieMetadataFormatVersion\t"

# The records of TestLedgerMetadataSerDe of Apache BookKeeper.
V3 = HEADER + bytes.fromhex(
    "330a6008021003180020ffffffffffffffffff01280132320a0e3139322e302e322e313a333138310a0e3139322e302e322e323a3331"
    "38310a0e3139322e302e322e333a33313831100038034206666f6f626172480150ffffffffffffffffff016000"
)
V3_BODY = V3[31:]
V2 = (
    HEADER
    + b"""\
2
quorumSize: 2
ensembleSize: 3
length: 0
lastEntryId: -1
state: IN_RECOVERY
segment {
  ensembleMember: "192.0.2.1:1234"
  ensembleMember: "192.0.2.2:1234"
  ensembleMember: "192.0.2.3:1234"
  firstEntryId: 0
}
digestType: CRC32
password: "passwd"
ackQuorumSize: 2
"""
)
V1 = HEADER + b"1\n2\n3\n0\n0\t192.0.2.1:1234\t192.0.2.2:1234\t192.0.2.3:1234\n-102\tCLOSED"


def bookies(port: int) -> tuple[str, ...]:
    return tuple(f"192.0.2.{n}:{port}" for n in (1, 2, 3))


def test_version_3_is_apaches_byte_for_byte() -> None:
    expected = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=1,
        fragments=(Fragment(0, bookies(3181)),),
        digest_type=DigestType.CRC32C,
        password=b"foobar",
        ctime_ms=-1,
        c_token=0,
    )
    assert len(V3) == 127
    assert decode_ledger(V3) == expected
    assert encode_ledger(expected) == V3


def test_version_2_is_apaches_byte_for_byte() -> None:
    expected = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        fragments=(Fragment(0, bookies(1234)),),
        state=LedgerState.IN_RECOVERY,
        digest_type=DigestType.CRC32,
        password=b"passwd",
        format_version=2,
    )
    assert decode_ledger(V2) == expected
    assert encode_ledger(expected) == V2


def test_version_1_is_apaches_byte_for_byte() -> None:
    expected = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        fragments=(Fragment(0, bookies(1234)),),
        state=LedgerState.IN_RECOVERY,
        digest_type=None,
        password=None,
        format_version=1,
    )
    assert decode_ledger(V1) == expected
    assert encode_ledger(expected) == V1


def test_version_1_says_open_by_silence_and_closed_by_the_last_entry() -> None:
    opened = decode_ledger(V1.rpartition(b"\n")[0])
    assert (opened.state, opened.last_entry_id) == (LedgerState.OPEN, -1)
    closed = decode_ledger(V1.replace(b"-102\t", b"41\t").replace(b"3\n0\n", b"3\n900\n"))
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 41, 900)


def test_missing_ack_quorum_is_the_write_quorum_and_missing_secrets_are_none() -> None:
    lines = [line for line in V2.split(b"\n") if not line.startswith((b"ack", b"digest", b"password", b"last"))]
    metadata = decode_ledger(b"\n".join(lines))
    assert (metadata.ack_quorum_size, metadata.digest_type, metadata.password) == (2, None, None)
    assert metadata.last_entry_id == -1


@pytest.mark.rule("M4")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_rewrite_keeps_the_version_it_was_read_with(version: int) -> None:
    read = decode_ledger({1: V1, 2: V2, 3: V3}[version])
    written = encode_ledger(read.closed_at(7, 70))
    assert written.startswith(HEADER + b"%d\n" % version)
    assert decode_ledger(written) == read.closed_at(7, 70)


@pytest.mark.rule("M4")
def test_unknown_fields_survive_wherever_they_stand() -> None:
    message = LedgerMetadataFormat.FromString(V3_BODY)
    message.customMetadata.add(key="k", value=b"v").MergeFromString(b"\xfa\x01\x05entry")  # field 31
    message.segment[0].MergeFromString(b"\xfa\x01\x07segment")
    message.MergeFromString(b"\xfa\x01\x03top\xc0\x0c\x01")  # fields 31 and 200
    read = decode_ledger(_v3(message))
    grown = read.with_ensemble(10, ("192.0.2.9:3181", *bookies(3181)[:2])).closed_at(20, 200)
    rewritten = LedgerMetadataFormat.FromString(_body_of(encode_ledger(grown)))
    assert len(rewritten.segment) == 2
    assert b"\xfa\x01\x07segment" in rewritten.segment[0].SerializeToString()
    assert b"segment" not in rewritten.segment[1].SerializeToString()
    assert b"\xfa\x01\x05entry" in rewritten.customMetadata[0].SerializeToString()
    assert rewritten.SerializeToString().endswith(b"\xfa\x01\x03top\xc0\x0c\x01")
    assert decode_ledger(encode_ledger(grown)) == grown


@pytest.mark.rule("M4")
def test_unknown_digest_type_is_refused_and_not_dropped() -> None:
    with pytest.raises(MetadataCorruptError, match="digestType 9"):
        decode_ledger(_v3(LedgerMetadataFormat.FromString(V3_BODY), b"\x38\x09"))
    with pytest.raises(MetadataCorruptError):
        decode_ledger(V2.replace(b"CRC32", b"BLAKE3"))


def test_newer_version_is_refused_by_its_number() -> None:
    with pytest.raises(MetadataCorruptError, match=r"version 4.*newer release"):
        decode_ledger(HEADER + b"4\n" + V3[30:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEADER,
        HEADER + b"3",
        HEADER + b"3\n",
        HEADER + b"0\n",
        HEADER + "٣\n".encode() + V3[30:],
        b"x" + V3,
        V3[:-1],
        V3 + b"\0",
        V3[:-2],  # without its last field
        V3 + b"\x60\x01",  # with one more
        HEADER + b"3\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        V2.replace(b"length: 0\n", b""),
        V2.replace(b"state: IN_RECOVERY\n", b""),
        V2.replace(b"  firstEntryId: 0\n", b""),
        V2.replace(b"length: 0", b"length: x"),
        V2.replace(b"firstEntryId: 0", b"firstEntryId: 3"),
        V2.replace(b"ensembleSize: 3", b"ensembleSize: 4"),
        V2.replace(b"ackQuorumSize: 2", b"ackQuorumSize: 3"),
        V2.replace(b"length: 0", b"length: -5"),
        V2.replace(b"lastEntryId: -1", b"lastEntryId: -9"),
        V2 + b"newField: 1\n",
        V2.replace(b"192.0.2.2", b"192.0.2.1"),
        V2.replace(b"IN_RECOVERY", b"CLOSED").replace(b"lastEntryId: -1\n", b""),
        V1 + b"\n5\tx",
        V1.replace(b"-102", b"-103"),
        V1.replace(b"\n0\t", b"\n99999999999999999999\t"),
        V1.replace(b"\n0\t", b"\n1_0\t"),
        V1.replace(b"192", b"\xff\xff\xff"),
    ],
)
def test_damaged_record_is_corrupt_and_nothing_else(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError):
        decode_ledger(data)


@pytest.mark.parametrize("gone", ["quorumSize", "ensembleSize", "length", "state", "firstEntryId", "lastEntryId"])
def test_a_record_without_what_it_must_say_is_not_read_as_if_it_said_the_least(gone: str) -> None:
    message = LedgerMetadataFormat.FromString(V3_BODY)
    message.state, message.length, message.lastEntryId = LedgerMetadataFormat.CLOSED, 30, 2
    whole = message.SerializeToString()
    assert decode_ledger(HEADER + b"3\n" + bytes([len(whole)]) + whole).last_entry_id == 2
    (message.segment[0] if gone == "firstEntryId" else message).ClearField(gone)
    cut = message.SerializePartialToString()
    with pytest.raises(MetadataCorruptError, match=r"missing|without a last entry"):
        decode_ledger(HEADER + b"3\n" + bytes([len(cut)]) + cut)


@given(st.binary(max_size=300))
def test_garbage_is_corrupt_and_nothing_else(tail: bytes) -> None:
    for start in (b"", HEADER, HEADER + b"1\n", HEADER + b"2\n", HEADER + b"3\n"):
        _decode_or_corrupt(start + tail)


@given(st.data())
def test_record_with_changed_bytes_is_read_or_corrupt(data: st.DataObject) -> None:
    record = bytearray(data.draw(st.sampled_from([V1, V2, V3])))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(record) - 1))
        record[position] = data.draw(st.integers(0, 255))
    _decode_or_corrupt(bytes(record[: data.draw(st.integers(0, len(record)))]))
    _decode_or_corrupt(bytes(record))


def test_deep_nesting_is_corrupt() -> None:
    _decode_or_corrupt(HEADER + b"2\n" + b"segment {" * 5000)


names = st.text(st.characters(codec="utf-8", exclude_characters="\t\n"), min_size=1, max_size=12).filter(
    lambda name: name != "CLOSED"  # marks the end in version 1
)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    e = draw(st.integers(1, 5))
    qw = draw(st.integers(1, e))
    firsts = sorted({0, *draw(st.lists(st.integers(1, 2**63 - 1), max_size=4))})
    ensembles = st.lists(names, min_size=e, max_size=e, unique=True)
    metadata = LedgerMetadata(
        ensemble_size=e,
        write_quorum_size=qw,
        ack_quorum_size=draw(st.integers(1, qw)),
        fragments=tuple(Fragment(first, tuple(draw(ensembles))) for first in firsts),
        digest_type=draw(st.sampled_from([None, *DigestType])),
        password=draw(st.none() | st.binary(max_size=20)),
        ctime_ms=draw(st.none() | st.integers(-1, 2**62)),
        custom_metadata=draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=20), max_size=3)),
        c_token=draw(st.none() | st.integers(0, 2**63 - 1)),
    )
    state = draw(st.sampled_from(LedgerState))
    if state is LedgerState.CLOSED:
        return metadata.closed_at(draw(st.integers(-1, 2**63 - 1)), draw(st.integers(0, 2**63 - 1)))
    return replace(metadata, state=state)


@given(ledgers())
def test_any_metadata_reads_back_as_it_was_written(metadata: LedgerMetadata) -> None:
    assert decode_ledger(encode_ledger(metadata)) == metadata
    v2 = replace(metadata, format_version=2, c_token=None)
    assert decode_ledger(encode_ledger(v2)) == v2
    v1 = replace(
        v2,
        format_version=1,
        ack_quorum_size=metadata.write_quorum_size,
        digest_type=None,
        password=None,
        custom_metadata={},
        ctime_ms=None,
    )
    assert decode_ledger(encode_ledger(v1)) == v1


@pytest.mark.parametrize(
    "changes",
    [{"ack_quorum_size": 1}, {"password": b""}, {"digest_type": DigestType.MAC}, {"custom_metadata": {"": b""}}],
)
def test_version_1_refuses_what_it_cannot_hold(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="Version 1"):
        encode_ledger(replace(decode_ledger(V1), **changes))


@pytest.mark.parametrize("bookie", ["CLOSED", "a\tb", "a\nb"])
def test_version_1_refuses_bookie_ids_that_it_would_read_otherwise(bookie: str) -> None:
    one = replace(decode_ledger(V1), ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    with pytest.raises(InvalidArgumentError, match="bookie id"):
        encode_ledger(replace(one, fragments=(Fragment(0, (bookie,)),)))


def test_what_no_version_can_hold_is_refused() -> None:
    metadata = decode_ledger(V3)
    for changed in (replace(metadata, format_version=4), replace(metadata, fragments=())):
        with pytest.raises(InvalidArgumentError):
            encode_ledger(changed)
    with pytest.raises(InvalidArgumentError, match="unknown_fields"):
        encode_ledger(replace(metadata, unknown_fields=b"\xff"))


def _v3(message: LedgerMetadataFormat, more: bytes = b"") -> bytes:
    body = message.SerializeToString() + more
    assert len(body) < 2**14
    size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 0x7F | 0x80, len(body) >> 7])
    return HEADER + b"3\n" + size + body


def _body_of(record: bytes) -> bytes:
    body = record.partition(b"\n")[2]
    return body[1:] if body[0] < 128 else body[2:]


def _decode_or_corrupt(data: bytes) -> None:
    try:
        metadata = decode_ledger(data)
    except MetadataCorruptError:
        return
    assert metadata.problem() is None
