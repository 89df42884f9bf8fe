# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the data messages, AddRequest and ReadResponse, whose field 1 is ``bytes frames``.

The generated code would copy the frames twice. This code copies them once when it sends, and never when it receives.
The bytes are those of protobuf, so any implementation can read them (docs/formats.md §6). The bytes after field 1 are
called the *rest*. They are a protobuf message without frames, which the generated code parses.
"""

from __future__ import annotations

from bk_core.errors import RemoteProtocolError
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX, Buffer, LaneMessage

MESSAGE_OVERHEAD_BYTES = 64 << 10
"""The maximum number of bytes in a message besides its frames, for attaches, acks and trailers."""

MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + MESSAGE_OVERHEAD_BYTES
"""The maximum size of a message on our lanes, in bytes. gRPC's limits are set to it (L5)."""

_FRAMES_TAG = 0x0A  # field 1, length-delimited
_VARINT_BYTES_MAX = 5  # a length is below 2**32


def encode_varint(value: int) -> bytes:
    """Encode a non-negative integer in protobuf's base-128 form."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack(message: LaneMessage) -> bytes:
    """Encode a message: its frames, joined, and then the rest. This copies the frames once."""
    size = sum(len(part) for part in message.frames)
    if size == 0:
        return message.rest
    return b"".join((bytes((_FRAMES_TAG,)), encode_varint(size), *message.frames, message.rest))


def unpack(data: Buffer) -> tuple[memoryview | None, memoryview]:
    """Return the frames of a message (None if it does not begin with frames) and its rest, as views of ``data``.

    Raises RemoteProtocolError if the message is longer than MESSAGE_BYTES_MAX, or the length of the frames does not fit
    the message; this is checked before memory is allocated (L5).
    """
    view = memoryview(data)
    if len(view) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError("A message is too long", value=f"{len(view)} bytes, at most {MESSAGE_BYTES_MAX}")
    if not len(view) or view[0] != _FRAMES_TAG:
        return None, view
    size = shift = 0
    for position in range(1, min(len(view), 1 + _VARINT_BYTES_MAX)):
        byte = view[position]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            start = position + 1
            if size > len(view) - start:
                break
            return view[start : start + size], view[start + size :]
    raise RemoteProtocolError("The length of the frames does not fit the message", value=f"{size} bytes of {len(view)}")
