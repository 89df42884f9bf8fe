# SPDX-License-Identifier: Apache-2.0
"""Finds the messages of many batches together, with little or no Python code for each message.

The beginning of a message is known only after the message before it has been read (:mod:`batches`). There are two
ways to find the messages:

- Step by step, one message of all batches at a time. If there are only a few batches, a short loop goes through each of
  them instead (:func:`batches.begins`).
- By guessing, for small messages. All positions are found that have bytes like those at the beginning of a message, and
  the sizes are read that a message there would have. Only the real messages form a chain from the first byte of a batch
  on.

Both give the result of :func:`batches.walk`, or leave a batch to that function, for example if the order of its
metadata is unusual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bk_core.entries.batch import I64, U8
from bk_core.pulsar.messages import batches
from bk_core.pulsar.messages.scan import BYTES, STEPS_MAX, U64, VARINT, Mask, varints

MESSAGE_BYTES_MAX = 512
"""The average size in bytes up to which messages may be found by guessing."""
_STEP_BYTES = 7000
"""The number of bytes that are searched for guesses in the time of one step through all batches."""
_BLOCK_BYTES = 1 << 18
"""The size in bytes of the blocks that are searched. A block of this size fits into a processor's cache."""
_SURPLUS = 4
"""The maximum number of guesses, as a multiple of the number of messages. With more guesses the search ends without a
result."""
_TOGETHER_MIN = 24
"""The minimum number of batches whose messages are read together. For fewer the loop through each of them is faster."""
_WORD_BYTES = 8
_METADATA_SIZE, _TAG, _PAYLOAD_SIZE = np.uint64(32), np.uint64(24), np.uint64(8)
"""The places in the first eight bytes of a message, as bits above the lowest of a big-endian number."""
_ONE_BYTE, _TWO_BYTES = np.uint64(0xFF), np.uint64(0xFFFF)
_SIZE, _KEY, _PROPERTY = (
    batches.PAYLOAD_SIZE << 3 | VARINT,
    batches.PARTITION_KEY << 3 | BYTES,
    batches.PROPERTIES << 3 | BYTES,
)


@dataclass(frozen=True, slots=True)
class Found:
    """The messages of the batches that ``there`` marks, batch after batch. The columns have the begin and the end of
    each message's metadata, and the size of its payload. ``first`` has the index of the first message of each batch."""

    there: Mask
    first: I64
    metadata_begin: I64
    metadata_end: I64
    payload_bytes: I64


def find(data: U8, begin: I64, end: I64, counts: I64) -> Found:
    """Return the messages of batches. Batch k has the bytes of ``data`` from ``begin[k]`` to ``end[k]``, and
    ``counts[k]`` messages. The batches must not overlap."""
    none = np.zeros(0, dtype=np.int64)
    nothing = Found(np.zeros(begin.size, dtype=np.bool_), np.zeros(begin.size, dtype=np.int64), none, none, none)
    room = end - begin
    can_be = (counts > 0) & (counts <= np.minimum(room // batches.MESSAGE_BYTES_MIN, batches.MESSAGES_MAX))
    wanted, size = int(counts[can_be].sum()), int(room[can_be].sum())
    if not wanted:
        return nothing
    are_large, steps = size > wanted * MESSAGE_BYTES_MAX, int(counts[can_be].max())
    if are_large or (np.count_nonzero(can_be) >= _TOGETHER_MIN and size > steps * _STEP_BYTES):
        stepped = _stepped(data, begin, end, np.where(can_be, counts, 0))
        if are_large or stepped.there[can_be].all():
            return stepped
    order = np.flatnonzero(can_be)[np.argsort(begin[can_be], kind="stable")]
    begin, how_many = begin[order], counts[order]
    guesses = _guessed(data, begin, end[order], _SURPLUS * wanted)
    if guesses is None:
        return nothing
    first, good = guesses.chains(begin, how_many)
    if not good.all():
        guesses = guesses.reached(begin, int(how_many.max()))
        first, good = guesses.chains(begin, how_many)
    return _chosen(nothing.there, order[good], first[good], counts, guesses)


def _stepped(data: U8, begin: I64, end: I64, counts: I64) -> Found:
    """Return the messages of the batches whose messages all begin as usual. ``counts`` is 0 for a batch to omit."""
    first, there = np.cumsum(counts) - counts, counts > 0
    begins = np.zeros(int(counts.sum()), dtype=np.int64)
    rows = np.flatnonzero(there)
    rows = rows[np.argsort(-counts[rows], kind="stable")]
    at, left = begin[rows], counts[rows]
    if rows.size >= _TOGETHER_MIN and data.size >= _WORD_BYTES:
        left = left - _step_together(data, at, left, first[rows], begins)
    view, steps = data.data, batches.Steps()
    for k in np.flatnonzero(left > 0).tolist():
        row, count = rows[k], int(left[k])
        place = int(first[row] + counts[row]) - count
        found = batches.begins(view, int(at[k]), int(end[row]), count, steps)
        if found is None:
            there[row] = False
        else:
            begins[place : place + count], at[k] = found[:-1], found[-1]
    there[rows] &= at <= end[rows]
    return _read(data, begins, there, first, counts)


def _step_together(data: U8, at: I64, counts: I64, first: I64, begins: I64) -> int:
    """Go through the batches, one message of each at a time, as long as _TOGETHER_MIN batches have messages left.
    Return the number of messages that were read of each longer batch.

    ``at`` has the begin of each batch, and then that of the message to read next. Batch k has ``counts[k]`` messages,
    in descending order, whose begins are put into ``begins`` from ``first[k]`` on. Behind a message that does not begin
    as usual, the begins have no meaning.
    """
    words, steps = _words(data), int(counts[_TOGETHER_MIN - 1])
    last = words.size - 1
    active = np.searchsorted(-counts, -np.arange(steps), side="left")
    for step, count in enumerate(active.tolist()):
        here = at[:count]
        begins[first[:count] + step] = here
        word = words[np.minimum(here, last)].astype(np.uint64)
        here += (word >> _METADATA_SIZE).view(np.int64)
        here += _BEHIND_METADATA[(word >> _PAYLOAD_SIZE & _TWO_BYTES).view(np.int64)]
    return steps


def _read(data: U8, begins: I64, there: Mask, first: I64, counts: I64) -> Found:
    """Read the sizes of these messages. Leave out the batches without a mark in ``there``, and remove the mark of each
    batch with a message that does not begin as usual."""
    if not there.any() or data.size < _WORD_BYTES:
        return Found(np.zeros_like(there), first, begins[:0], begins[:0], begins[:0])
    words = _words(data)
    word = words[np.minimum(begins, words.size - 1)].astype(np.uint64)
    size, payload_size = (word >> _METADATA_SIZE).view(np.int64), word >> _PAYLOAD_SIZE & _TWO_BYTES
    usual = (word >> _TAG & _ONE_BYTE == _SIZE) & (size >= _METADATA_MIN[payload_size]) & (begins < words.size)
    is_batch = counts > 0
    there[is_batch] &= np.logical_and.reduceat(usual, first[is_batch])
    stop, payload_bytes = begins + 4 + size, _BEHIND_METADATA[payload_size] - 4
    if there[is_batch].all():
        return Found(there, first, begins + 4, stop, payload_bytes)
    kept, counts = np.repeat(there, counts), np.where(there, counts, 0)
    return Found(there, np.cumsum(counts) - counts, begins[kept] + 4, stop[kept], payload_bytes[kept])


def _words(data: U8) -> U64:
    """Return a view of ``data`` that has, for each position, the big-endian number in the eight bytes from there on."""
    return np.ndarray((data.size - _WORD_BYTES + 1,), ">u8", data, 0, (1,))


def _of_two_bytes() -> tuple[I64, I64]:
    """Return two tables, by the two bytes behind the tag of the payload's size: the number of bytes of the size of the
    metadata and of the payload, and the least size of the metadata. If the size of the payload has more bytes, this
    least size is above all sizes."""
    low, high = np.divmod(np.arange(1 << 16), 256)
    is_one, is_two = low < 0x80, (low >= 0x80) & (high < 0x80)
    payload = np.where(is_one, low, low & 0x7F | high << 7)
    return payload + 4, np.select([is_one, is_two], [2, 3], 1 << 32)


_BEHIND_METADATA, _METADATA_MIN = _of_two_bytes()


@dataclass(frozen=True, slots=True)
class _Guesses:
    """The guessed messages, sorted by position. ``at`` is the begin of each, ``batch`` its batch, ``stop`` the end of
    its metadata, and ``following`` the end of its payload."""

    at: I64
    batch: I64
    stop: I64
    following: I64

    def chains(self, begin: I64, counts: I64) -> tuple[I64, Mask]:
        """Return the index of the first guess of each batch, and a mask of the batches with a chain. Batch k has a
        chain if its first ``counts[k]`` guesses follow each other without a gap from its first byte on."""
        first = np.searchsorted(self.batch, np.arange(begin.size))
        enough = np.diff(first, append=self.at.size) >= counts
        if not self.at.size:
            return first, enough
        breaks = np.zeros(self.at.size + 1, dtype=np.int64)
        np.cumsum(self.following[:-1] != self.at[1:], out=breaks[1:-1])
        last = np.where(enough, first + counts - 1, 0)
        is_chain = breaks[last] == breaks.take(first)
        return first, enough & is_chain & (self.at.take(first, mode="clip") == begin)

    def reached(self, begin: I64, steps: int) -> _Guesses:
        """Return the guesses that are reached from the first byte of a batch by a chain of up to ``steps`` messages.
        Each round of the loop doubles the length of the chains."""
        count = self.at.size
        following = np.searchsorted(self.at, self.following)
        following[self.at.take(following, mode="clip") != self.following] = count
        following = np.append(following, count)
        reached = np.append(np.isin(self.at, begin), False)
        for _ in range(steps.bit_length()):
            reached[following[reached]] = True
            following = following[following]
        kept = reached[:count]
        return _Guesses(self.at[kept], self.batch[kept], self.stop[kept], self.following[kept])


def _chosen(there: Mask, found: I64, first: I64, counts: I64, guesses: _Guesses) -> Found:
    """Return the messages of the batches ``found``, in the order of the batches. ``first`` has the index of the first
    guess of each of these batches."""
    order = np.argsort(found, kind="stable")
    found, first = found[order], first[order]
    there[found] = True
    how_many = counts[found]
    firsts = np.zeros(there.size, dtype=np.int64)
    firsts[found] = np.cumsum(how_many) - how_many
    index = np.repeat(first - firsts[found], how_many) + np.arange(int(how_many.sum()))
    stop = guesses.stop[index]
    return Found(there, firsts, guesses.at[index] + 4, stop, guesses.following[index] - stop)


def _guessed(data: U8, begin: I64, end: I64, most: int) -> _Guesses | None:
    """Return the guessed messages of the batches, or None if there are more than ``most``. The batches must be sorted
    by position."""
    found, count = list[I64](), 0
    for first in range(int(begin[0]), int(end[-1]), _BLOCK_BYTES):
        found.append(first + _starts(data[first : min(first + _BLOCK_BYTES + 4, int(end[-1]))]))
        count += found[-1].size
        if count > most:
            return None
    at = np.concatenate(found)
    batch = np.searchsorted(begin, at, side="right") - 1
    limit = end[batch]
    stop = at + 4 + (data[at + 2].astype(np.int64) << 8 | data[at + 3])
    good = stop <= limit
    size = np.full(at.size, -1, dtype=np.int64)
    rows = np.flatnonzero(good)
    place, until = at[rows] + 4, stop[rows]
    for _ in range(STEPS_MAX):
        if not rows.size:
            break
        tag = data[place]
        value, place, is_bad = varints(data, place + 1, until)
        is_size = (tag == _SIZE) & ~is_bad & (value <= np.uint64(data.size))
        size[rows[is_size]] = value[is_size].view(np.int64)
        place += np.minimum(value, np.uint64(data.size)).astype(np.int64)
        going = ((tag == _KEY) | (tag == _PROPERTY)) & ~is_bad & (place < until - 1)
        rows, place, until = rows[going], place[going], until[going]
    following = stop + size
    good &= (size >= 0) & (following <= limit)
    return _Guesses(at[good], batch[good], stop[good], following[good])


def _starts(block: U8) -> I64:
    """Return the positions in a block at which a message may begin whose metadata have less than 64 KiB and begin with
    a payload size, a property or a key. A message in the last four bytes is not found, because the next block begins
    with them."""
    if block.size <= 4:
        return np.zeros(0, dtype=np.int64)
    zero, tag = block[:-3] == 0, block[4:]
    looks = zero[:-1] & zero[1:]
    looks &= (tag == _SIZE) | (tag == _KEY) | (tag == _PROPERTY)
    return np.flatnonzero(looks)
