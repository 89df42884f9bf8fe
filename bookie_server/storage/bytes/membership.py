# SPDX-License-Identifier: Apache-2.0
"""Computes which ids a sparse frame or a damaged run holds, and which frame serves which id when frames overlap.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from bk_core.entries.batch import I64
from bk_core.entries.frame import FRAME_HEADER_BYTES, STRIPE_PREFIX, STRIPED, FrameHeader


class Striping(NamedTuple):
    """The membership of a striped frame: it holds those ids between its first and last for which
    ``(index − id) mod E < Qw``."""

    ensemble_size: int
    write_quorum: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name


class Runs(NamedTuple):
    """Ids as closed runs, sorted and disjoint."""

    starts: I64
    ends: I64


class RunMembers(NamedTuple):
    """The intact frames of a run in order of id; each holds every id from its first to its last."""

    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


Membership: TypeAlias = Striping | Runs
Frame: TypeAlias = tuple[int, int, Membership | None]
"""The first and the last id of a frame, and the ids between them that it holds. None means that it holds all of
them."""


def striping_of(frame: bytes | bytearray | memoryview, header: FrameHeader) -> Striping | None:
    """Return the striping of a STRIPED frame, or None for another frame."""
    if not header.flags & STRIPED:
        return None
    ensemble_size, write_quorum, index, _, _ = STRIPE_PREFIX.unpack_from(frame, FRAME_HEADER_BYTES)
    return Striping(ensemble_size, write_quorum, index)


def runs_of_ids(ids: I64) -> Runs:
    ids = np.unique(ids)
    if not ids.size:
        return Runs(ids, ids)
    breaks = np.flatnonzero(np.diff(ids) != 1)
    return Runs(ids[np.concatenate(([0], breaks + 1))], ids[np.concatenate((breaks, [ids.size - 1]))])


def runs_of(first: int, last: int, membership: Membership | None, low: int, high: int) -> Runs:
    """Return the runs of a frame's ids from low to high."""
    low, high = max(first, low), min(last, high)
    if low > high:
        return _NO_RUNS
    if membership is None:
        return Runs(np.array([low], dtype=np.int64), np.array([high], dtype=np.int64))
    if isinstance(membership, Striping):
        ids = np.arange(low, high + 1, dtype=np.int64)
        return runs_of_ids(ids[(membership.index - ids) % membership.ensemble_size < membership.write_quorum])
    keep = (membership.ends >= low) & (membership.starts <= high)
    return Runs(np.maximum(membership.starts[keep], low), np.minimum(membership.ends[keep], high))


_NO_RUNS = Runs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def cover(frames: Sequence[Runs], first: int, last: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Assign each id to a frame. Return ``(low, high, frame)`` in order of id, and the gaps that no frame holds.

    Each id goes to one frame that holds it. Between low and high of an item its frame may lack ids. No other frame
    serves these, so they are gaps, and cutting the frame to low..high gives exactly the entries that it must serve.
    """
    starts = np.concatenate([runs.starts for runs in frames])
    ends = np.concatenate([runs.ends for runs in frames])
    frame = np.repeat(np.arange(len(frames)), [runs.starts.size for runs in frames])
    order = np.lexsort((frame, starts))
    starts, ends, frame = starts[order], ends[order], frame[order]
    before = np.concatenate(([first - 1], np.maximum.accumulate(ends)))  # highest id served before each run
    low = np.maximum(starts, before[:-1] + 1)
    serves = ends >= low
    low, high, frame, before_low = low[serves], ends[serves], frame[serves], before[:-1][serves]
    gap_ends = np.concatenate((low - 1, [last]))
    gap_starts = np.concatenate((before_low + 1, [max(first - 1, int(before[-1])) + 1]))
    real = gap_starts <= gap_ends
    gaps = list(zip(gap_starts[real].tolist(), gap_ends[real].tolist(), strict=True))
    if not frame.size:
        return [], gaps
    heads = np.concatenate(([0], np.flatnonzero(np.diff(frame)) + 1))
    tails = np.concatenate((heads[1:], [frame.size])) - 1
    spans = list(zip(low[heads].tolist(), high[tails].tolist(), frame[heads].tolist(), strict=True))
    return spans, gaps
