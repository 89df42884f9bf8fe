# SPDX-License-Identifier: Apache-2.0
"""Converts messages of the direct lane to a stream of bytes and back, for client and bookie.

A connection carries one of the lane's three streams, so that a fence never waits behind adds (L3). It begins with a
preamble of 8 bytes from the client: the magic, the version and the stream. Then both ends send messages. A message has
a header of 8 bytes (the length of the frames, the length of the rest), the frames, and the rest. All numbers are
little-endian.

Nothing here touches a socket. :class:`MessageReader` says into which buffers the next bytes are received, so that a
long message gets a separate buffer. :class:`SendQueue` says which bytes to send next, so that frames are sent without a
copy.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bk_core.errors import RemoteProtocolError
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX
from bk_core.wire.lane.reasons import LaneMessage

VERSION = 1
PREAMBLE_BYTES = 8
STREAMS = ("Add", "Read", "Control")
"""The names of the streams. The preamble has the position of a stream's name in this tuple, from 1 on."""

BUFFERS_MAX = 512
"""The maximum number of buffers in one system call. The limit of Linux is 1,024."""

SMALL_FRAME_BYTES = 4096
"""The average size in bytes up to which the frames of a message are joined. For such frames a buffer each would cost
more than the copy, which takes 0.2 µs for 4 KiB."""

_PREAMBLE = struct.Struct("<4sBBxx")
_MAGIC = b"bkdl"
_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
_STAGING_BYTES = 16 << 10
_new = tuple.__new__  # costs less than the constructor of a named tuple


def preamble(stream: str) -> bytes:
    """Make the first bytes that a client sends on a connection for this stream."""
    return _PREAMBLE.pack(_MAGIC, VERSION, 1 + STREAMS.index(stream))


def stream_of(data: bytes) -> str:
    """Return the stream that a preamble names. Raises RemoteProtocolError if ``data`` is not a preamble of this
    version."""
    magic, version, stream = _PREAMBLE.unpack(data)
    if magic != _MAGIC:
        raise RemoteProtocolError("a connection does not begin with the preamble of the direct lane", value=data.hex())
    if version != VERSION or not 1 <= stream <= len(STREAMS):
        value = f"version {version}, stream {stream}"
        raise RemoteProtocolError("a connection's preamble has an unknown version or stream", value=value)
    return STREAMS[stream - 1]


class Received(NamedTuple):
    """A received message. ``frames`` is None if it has no frames."""

    frames: memoryview | None
    rest: bytes


class MessageReader:
    """Cuts received bytes into messages. ``take`` makes a buffer of the given size for a message that is too long for
    the staging buffer. It must not reuse a buffer while a reference to it exists."""

    def __init__(self, take: Callable[[int], memoryview]) -> None:
        self._take = take
        self._staging = bytearray(_STAGING_BYTES)
        self._begin = self._end = 0  # of the bytes in the staging buffer that are not cut yet
        self._body: memoryview | None = None  # the buffer of a long message
        self._filled = self._frames_bytes = 0
        self.in_message = False
        """Whether a part of a message was received, and not all of it."""
        self.long_bytes = 0
        """The size in bytes of the message that is being received into a separate buffer; 0 if there is none."""

    def drop(self) -> None:
        """Release the buffer of a long message that is not complete, because the connection ended."""
        self._body, self.long_bytes = None, 0
        self.in_message = self._end > self._begin

    @property
    def missing(self) -> int:
        """The number of bytes still to come of the message that is being received into a separate buffer; 0 if there is
        none."""
        return 0 if self._body is None else len(self._body) - self._filled

    def buffers(self) -> list[memoryview]:
        """Return the buffers for the next bytes, in the order in which they are filled."""
        staging = memoryview(self._staging)[self._end :]
        return [staging] if self._body is None else [self._body[self._filled :], staging]

    def received(self, count: int) -> Iterator[Received]:
        """Note that ``count`` bytes were received, and yield the messages that are complete now. Raises
        RemoteProtocolError for a message that is too long, before memory is allocated for it (L5). After that no more
        messages can be read."""
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
                message = bytes(memoryview(self._staging)[begin : self._begin])
                found = memoryview(message)[:frames] if frames else None
                yield _new(Received, (found, message[frames:]))
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
        """Move the bytes that are not cut yet to the start of the staging buffer, so that the rest of their message
        fits behind them."""
        have = self._end - self._begin
        if have:
            self._staging[:have] = self._staging[self._begin : self._end]
        self._begin, self._end = 0, have


class SendQueue:
    """A queue of messages to be sent, as buffers. The buffers must not change until they are sent."""

    def __init__(self) -> None:
        self._buffers: deque[memoryview] = deque()
        self.bytes = 0
        """The number of bytes that are not sent yet."""

    def put(self, message: LaneMessage) -> None:
        """Add a message at the end of the queue. Its frames are not copied, unless they have at most SMALL_FRAME_BYTES
        on average."""
        rest, frames = message
        size = sum(map(len, frames)) if frames else 0
        head = _HEAD.pack(size, len(rest))
        self.bytes += HEAD_BYTES + size + len(rest)
        if size <= SMALL_FRAME_BYTES * len(frames):
            self._buffers.append(memoryview(b"".join((head, *frames, rest))))
        else:
            self._buffers.extend(map(memoryview, filter(len, (head, *frames, rest))))

    def put_bytes(self, data: bytes) -> None:
        """Add bytes without a message's header, which is how the preamble is sent."""
        self._buffers.append(memoryview(data))
        self.bytes += len(data)

    def next(self) -> list[memoryview]:
        """Return the buffers to send next, at most BUFFERS_MAX."""
        if len(self._buffers) <= BUFFERS_MAX:
            return list(self._buffers)
        return [self._buffers[k] for k in range(BUFFERS_MAX)]

    def sent(self, count: int) -> None:
        """Note that the next ``count`` bytes were sent."""
        self.bytes -= count
        if not self.bytes:
            self._buffers.clear()
            return
        while count:
            first = self._buffers[0]
            if len(first) > count:
                self._buffers[0] = first[count:]
                return
            count -= len(first)
            self._buffers.popleft()
