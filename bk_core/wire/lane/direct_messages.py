# SPDX-License-Identifier: Apache-2.0
"""The direct lane on a stream of bytes, for both ends: the preamble of a connection, and its messages.

A connection carries one of the lane's three streams, so that a fence never waits behind adds (L3). It begins with a
preamble of the client, 8 bytes: the magic, the version and the stream. Then messages go both ways: a header of 8 bytes
(the bytes of the frames, the bytes of the rest), the frames, the rest. All numbers are little-endian.

Nothing here touches a socket. :class:`MessageReader` says where the next bytes go, so that a long message is received
into one buffer of its own. :class:`SendQueue` says which bytes to send next, so that frames are sent from where they
lie.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bk_core.errors import RemoteProtocolError
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX
from bk_core.wire.lane.reasons import Buffer, LaneMessage

VERSION = 1
PREAMBLE_BYTES = 8
STREAMS = ("Add", "Read", "Control")
"""The streams by their number in the preamble, from 1 on."""

BUFFERS_MAX = 512
"""The most buffers in one system call; the system's own limit is 1,024."""

SMALL_FRAME_BYTES = 1024
"""The frames of a message are joined if they have at most this many bytes on average."""

_PREAMBLE = struct.Struct("<4sBBxx")
_MAGIC = b"bkdl"
_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
_STAGING_BYTES = 16 << 10


def preamble(stream: str) -> bytes:
    """Make the bytes with which the client's end of a connection begins."""
    return _PREAMBLE.pack(_MAGIC, VERSION, 1 + STREAMS.index(stream))


def stream_of(data: bytes) -> str:
    """Return the stream that a preamble names. Raises RemoteProtocolError."""
    magic, version, stream = _PREAMBLE.unpack(data)
    if magic != _MAGIC:
        raise RemoteProtocolError("a connection does not begin as the direct lane does", value=data.hex())
    if version != VERSION or not 1 <= stream <= len(STREAMS):
        raise RemoteProtocolError("a connection is of another version", value=f"version {version}, stream {stream}")
    return STREAMS[stream - 1]


class Received(NamedTuple):
    """A message: its frames, None if it has none, and the rest."""

    frames: memoryview | None
    rest: bytes


class MessageReader:
    """Cuts received bytes into messages. ``take`` makes a buffer for a message that is too long for the staging buffer.
    The buffer must not be used again while anything refers to it."""

    def __init__(self, take: Callable[[int], memoryview]) -> None:
        self._take = take
        self._staging = bytearray(_STAGING_BYTES)
        self._begin = self._end = 0  # of the bytes that wait in it
        self._body: memoryview | None = None  # the buffer of a long message
        self._filled = self._frames_bytes = 0
        self.in_message = False
        """Whether a message has begun and not ended."""
        self.long_bytes = 0
        """The bytes of the message that is being received into a buffer of its own; 0 if there is none."""

    def drop(self) -> None:
        """Release the buffer of a long message, because nothing more comes."""
        self._body, self.long_bytes = None, 0
        self.in_message = self._end > self._begin

    @property
    def missing(self) -> int:
        """How many bytes are missing of the message that is received into a buffer of its own; 0 if there is none."""
        return 0 if self._body is None else len(self._body) - self._filled

    def buffers(self) -> list[memoryview]:
        """Return the buffers for the next bytes, in the order in which they are filled."""
        staging = memoryview(self._staging)[self._end :]
        return [staging] if self._body is None else [self._body[self._filled :], staging]

    def received(self, count: int) -> Iterator[Received]:
        """Note that ``count`` bytes were received, and yield the messages that are whole now. Raises
        RemoteProtocolError for a message that is too long, before memory is allocated for it (L5); then nothing more
        can be read."""
        if self._body is not None:
            into_body = min(count, len(self._body) - self._filled)
            self._filled += into_body
            count -= into_body
            if self._filled == len(self._body):
                body, self._body, self.long_bytes = self._body, None, 0
                yield self._cut(body)
        self._end += count
        while (have := self._end - self._begin) >= _HEAD.size:
            frames, rest = _HEAD.unpack_from(self._staging, self._begin)
            if frames + rest > MESSAGE_BYTES_MAX:
                value = f"{frames + rest} bytes, at most {MESSAGE_BYTES_MAX}"
                raise RemoteProtocolError("a message is too long", value=value)
            self._frames_bytes = frames
            begin, size = self._begin + _HEAD.size, frames + rest
            if have - _HEAD.size >= size:
                self._begin = begin + size
                yield self._cut(memoryview(bytes(memoryview(self._staging)[begin : self._begin])))
            elif _HEAD.size + size <= _STAGING_BYTES:
                break  # the rest of it fits into the staging buffer
            else:
                self._body, self._filled = self._take(size), have - _HEAD.size
                self.long_bytes, self.in_message = size, True
                self._body[: self._filled] = memoryview(self._staging)[begin : self._end]
                self._begin = self._end = 0
                return
        if self._begin:
            self._tidy()
        self.in_message = self._end > 0 or self._body is not None

    def _cut(self, body: memoryview) -> Received:
        frames = body[: self._frames_bytes] if self._frames_bytes else None
        return Received(frames, bytes(body[self._frames_bytes :]))

    def _tidy(self) -> None:
        """Move the waiting bytes to the front, where there is room for the rest of their message."""
        have = self._end - self._begin
        if have:
            self._staging[:have] = self._staging[self._begin : self._end]
        self._begin, self._end = 0, have


class SendQueue:
    """Messages that are to be sent, as buffers that must not change until they are sent."""

    def __init__(self) -> None:
        self._buffers: deque[memoryview] = deque()
        self.bytes = 0
        """How many bytes are not sent yet."""

    def put(self, message: LaneMessage) -> None:
        """Queue a message after all others. Its frames are not copied, unless they are so small that a buffer for each
        would cost more than the copy."""
        if not message.frames:
            self._put(_HEAD.pack(0, len(message.rest)) + message.rest)
            return
        size = sum(map(len, message.frames))
        head = _HEAD.pack(size, len(message.rest))
        if size <= SMALL_FRAME_BYTES * len(message.frames):
            self._put(b"".join((head, *message.frames, message.rest)))
            return
        self._put(head)
        for each in message.frames:
            self._put(each)
        self._put(message.rest)

    def put_bytes(self, data: bytes) -> None:
        """Queue bytes that are no message: the preamble."""
        self._put(data)

    def _put(self, data: Buffer) -> None:
        if len(data):
            self._buffers.append(memoryview(data))
            self.bytes += len(data)

    def next(self) -> list[memoryview]:
        """Return the buffers to send next, as many as one system call takes."""
        if len(self._buffers) <= BUFFERS_MAX:
            return list(self._buffers)
        return [self._buffers[k] for k in range(BUFFERS_MAX)]

    def sent(self, count: int) -> None:
        """Note that the next ``count`` bytes were sent."""
        self.bytes -= count
        while count:
            first = self._buffers[0]
            if len(first) > count:
                self._buffers[0] = first[count:]
                return
            count -= len(first)
            self._buffers.popleft()
