# SPDX-License-Identifier: Apache-2.0
"""Finds the messages of a batch. A message is a u32 size, SingleMessageMetadata of that size, and the payload.

The beginning of a message is known only after the message before it has been read, so this is a loop in Python. The
short loop :func:`begins` reads usual messages, and :func:`walk` the batches whose messages :mod:`many_batches` does not
find. They read only the size of each payload. All other fields are then scanned for all messages together
(:mod:`scan`).
"""

from __future__ import annotations

import struct

import numpy as np

from bk_core.entries.batch import I64
from bk_core.pulsar.messages.scan import BYTES, VARINT, Wanted, fields_of, varint

PROPERTIES, PARTITION_KEY, PAYLOAD_SIZE, COMPACTED_OUT, EVENT_TIME = 1, 2, 3, 4, 5
KEY_IS_BASE64, ORDERING_KEY, SEQUENCE_ID, NULL_VALUE, NULL_KEY = 6, 7, 8, 9, 10
METADATA = Wanted(
    numbers=frozenset({PAYLOAD_SIZE, COMPACTED_OUT, EVENT_TIME, KEY_IS_BASE64, SEQUENCE_ID, NULL_VALUE, NULL_KEY}),
    spans=frozenset({PARTITION_KEY, ORDERING_KEY}),
    repeated=frozenset({PROPERTIES}),
)
MESSAGES_MAX = 1 << 19
"""The maximum number of messages in a batch. It limits memory, because the columns of a message take a few hundred
bytes. Producers send up to 1000 messages in a batch by default."""
MESSAGE_BYTES_MIN = 6
"""The minimum number of bytes in a message of a batch. It has four bytes of size, and the required field with the size
of its payload."""
_TAG_OF_SIZE = PAYLOAD_SIZE << 3
_TAGS_BEFORE = (PROPERTIES << 3 | BYTES, PARTITION_KEY << 3 | BYTES)
_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">IBBB")
"""The size of a message's metadata and the first three bytes of them, which usually are the payload's size."""
_HEAD_BYTES = _HEAD.size
_BEGIN = struct.Struct(f"{_HEAD_BYTES}s")
STEPS_KEPT_MAX = 1 << 14
"""The maximum number of beginnings of messages that are kept, which take about 2 MB."""


class Steps(dict[tuple[bytes], int]):
    """Maps the first bytes of a message, as :data:`_BEGIN` reads them, to the number of bytes from the begin of the
    message to its end. A look-up costs a fifth of computing this number, and the messages of a topic have few different
    beginnings."""

    def __missing__(self, begin: tuple[bytes]) -> int:
        """Compute the number. Raises KeyError for a message whose metadata do not begin with the payload's size, or
        whose payload has 16 KiB or more."""
        length, tag, low, high = _HEAD.unpack(begin[0])
        if tag == _TAG_OF_SIZE and length > 2 and high < 0x80 <= low:
            step = 4 + length + (low & 0x7F | high << 7)
        elif tag == _TAG_OF_SIZE and length > 1 and low < 0x80:
            step = 4 + length + low
        else:
            raise KeyError(begin)
        if len(self) < STEPS_KEPT_MAX:
            self[begin] = step
        return int(step)


def begins(data: memoryview, begin: int, end: int, count: int, steps: Steps) -> list[int] | None:
    """Return the begins of the messages of a batch, and then the end of the last one. Return None for a batch that
    :func:`walk` must read. ``steps`` keeps what was computed for messages with the same beginning."""
    at, head = begin, _BEGIN.unpack_from
    try:
        found = [begin, *[at := at + steps[head(data, at)] for _ in range(count)]]
    except (KeyError, struct.error):  # a message that ``steps`` does not know, or the last bytes of ``data``
        return None
    return found if at <= end else None


def walk(data: memoryview, begin: int, end: int, count: int) -> tuple[I64, I64, I64]:
    """Return three arrays for the messages of a batch, which are the begin and the end of each message's metadata, and
    the size of its payload. The batch has ``count`` messages, and the bytes of ``data`` from ``begin`` to ``end``.
    Raises ValueError if these bytes are not such a batch."""
    if not 0 <= count <= (end - begin) // MESSAGE_BYTES_MIN:
        raise ValueError(f"{end - begin} bytes cannot be {count} messages")
    if count > MESSAGES_MAX:
        raise ValueError(f"it has {count} messages, more than {MESSAGES_MAX}")
    at, begins, stops, head = begin, list[int](), list[int](), _HEAD.unpack_from
    for _ in range(count):
        begins.append(at)
        if at + _HEAD_BYTES <= end:
            length, tag, low, high = head(data, at)
        elif at + 4 <= end:
            length, tag, low, high = _U32.unpack_from(data, at)[0], 0, 0, 0
        else:
            raise ValueError("a batch has fewer messages than its metadata say")
        at += 4 + length
        stops.append(at)
        if tag == _TAG_OF_SIZE and length > 2 and high < 0x80 <= low:
            at += low & 0x7F | high << 7
        elif at > end:
            raise ValueError("the metadata of a message in a batch are cut off")
        elif tag == _TAG_OF_SIZE and length > 1 and low < 0x80:
            at += low
        else:
            at += _payload_size(bytes(data[begins[-1] + 4 : at]))
    if at > end:
        raise ValueError("a message in a batch is cut off")
    starts, ends = np.array(begins, dtype=np.int64), np.array(stops, dtype=np.int64)
    payloads = np.empty_like(ends)
    payloads[-1:], payloads[:-1] = at - ends[-1:], starts[1:] - ends[:-1]
    return starts + 4, ends, payloads


def _payload_size(metadata: bytes) -> int:
    """Return the payload size in the metadata of a message.

    Writers put the size after the properties and the key, so this function skips those two. Metadata in any other order
    are read in full. The later scan of all fields rejects metadata in which the last payload size is another number.
    """
    at, last = 0, len(metadata) - 1
    while at < last:
        tag, (size, following) = metadata[at], varint(metadata, at + 1)
        if tag == _TAG_OF_SIZE:
            return size
        if tag not in _TAGS_BEFORE:
            break
        at = following + size
    return _found_size(metadata)


def _found_size(metadata: bytes) -> int:
    for number, wire, _, value in fields_of(metadata):
        if number == PAYLOAD_SIZE and wire == VARINT:
            return value
    raise ValueError("the metadata of a message in a batch have no payload size")
