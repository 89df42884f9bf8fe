# SPDX-License-Identifier: Apache-2.0
"""Converts between the lanes' messages and the types of the port. Client and bookie use it, on all our lanes (L6)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal, cast

from bk_core.errors import RemoteProtocolError
from bk_core.model import BookieId
from bk_core.transport.port import BookieInfo
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX, Cut, EntryRange, Reason
from bk_core.wire.proto import lane_pb2

LANE_VERSION = 1
SERVICE = "bookkeeper.lane.Bookie"

_REASONS = {int(reason): reason for reason in Reason}

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)
"""The gRPC settings of client and bookie. The limits on messages follow from the limit on frames (L5)."""


def asleep() -> None:
    """Do nothing. This is the ``wake`` of a stream that no lane carries yet."""


def reason_of(number: int) -> Reason:
    """Return the reason that has this number on the wire. The number of an unknown reason, from a later version, counts
    as BAD_REQUEST."""
    return _REASONS.get(number, Reason.BAD_REQUEST)


def proto_reason(reason: Reason) -> lane_pb2.Reason:
    return cast(lane_pb2.Reason, int(reason))


def hello(
    bookie_id: BookieId, instance_id: str, incarnation: str, client: str, *, grants: bool = False
) -> lane_pb2.Hello:
    """Make hello, the first message of a client (L1)."""
    return lane_pb2.Hello(
        version_min=LANE_VERSION,
        version_max=LANE_VERSION,
        instance_id=instance_id,
        bookie_id=bookie_id,
        incarnation=incarnation,
        frame_bytes_max=FRAME_BYTES_MAX,
        client=client,
        grants=grants,
    )


CUT_FIELDS: tuple[Literal["head_bytes", "range_counts", "range_offsets", "range_sizes"], ...] = (
    "head_bytes",
    "range_counts",
    "range_offsets",
    "range_sizes",
)
"""The fields of a ReadRequest that request parts of entries."""


def cut_to_proto(cut: Cut | None) -> dict[str, Any]:
    """Return the fields of a ReadRequest that request this cut."""
    if cut is None:
        return {}
    spans = [span for spans in cut.ranges for span in spans]
    return {
        "head_bytes": cut.head,
        "range_counts": [len(spans) for spans in cut.ranges],
        "range_offsets": [offset for offset, _ in spans],
        "range_sizes": [size for _, size in spans],
    }


def cut_from_proto(request: lane_pb2.ReadRequest) -> Cut | None:
    """Return the parts of entries that a read requests, or None if it requests whole entries. Raises
    RemoteProtocolError for columns that do not fit together."""
    if not request.range_counts:
        return Cut(head=request.head_bytes) if request.head_bytes else None
    counts, spans = request.range_counts, iter(zip(request.range_offsets, request.range_sizes, strict=False))
    if not sum(counts) == len(request.range_offsets) == len(request.range_sizes):
        raise RemoteProtocolError(
            "the columns with the ranges of a read differ in length", value=f"{len(counts)} entries"
        )
    ranges = tuple(tuple(islice(spans, count)) for count in counts)
    return Cut(request.head_bytes, request.first_entry_id, ranges)


def trailer_to_proto(trailer: ReadTrailer, reason: Reason, message: str) -> lane_pb2.ReadTrailer:
    return lane_pb2.ReadTrailer(
        answered_through=trailer.answered_through,
        absent=_ranges_to_proto(trailer.absent),
        unknown=_ranges_to_proto(trailer.unknown),
        fenced=trailer.fenced,
        reason=proto_reason(reason),
        message=message,
    )


def trailer_from_proto(message: lane_pb2.ReadTrailer) -> ReadTrailer:
    return ReadTrailer(
        message.answered_through,
        tuple(map(_range_from_proto, message.absent)) if message.absent else (),
        tuple(map(_range_from_proto, message.unknown)) if message.unknown else (),
        message.fenced,
    )


def _ranges_to_proto(ranges: Iterable[EntryRange]) -> list[lane_pb2.EntryRange]:
    return [
        lane_pb2.EntryRange(
            first_entry_id=r.first, last_entry_id=r.last, reason=proto_reason(r.reason), message=r.message
        )
        for r in ranges
    ]


def _range_from_proto(message: lane_pb2.EntryRange) -> EntryRange:
    return EntryRange(message.first_entry_id, message.last_entry_id, reason_of(int(message.reason)), message.message)


def evidence_to_proto(evidence: LacEvidence) -> lane_pb2.LacAnswer:
    return lane_pb2.LacAnswer(
        last_entry_id=evidence.last_entry_id,
        last_entry_frame=bytes(evidence.last_entry_frame),
        lac_body=evidence.lac_body,
        lac_frame=bytes(evidence.lac_frame),
        fenced=evidence.fenced,
        known=evidence.known,
    )


def evidence_from_proto(message: lane_pb2.LacAnswer) -> LacEvidence:
    return LacEvidence(
        message.last_entry_id,
        message.last_entry_frame,
        message.lac_body,
        message.lac_frame,
        message.fenced,
        message.known,
    )


def info_to_proto(info: BookieInfo) -> lane_pb2.BookieInfo:
    return lane_pb2.BookieInfo(
        total_bytes=info.total_bytes,
        free_bytes=info.free_bytes,
        read_only=info.read_only,
        version=info.version,
        limbo_ledgers=info.limbo_ledgers,
        damaged_ledgers=info.damaged_ledgers,
    )


def info_from_proto(said: lane_pb2.BookieInfo) -> BookieInfo:
    return BookieInfo(
        said.total_bytes, said.free_bytes, said.read_only, said.version, said.limbo_ledgers, said.damaged_ledgers
    )
