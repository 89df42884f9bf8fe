# SPDX-License-Identifier: Apache-2.0
"""Joins the chunks of large messages by uuid, in the order of their numbers, as Pulsar's consumer does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from bk_core.pulsar.model.message_id import EntryPosition

Bytes: TypeAlias = bytes | memoryview

PENDING_BYTES_MAX = 256 << 20
"""The maximum total size in bytes of the chunks that wait for further chunks of their messages, because they are kept
in memory."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a message. ``count`` is the number of chunks of the message, and ``message_bytes`` the size of the
    whole message, both by the chunk's metadata."""

    uuid: bytes
    number: int
    count: int
    message_bytes: int
    body: Bytes
    position: EntryPosition


@dataclass(slots=True)
class _Begun:
    """A message of which only some chunks have been added. ``first`` is the position of its first chunk."""

    first: EntryPosition
    count: int
    message_bytes: int
    bodies: list[bytes] = field(default_factory=list)
    bytes: int = 0


class TooManyChunksError(ValueError):
    """The error for waiting chunks that exceed their size limit, and for a message of an impossible size or of a size
    that its metadata contradict."""


class Chunks:
    """Holds the chunked messages of which some chunks are still missing."""

    def __init__(self, message_bytes_max: int, pending_bytes_max: int = PENDING_BYTES_MAX) -> None:
        self._message_bytes_max, self._pending_bytes_max = message_bytes_max, pending_bytes_max
        self._begun: dict[bytes, _Begun] = {}

    def has_begun(self, uuid: bytes) -> bool:
        """Return whether the message with this uuid waits for more chunks."""
        return uuid in self._begun

    def add(self, chunk: Chunk) -> tuple[bytes, EntryPosition] | None:
        """Add the next chunk. If it completes its message, return the joined message and its first chunk's position.

        As in Pulsar's consumer, chunk 0 begins its message again. A chunk that was already added is ignored, and so is
        a chunk of a message whose chunk 0 was not added. A chunk after a gap drops its message. Raises
        TooManyChunksError.
        """
        if chunk.number == 0:
            self._begin(chunk)
        begun = self._begun.get(chunk.uuid)
        if begun is None:
            return None
        if chunk.number < len(begun.bodies):
            return None
        if chunk.number > len(begun.bodies) or chunk.number >= begun.count:
            del self._begun[chunk.uuid]
            return None
        begun.bodies.append(bytes(chunk.body))
        begun.bytes += len(chunk.body)
        if begun.bytes > begun.message_bytes:
            del self._begun[chunk.uuid]
            raise TooManyChunksError(
                f"its chunks have more than the {begun.message_bytes} bytes that their metadata say"
            )
        if len(begun.bodies) < begun.count:
            self._check_pending()
            return None
        del self._begun[chunk.uuid]
        if begun.bytes != begun.message_bytes:
            raise TooManyChunksError(
                f"its chunks have {begun.bytes} bytes, not the {begun.message_bytes} that their metadata say"
            )
        return b"".join(begun.bodies), begun.first

    def _begin(self, chunk: Chunk) -> None:
        self._begun.pop(chunk.uuid, None)
        if not 0 <= chunk.message_bytes <= self._message_bytes_max:
            raise TooManyChunksError(
                f"its metadata give its message {chunk.message_bytes} bytes; the limit is {self._message_bytes_max}"
            )
        self._begun[chunk.uuid] = _Begun(chunk.position, chunk.count, chunk.message_bytes)

    def _check_pending(self) -> None:
        if sum(each.bytes for each in self._begun.values()) > self._pending_bytes_max:
            self._begun.clear()
            raise TooManyChunksError(
                f"more than {self._pending_bytes_max} bytes of chunks wait for the rest of their messages"
            )
