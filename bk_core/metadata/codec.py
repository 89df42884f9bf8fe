# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes ledger metadata in Apache's three versions, byte for byte.

Version 1 is lines of text, version 2 is protobuf text format, and version 3, which new ledgers have, is
length-delimited protobuf. A rewrite keeps the version of the record that was read, and its unknown fields (M4).
``unknown_fields`` is a partial ``LedgerMetadataFormat`` that has only the unknown fields. Unknown fields of a segment
are kept with its first entry id, and those of a custom entry with its key, so that a rewrite finds where they belong.
tests/golden holds records that Apache wrote.
"""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.metadata.proto.ledger_pb2 import LedgerMetadataFormat
from bk_core.model import NO_ENTRY, DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.wire.lane.grpc_frames import encode_varint

NEWEST_VERSION = 3
_TAG = b"BookieMetadataFormatVersion\t"
_V1_IN_RECOVERY = -102
_V1_CLOSED = "CLOSED"
_INT64_MAX = 2**63 - 1


def encode_ledger(metadata: LedgerMetadata) -> bytes:
    """Encode the data of a ledger's znode in ``metadata.format_version``. Raises InvalidArgumentError if the metadata
    is inconsistent or that version cannot hold it."""
    problem = metadata.problem()
    if problem:
        raise InvalidArgumentError("The ledger metadata is not consistent", value=problem)
    header = b"%s%d\n" % (_TAG, metadata.format_version)
    if metadata.format_version == 3:
        body = _to_message(metadata).SerializeToString()
        return header + encode_varint(len(body)) + body
    if metadata.format_version == 2:
        return header + text_format.MessageToString(_to_message(metadata), as_utf8=False).encode("ascii")
    if metadata.format_version == 1:
        return header + _encode_v1(metadata)
    raise InvalidArgumentError(
        "Ledger metadata has versions 1 to 3",
        value=f"format_version={metadata.format_version}",
        remedy="use 3, or the version the record was read with",
    )


def decode_ledger(data: bytes) -> LedgerMetadata:
    """Decode the data of a ledger's znode. Raises MetadataCorruptError for any bytes that are not ledger metadata."""
    version, body = _split_header(data)
    try:
        if version == 3:
            metadata = _from_message(_parse_v3(body), version)
        elif version == 2:
            metadata = _from_message(_parse_v2(body), version)
        else:
            metadata = _decode_v1(body.decode("utf-8"))
    except (DecodeError, text_format.ParseError, ValueError, RecursionError) as error:
        raise MetadataCorruptError(
            f"The ledger metadata cannot be read (version {version})", value=str(error)[:200]
        ) from error
    problem = metadata.problem()
    if problem:
        raise MetadataCorruptError("The ledger metadata is not consistent", value=problem)
    return metadata


def _split_header(data: bytes) -> tuple[int, bytes]:
    line, newline, body = data.partition(b"\n")
    digits = line[len(_TAG) :]
    if not line.startswith(_TAG) or not newline or not (digits.isdigit() and len(digits) < 10):
        raise MetadataCorruptError("This is not ledger metadata", value=f"it begins with {data[:40]!r}")
    version = int(digits)
    if not 1 <= version <= NEWEST_VERSION:
        raise MetadataCorruptError(
            f"Ledger metadata of version {version} is unknown",
            value=f"versions 1 to {NEWEST_VERSION} are known",
            remedy="read the ledger with a newer release",
        )
    return version, body


# --- versions 2 and 3: one message ---


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    v3 = metadata.format_version == 3
    digest_type = metadata.digest_type
    message = LedgerMetadataFormat(  # None leaves a field out
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.State.Name(metadata.state.value),
        digestType=None if digest_type is None else LedgerMetadataFormat.DigestType.Name(digest_type.value),
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum_size,
        ctime=metadata.ctime_ms,
        cToken=metadata.c_token if v3 else None,
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    if metadata.unknown_fields and v3:
        _merge_unknown(message, metadata.unknown_fields)
    return message


def _from_message(message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    _refuse_unknown_enums(message)
    if not message.IsInitialized():  # the parsers accept such a message; a missing state would read as OPEN
        raise DecodeError("required fields are missing")
    if message.state == LedgerMetadataFormat.CLOSED and not message.HasField("lastEntryId"):
        raise DecodeError("it is CLOSED without a last entry")  # read as an empty ledger, it would hide its entries
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        fragments=tuple(Fragment(s.firstEntryId, tuple(s.ensembleMember)) for s in message.segment),
        state=LedgerState(message.state),
        last_entry_id=message.lastEntryId if message.HasField("lastEntryId") else NO_ENTRY,
        length=message.length,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata={entry.key: entry.value for entry in message.customMetadata},
        c_token=message.cToken if message.HasField("cToken") else None,
        format_version=version,
        unknown_fields=_unknown_of(message),
    )


def _parse_v2(body: bytes) -> LedgerMetadataFormat:
    return text_format.Parse(body.decode("utf-8"), LedgerMetadataFormat())


def _parse_v3(body: bytes) -> LedgerMetadataFormat:
    size, start = _read_varint(body)
    if size != len(body) - start:
        raise DecodeError(f"the record claims {size} bytes, but {len(body) - start} are there")
    return LedgerMetadataFormat.FromString(body[start:])


def _refuse_unknown_enums(message: LedgerMetadataFormat) -> None:
    """Raise DecodeError for an unknown enum value. The parser treats such a value as an unknown field, so that, for
    example, the digest type would be missing."""
    known = message.DESCRIPTOR.fields_by_number
    fields = UnknownFieldSet(message)
    for field in (fields[index] for index in range(len(fields))):
        if field.field_number in known:
            name = known[field.field_number].name
            raise DecodeError(f"{name} {field.data!r} is unknown: a newer release wrote it")


def _unknown_of(message: LedgerMetadataFormat) -> bytes:
    kept = LedgerMetadataFormat()
    kept.CopyFrom(message)
    for field, _ in message.ListFields():
        kept.ClearField(field.name)
    for segment in message.segment:
        if len(UnknownFieldSet(segment)):
            kept.segment.add().CopyFrom(segment)
            kept.segment[-1].ClearField("ensembleMember")
    for entry in message.customMetadata:
        if len(UnknownFieldSet(entry)):
            kept.customMetadata.add().CopyFrom(entry)
            kept.customMetadata[-1].ClearField("value")
    return kept.SerializePartialToString()


def _merge_unknown(message: LedgerMetadataFormat, unknown: bytes) -> None:
    kept = LedgerMetadataFormat()
    try:
        kept.MergeFromString(unknown)
    except DecodeError as error:
        raise InvalidArgumentError("unknown_fields is not protobuf", value=repr(unknown[:40])) from error
    segments = {segment.firstEntryId: segment for segment in message.segment}
    for segment in kept.segment:
        _merge_into(segments.get(segment.firstEntryId), segment)
    entries = {entry.key: entry for entry in message.customMetadata}
    for entry in kept.customMetadata:
        _merge_into(entries.get(entry.key), entry)
    kept.ClearField("segment")
    kept.ClearField("customMetadata")
    message.MergeFromString(kept.SerializePartialToString())


def _merge_into(target: Message | None, unknown: Message) -> None:
    if target is not None:  # if recovery replaced the fragment, its unknown fields are dropped
        target.MergeFromString(unknown.SerializePartialToString())


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    raise DecodeError("the record's length is cut off")


# --- version 1: lines ---


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    if (
        metadata.ack_quorum_size != metadata.write_quorum_size
        or metadata.digest_type is not None
        or metadata.password is not None
        or metadata.custom_metadata
    ):
        raise InvalidArgumentError(
            "Version 1 holds no ack quorum, digest type, password or custom metadata", remedy="use format_version=3"
        )
    for bookie in {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}:
        if bookie == _V1_CLOSED or "\t" in bookie or "\n" in bookie:
            raise InvalidArgumentError("Version 1 cannot hold this bookie id", value=repr(bookie))
    lines = [str(metadata.write_quorum_size), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(f.first_entry_id), *f.ensemble)) for f in metadata.fragments]
    if metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_V1_IN_RECOVERY}\t{_V1_CLOSED}")
    elif metadata.state is LedgerState.CLOSED:
        lines.append(f"{metadata.last_entry_id}\t{_V1_CLOSED}")
    return "\n".join(lines).encode("utf-8")


def _decode_v1(text: str) -> LedgerMetadata:
    write_quorum, ensemble_size, length, *rest = text.split("\n")
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    fragments = []
    for line in rest:
        if state is not LedgerState.OPEN:
            raise ValueError(f"a line follows the end: {line[:80]!r}")
        first, *members = line.split("\t")
        if members == [_V1_CLOSED]:
            state, last_entry_id = LedgerState.CLOSED, _int64(first)
        else:
            fragments.append(Fragment(_int64(first), tuple(members)))
    if last_entry_id == _V1_IN_RECOVERY:
        state, last_entry_id = LedgerState.IN_RECOVERY, NO_ENTRY
    return LedgerMetadata(
        ensemble_size=_int64(ensemble_size),
        write_quorum_size=_int64(write_quorum),
        ack_quorum_size=_int64(write_quorum),
        fragments=tuple(fragments),
        state=state,
        last_entry_id=last_entry_id,
        length=_int64(length),
        digest_type=None,
        password=None,
        format_version=1,
    )


def _int64(text: str) -> int:
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20):
        raise ValueError(f"not a number: {text[:40]!r}")
    value = int(text)
    if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise ValueError(f"not a 64-bit number: {text}")
    return value
