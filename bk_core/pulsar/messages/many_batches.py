# SPDX-License-Identifier: Apache-2.0
"""Finds the messages of many batches together, with little or no Python code for each message.

The beginning of a message is known only after the message before it has been read (:mod:`batches`). A short loop goes
through large messages (:func:`batches.begins`). Small ones are guessed. This module finds all positions with bytes like
those at the beginning of a message, reads the sizes that a message there would have, and keeps the positions that form
a chain from the first byte of a batch on. Only the real messages form such a chain. So a batch with a chain of all its
messages gives the result of :func:`batches.walk`. Any other batch, such as one whose metadata have an unusual order, is
left to that function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bk_core.entries.batch import I64, U8
from bk_core.pulsar.messages import batches
from bk_core.pulsar.messages.scan import BYTES, STEPS_MAX, VARINT, Mask, varints

MESSAGE_BYTES_MAX = 512
"""The average size in bytes up to which messages are found by guessing. The loop is faster for larger ones."""
_BLOCK_BYTES = 1 << 18
"""The size in bytes of the blocks that are searched. A block of this size fits into a processor's cache."""
_SURPLUS = 4
"""The maximum number of guesses, as a multiple of the number of messages. With more guesses the search ends without a
result."""
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
    if size > wanted * MESSAGE_BYTES_MAX:
        return _stepped(data, begin, end, np.where(can_be, counts, 0))
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
    """Return the messages of the batches that :func:`batches.begins` can read. ``counts`` is 0 for a batch to omit."""
    view, found = data.data, list[int]()
    there, first = np.zeros(begin.size, dtype=np.bool_), np.zeros(begin.size, dtype=np.int64)
    steps = batches.Steps()
    for k in np.flatnonzero(counts).tolist():
        begins = batches.begins(view, int(begin[k]), int(end[k]), int(counts[k]), steps)
        if begins is not None:
            there[k], first[k] = True, len(found)
            found += begins
    following = np.fromiter(found, np.int64, len(found))
    last = first[there] + counts[there]  # the place of the end of each batch, which is not a message
    at, following = np.delete(following, last), np.delete(following, first[there])
    first[there] -= np.arange(last.size)
    sizes = np.ndarray((max(0, data.size - 3),), "V4", data, 0, (1,))[at].view(">u4").astype(np.int64)
    stop = at + 4 + sizes
    return Found(there, first, at + 4, stop, following - stop)


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
