# SPDX-License-Identifier: Apache-2.0
"""Defines the contents of a burst of frames. Adds, reads and their answers are runs in columns, and all other frames
are single messages. Both versions of the protocol use these types.

A run is a matrix of int64, with a row for each field and a column for each frame. It refers to the receive buffer:
positions in the matrix are positions in that buffer, which must not change while the run is used. If a frame came
alone, its column is a list of numbers, which becomes an array only when a caller needs an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from bk_core.errors import RemoteProtocolError
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.columns import U8, U64, gather
from bk_core.wire.bookie_rpc.frames import I64
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb

ABSENT = -(1 << 63)
"""The value of the rows ``MAX_LAC`` and ``LAC_TIME`` for an answer without these fields."""

T = TypeVar("T")

LONE_ADDS_MAX = 12
"""The maximum number of adds of one ledger in a burst that are handled one by one, each in a frame of its own. More of
them cost less in one frame, in spite of numpy's fixed cost."""

FEW_FRAMES = 12  # up to 12 frames are read one by one, which costs less than numpy's fixed cost

OTHER, ADD, READ = 0, 1, 2

# The rows of the matrix. Requests and answers have the first seven in common.
KIND, FRAME, TXN, LEDGER, ENTRY, BODY_AT, BODY_BYTES = range(7)
PRIORITY, RECOVERY, WRITE_FLAGS, KEY_AT, KEY_BYTES = range(7, 12)
STATUS, MAX_LAC, LAC_TIME = range(7, 10)
REQUEST_ROWS, ANSWER_ROWS = 12, 10
_OF_ADDS = (KEY_AT, KEY_BYTES), (BODY_AT, BODY_BYTES)

Column: TypeAlias = I64 | list[int]
"""The fields of one frame: a column of the matrix, or a list of numbers."""


LoneAdd: TypeAlias = tuple[int, int, int, bool, bytes, memoryview]
"""An add that came alone. The items are the number that the answer repeats, the ledger id and the entry id for the
answer, whether it is a recovery add, the ledger key, and the entry as a view of the receive buffer."""


class Run:
    """The base class of runs, with the fields that all runs have. Each field is an array with one item for each frame,
    int64 unless its docstring gives another type."""

    __slots__ = ("_alone", "_matrix", "buffer")

    def __init__(self, buffer: memoryview, rows: I64 | list[int]) -> None:
        self.buffer = buffer
        self._alone: list[int] | None = None
        self._matrix: I64 | None = None
        if isinstance(rows, list):
            self._alone = rows
        else:
            self._matrix = rows

    def __len__(self) -> int:
        return 1 if self._matrix is None else int(self._matrix.shape[1])

    @property
    def _rows(self) -> I64:
        if self._matrix is None:
            self._matrix = np.array(self._alone, dtype=np.int64).reshape(-1, 1)
        return self._matrix

    def _column(self, row: int) -> I64:
        found: I64 = self._rows[row]
        return found

    @property
    def frames(self) -> I64:
        """The position of each frame in the burst, from 0 on."""
        return self._column(FRAME)

    @property
    def txns(self) -> U64:
        """The number that the answer repeats, as uint64. It is the transaction in version 3, and the version byte in
        version 2."""
        return self._column(TXN).view(np.uint64)

    @property
    def ledger_ids(self) -> I64:
        return self._column(LEDGER)

    @property
    def entry_ids(self) -> I64:
        return self._column(ENTRY)

    def slice(self, start: int, stop: int) -> Run:
        """Return a run of the frames at positions ``start`` to ``stop`` − 1 of this run."""
        return type(self)(self.buffer, self._rows[:, start:stop])

    def rows(self) -> list[tuple[int, ...]]:
        """Return one tuple of numbers for each frame."""
        return list(zip(*self._rows.tolist(), strict=True))


class _WithBodies(Run):
    __slots__ = ()

    @property
    def body_offsets(self) -> I64:
        """The position in the buffer at which each entry begins."""
        return self._column(BODY_AT)

    @property
    def body_lengths(self) -> I64:
        """The size of each entry in bytes, or −1 for an answer without an entry."""
        return self._column(BODY_BYTES)

    def bodies(self) -> Bodies:
        """Return the entries. Every frame of this run must have an entry."""
        return Bodies(self.buffer, self.body_offsets, self.body_lengths)


class AddRun(_WithBodies):
    """A run of normal adds and recovery adds. ``ledger_ids`` and ``entry_ids`` route and label the answer. The bookie
    stores each entry under the ids in the entry itself (``bodies().headers()``)."""

    __slots__ = ()

    @property
    def alone(self) -> LoneAdd | None:
        """The add as a tuple without arrays, or None if it did not come alone."""
        return None if self._alone is None else self.add_of(self._alone)

    def add(self, at: int) -> LoneAdd:
        """Return the add at a position of the run as a tuple without arrays."""
        return self.add_of(self._rows[:, at].tolist())

    def add_of(self, row: Sequence[int]) -> LoneAdd:
        """Return an add as a tuple without arrays. ``row`` is its tuple of :meth:`rows`."""
        key, body = (self.buffer[row[at] : row[at] + row[size]] for at, size in _OF_ADDS)
        return row[TXN], row[LEDGER], row[ENTRY], bool(row[RECOVERY]), bytes(key), body

    @property
    def recovery(self) -> I64:
        """The kind of each add: 1 for a recovery add, 0 for a normal add."""
        return self._column(RECOVERY)

    @property
    def write_flags(self) -> I64:
        """The flags of each add. Bit 0 is DEFERRED_SYNC."""
        return self._column(WRITE_FLAGS)

    @property
    def key_offsets(self) -> I64:
        """The position in the buffer at which each ledger key begins."""
        return self._column(KEY_AT)

    @property
    def key_lengths(self) -> I64:
        """The size of each ledger key in bytes. Java clients send 20 bytes; other clients may send any number."""
        return self._column(KEY_BYTES)

    def keys(self) -> U8 | None:
        """Return the ledger keys as the rows of a matrix, or None if their lengths differ or are 0."""
        width = int(self.key_lengths[0]) if len(self) else 0
        if not width or (self.key_lengths != width).any():
            return None
        return gather(np.frombuffer(self.buffer, dtype=np.uint8), self.key_offsets, width)


class ReadRun(Run):
    """A run of plain reads, which neither fence nor wait. An entry id of −1 requests the last entry."""

    __slots__ = ()


class AddAnswers(Run):
    """A run of answers to adds. If a bookie's refusal carries no ids, both ids are −1."""

    __slots__ = ()

    @property
    def statuses(self) -> I64:
        """The status of each answer, as a number of :class:`Status`."""
        return self._column(STATUS)


class ReadAnswers(_WithBodies):
    """A run of answers to reads. If a bookie's refusal carries no ids, both ids are −1."""

    __slots__ = ()

    @property
    def statuses(self) -> I64:
        """The status of each answer, as a number of :class:`Status`."""
        return self._column(STATUS)

    @property
    def max_lacs(self) -> I64:
        """The LAC that the bookie has recorded for the ledger, or ABSENT if the answer has none."""
        return self._column(MAX_LAC)


@dataclass(frozen=True, slots=True)
class Single:
    """A request that does not belong to a run, such as a fencing read or a long poll. Only adds and plain reads are in
    runs. In a request of version 2, ``header.txnId`` is the version byte. If ``status`` is not EOK, the bookie must
    refuse the request: it answers with ``refusal(single)`` of the request's version, and does nothing else.
    """

    frame: int
    request: pb.Request
    status: Status = Status.EOK


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A request for consecutive entries, which only version 2 has. If ``max_count`` or ``max_bytes`` is ≤ 0, the client
    sets no such limit. ``key`` is present only in a fencing read."""

    frame: int
    version: int
    ledger_id: int
    first_entry_id: int
    request_id: int
    max_count: int
    max_bytes: int
    fencing: bool = False
    high_priority: bool = False
    key: bytes = field(default=b"", repr=False)
    status: Status = Status.EOK


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """An answer to a request that is neither an add nor a read."""

    frame: int
    response: pb.Response

    @property
    def status(self) -> Status:
        """The status of the message if it is not EOK, otherwise that of its body."""
        outer = self.response.status
        if outer:
            return Status(outer)
        for _, body in self.response.ListFields():
            if hasattr(body, "status"):
                return Status(body.status)
        return Status.EOK


@dataclass(frozen=True, slots=True, eq=False)
class BatchAnswer:
    """The answer to a BatchRead: entries with consecutive ids from ``first_entry_id`` on."""

    frame: int
    request_id: int
    status: Status
    ledger_id: int
    first_entry_id: int
    bodies: Bodies


Request: TypeAlias = AddRun | ReadRun | Single | BatchRead
Reply: TypeAlias = AddAnswers | ReadAnswers | WireAnswer | BatchAnswer


class Items(NamedTuple, Generic[T]):
    """The items of a burst, which are requests on a bookie and answers on a client. Between two single messages there
    are at most one run of adds and one run of reads. Adds keep their order among adds, and reads among reads. ``used``
    is the number of bytes that were read. If there is a ``fault``, the caller must handle ``items``, which came before
    it, and then drop the connection."""

    items: list[T]
    used: int
    fault: RemoteProtocolError | None = None


Burst: TypeAlias = Items[Request]
Replies: TypeAlias = Items[Reply]


def empty_rows(count: int, rows: int) -> I64:
    """Make the matrix for ``count`` frames. Its row FRAME has the frames' numbers; all other rows are 0."""
    made = np.zeros((rows, count), dtype=np.int64)
    made[FRAME] = np.arange(count)
    return made


class CutFrames(NamedTuple):
    """Frames in a buffer, and the matrix into which their fields are read. Frame k has ``lengths[k]`` bytes from
    ``begins[k]`` on, and its fields go into column k of ``rows``."""

    buffer: memoryview
    begins: I64
    lengths: I64
    rows: I64


Found: TypeAlias = tuple[list[T], RemoteProtocolError | None, int]
"""The result of reading frames. The first part is the items of the frames of kind OTHER, in order. The second is the
fault of a frame that cannot be read, or None. The third is the number of that frame, or the count of all frames;
columns from that number on are not valid."""

ReadOne: TypeAlias = Callable[[memoryview, int, int, Column], T | None]
"""A function that reads one frame. The arguments are the frame's content, the position of the content in the buffer,
the frame's number, and its column of the matrix, which is zero except for FRAME. The function fills the column and
returns None, or it returns an item. It raises RemoteProtocolError for a frame that cannot be read."""


def read_singly(cut: CutFrames, numbers: Iterable[int], read_one: ReadOne[T]) -> Found[T]:
    """Read the frames with these numbers one after the other, up to the first frame that cannot be read."""
    buffer, begins, lengths, rows = cut
    others: list[T] = []
    for k in numbers:
        begin = int(begins[k])
        try:
            other = read_one(buffer[begin : begin + int(lengths[k])], begin, k, rows[:, k])
        except RemoteProtocolError as fault:
            return others, fault, k
        if other is not None:
            others.append(other)
    return others, None, int(begins.size)


def items_of(buffer: memoryview, rows: I64, others: Sequence[Any], runs: Mapping[int, type[Run]]) -> list[Any]:
    """Return the items of a burst, in order. ``others`` are the items of the frames of kind OTHER, by ascending frame
    number. ``runs`` has the class of run for each other kind."""
    items: list[Any] = []
    begin = 0
    for other in others:
        items += _runs(buffer, rows[:, begin : other.frame], runs)
        items.append(other)
        begin = other.frame + 1
    return items + _runs(buffer, rows[:, begin:], runs)


def _runs(buffer: memoryview, rows: I64, runs: Mapping[int, type[Run]]) -> list[Run]:
    """Return at most one run of each kind, ordered by their first frames."""
    if not rows.shape[1]:
        return []
    kinds = rows[KIND]
    first = int(kinds[0])
    same = kinds == first
    if same.all():
        return [runs[first](buffer, rows)]
    return [runs[first](buffer, rows[:, same]), runs[ADD + READ - first](buffer, rows[:, ~same])]
