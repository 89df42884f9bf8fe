# SPDX-License-Identifier: Apache-2.0
"""Reads the bytes that one connection receives, burst by burst. It finds the version of the protocol and the contents
of the frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bk_core.errors import RemoteProtocolError
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, LENGTH_BYTES, Buffer, Frames, frames
from bk_core.wire.bookie_rpc.layouts import MessageReader
from bk_core.wire.bookie_rpc.runs import (
    ADD,
    ANSWER_ROWS,
    KIND,
    LONE_ADDS_MAX,
    READ,
    REQUEST_ROWS,
    AddAnswers,
    AddRun,
    BatchRead,
    Burst,
    CutFrames,
    Items,
    LoneAdd,
    ReadAnswers,
    ReadRun,
    Replies,
    Single,
    WireAnswer,
    empty_rows,
    items_of,
)

_REQUESTS: Mapping[int, type[AddRun | ReadRun]] = {ADD: AddRun, READ: ReadRun}
_ANSWERS: Mapping[int, type[AddAnswers | ReadAnswers]] = {ADD: AddAnswers, READ: ReadAnswers}


class RequestReader:
    """Reads the requests of one connection to a bookie. A connection has version 3 until a frame comes that is not a
    message of version 3. From then on it has version 2. Apache's bookies do the same, because the protocol has no
    negotiation. A frame that begins with a byte below 8 cannot be a message of version 3, because protobuf has no field
    0; a request of version 2 begins with 0 to 2.
    """

    __slots__ = ("_limit", "_v3", "version")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self.version = 3
        self._limit = limit
        self._v3: MessageReader[Single | BatchRead] = MessageReader(v3.REQUESTS, v3.read_request)

    def read(self, received: Buffer) -> Burst:
        """Read the requests in a receive buffer. The caller keeps the bytes after ``used`` and appends further bytes to
        them. This never raises. An error becomes the ``fault``, or the status of one request."""
        buffer = memoryview(received)
        if _is_one_frame(buffer, self._limit):
            row, read_one = [0] * REQUEST_ROWS, v3.read_request if self.version == 3 else v2.read_request
            try:
                other = read_one(buffer[LENGTH_BYTES:], LENGTH_BYTES, 0, row)
                return Items([_REQUESTS[row[KIND]](buffer, row) if other is None else other], len(buffer))
            except RemoteProtocolError:
                pass  # the code below reads the frame again, and turns to version 2 or makes the fault
        cut = frames(buffer, self._limit)
        rows = empty_rows(cut.offsets.size, REQUEST_ROWS)
        given = CutFrames(buffer, cut.offsets, cut.lengths, rows)
        others: list[Single | BatchRead] = []
        fault, end = None, 0
        if self.version == 3:
            others, fault, end = self._v3.read(given)
            if fault is not None:
                # Frames that were already read as version 3 begin with a byte above 7, so they are no run of version 2.
                self.version = 2
        if self.version == 2:
            more, fault, end = v2.read_requests_of(given, end)
            others += more
        return Items(items_of(buffer, rows[:, :end], others, _REQUESTS), *_rest(cut, fault, end))


class AnswerReader:
    """Reads the answers on one connection of a client. The client sets ``version`` to 3 or 2. With TLS, a client of
    version 2 sets it only after the answer to START_TLS, which is a message of version 3."""

    __slots__ = ("_limit", "_v3", "version")

    def __init__(self, version: int = 3, limit: int = FRAME_BYTES_MAX) -> None:
        self.version = version
        self._limit = limit
        self._v3: MessageReader[WireAnswer] = MessageReader(v3.ANSWERS, v3.read_answer)

    def read(self, received: Buffer) -> Replies:
        """Read the answers in a receive buffer. The caller keeps the bytes after ``used`` and appends further bytes to
        them. This never raises. After a ``fault`` no further answer on the connection counts, and unanswered requests
        are UNKNOWN."""
        buffer = memoryview(received)
        if self.version == 3 and _is_one_frame(buffer, self._limit):
            row = [0] * ANSWER_ROWS
            try:
                other = v3.read_answer(buffer[LENGTH_BYTES:], LENGTH_BYTES, 0, row)
                return Items([_ANSWERS[row[KIND]](buffer, row) if other is None else other], len(buffer))
            except RemoteProtocolError:
                pass  # the code below reads the frame again and makes the fault
        cut = frames(buffer, self._limit)
        rows = empty_rows(cut.offsets.size, ANSWER_ROWS)
        given = CutFrames(buffer, cut.offsets, cut.lengths, rows)
        others: list[Any]
        if self.version == 3:
            others, fault, end = self._v3.read(given)
        else:
            others, fault, end = v2.read_answers_of(given)
        return Items(items_of(buffer, rows[:, :end], others, _ANSWERS), *_rest(cut, fault, end))


def lone_adds(
    received: memoryview, lone_add: Callable[[memoryview], LoneAdd | None]
) -> tuple[list[LoneAdd], int] | None:
    """Read a buffer that begins with whole frames, each of which ``lone_add`` of the wire's version can read, and may
    end with a part of another. Return the adds and the number of bytes used. Return None for anything else, and for
    more than LONE_ADDS_MAX adds of one ledger, which are cheaper to read as columns."""
    adds, counts = list[LoneAdd](), dict[int, int]()
    at, size = 0, len(received)
    while size - at >= LENGTH_BYTES:
        end = at + LENGTH_BYTES + int.from_bytes(received[at : at + LENGTH_BYTES], "big")
        if end > size:
            break
        add = lone_add(received[at:end])
        if add is None:
            return None
        counts[add[1]] = of_ledger = counts.get(add[1], 0) + 1
        if of_ledger > LONE_ADDS_MAX:
            return None
        adds.append(add)
        at = end
    return (adds, at) if adds else None


def _is_one_frame(buffer: memoryview, limit: int) -> bool:
    """Return whether the buffer is exactly one whole frame. A client that waits for each answer sends one frame at a
    time. Such a frame is read without arrays, because arrays of one item would cost more time than the frame itself."""
    size = len(buffer)
    return LENGTH_BYTES < size <= limit and int.from_bytes(buffer[:LENGTH_BYTES], "big") == size - LENGTH_BYTES


def _rest(cut: Frames, fault: RemoteProtocolError | None, end: int) -> tuple[int, RemoteProtocolError | None]:
    """Return how many bytes were used, and the fault. The fault is that of frame ``end``, or that of the frame after
    the last whole frame."""
    if fault is not None:
        return int(cut.offsets[end]) - LENGTH_BYTES, fault
    return cut.used, cut.fault
