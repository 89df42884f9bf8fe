# SPDX-License-Identifier: Apache-2.0
"""Converts frames to requests of Apache's wire, once for all bookies of a write set, and finds the request to which an
answer belongs. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import byte_view
from bk_core.entries.digest import Digester
from bk_core.entries.frame import APACHE_BYTES, check_frame, columns_of, decode_frame, parse_header
from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.model import DigestType, LedgerId
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.columns import U64
from bk_core.wire.bookie_rpc.frames import I64, Buffer

PIECE_ENTRIES = 2500
PIECE_BYTES = 2 << 20
"""The maximum number of entries, and about the maximum number of bytes, in a piece of a frame. A frame is sent in
pieces, so that a bookie need not take all of it together."""


FIRST_TXN = 1 << 21
"""The number of the first transaction. The numbers from here on take four bytes for a long time, and messages of equal
length are read faster."""


@dataclass(frozen=True, slots=True)
class How:
    """The fields that all add requests of a session share."""

    ledger_id: LedgerId
    ledger_key: bytes = field(repr=False)
    recovery: bool
    write_flags: int

    def requests(self, txns: U64, entry_ids: I64, bodies: Bodies) -> list[Buffer]:
        """Make the add requests of these entries."""
        return v3.add_requests(
            txns,
            self.ledger_id,
            entry_ids,
            self.ledger_key,
            bodies,
            recovery=self.recovery,
            priority=v3.HIGH_PRIORITY if self.recovery else 0,
            write_flags=self.write_flags,
        )


@dataclass(frozen=True, slots=True, eq=False)
class AddPiece:
    """A part of a frame as add requests. Entry k has the transaction ``first_txn + k``. ``buffers`` holds the requests
    of all entries."""

    first_txn: int
    ledger_id: LedgerId
    entry_ids: I64
    bodies: Bodies
    buffers: list[Buffer]


class Packer:
    """Makes the add requests of frames for all links of one client. It counts transactions, and keeps the requests of
    the last frame, because a writer sends the same frame to one bookie after another."""

    __slots__ = ("_key", "_next_txn", "_pieces")

    def __init__(self) -> None:
        self._next_txn = FIRST_TXN
        self._key: tuple[Buffer, How] | None = None
        self._pieces: tuple[AddPiece, ...] = ()

    def txns(self, count: int) -> int:
        """Take ``count`` consecutive transactions that this client has not used, and return the first."""
        first = self._next_txn
        self._next_txn += count
        return first

    def forget(self) -> None:
        """Release the last frame and its requests."""
        self._key, self._pieces = None, ()

    def pieces(self, frame: Buffer, how: How) -> tuple[AddPiece, ...]:
        """Return the add requests of a frame. Raises IntegrityError if the frame is damaged, and InvalidArgumentError
        if it belongs to another ledger."""
        last = self._key
        if last is None or last[0] is not frame or last[1] != how:
            self._pieces = tuple(self._pack(frame, how))
            self._key = frame, how
        return self._pieces

    def _pack(self, frame: Buffer, how: How) -> Iterator[AddPiece]:
        ids, bodies = bodies_of_frame(frame, how.ledger_id)
        ends = np.cumsum(bodies.lengths + bodies.head_bytes)
        start, count = 0, ids.size
        while start < count:
            before = int(ends[start - 1]) if start else 0
            stop = int(ends.searchsorted(before + PIECE_BYTES, side="right"))
            stop = min(max(stop, start + 1), count, start + PIECE_ENTRIES)
            part, some = bodies.slice(start, stop), ids[start:stop]
            first = self.txns(stop - start)
            txns = np.arange(first, first + stop - start, dtype=np.uint64)
            yield AddPiece(first, how.ledger_id, some, part, how.requests(txns, some, part))
            start = stop


def bodies_of_frame(frame: Buffer, ledger_id: LedgerId) -> tuple[I64, Bodies]:
    """Return the ids of a frame's entries, and the entries in Apache's layout, with the frame's digests. Payloads are
    not copied. Raises the errors of :meth:`Packer.pieces`."""
    header = parse_header(frame)
    if header.ledger_id != ledger_id:
        raise InvalidArgumentError("a frame of another ledger", value=f"ledger {header.ledger_id}, not {ledger_id}")
    if not header.flags & APACHE_BYTES:
        batch = decode_frame(frame)
        return batch.entry_ids(), Bodies.of_batch(batch, Digester(DigestType(header.digest_type), b"", ledger_id))
    lengths = columns_of(check_frame(frame), frame).lengths.astype(np.int64)
    bodies = Bodies.of_entries(byte_view(frame)[-header.payload_bytes :], lengths)
    inside = bodies.headers()
    if bool((inside[:, 0] != ledger_id).any()):
        raise InvalidArgumentError("a frame with an entry of another ledger", value=f"ledger {ledger_id}")
    return np.ascontiguousarray(inside[:, 1]), bodies


class Asked(Protocol):
    """The interface of an object that waits for the answers to consecutive transactions."""

    @property
    def first_txn(self) -> int: ...
    @property
    def count(self) -> int: ...


A = TypeVar("A", bound=Asked)


class Waiting(Generic[A]):
    """Finds the owners of answers on one connection. It has the requests that wait for answers, by transaction."""

    __slots__ = ("_array", "_firsts", "_owners")

    def __init__(self) -> None:
        self._firsts: list[int] = []  # ascending
        self._owners: list[A] = []
        self._array: U64 | None = None

    def __len__(self) -> int:
        return len(self._firsts)

    def owners(self) -> list[A]:
        return list(self._owners)

    def add(self, owner: A) -> None:
        at = bisect_left(self._firsts, owner.first_txn)
        self._firsts.insert(at, owner.first_txn)
        self._owners.insert(at, owner)
        self._array = None

    def remove(self, owner: A) -> None:
        at = bisect_left(self._firsts, owner.first_txn)
        del self._firsts[at], self._owners[at]
        self._array = None

    def groups(self, txns: U64) -> list[tuple[A, I64 | slice, I64]]:
        """Group transactions by their owners. Each group has the owner, the positions of its transactions in ``txns``,
        and their positions among the owner's transactions. Raises RemoteProtocolError for a transaction without an
        owner."""
        if self._array is None:
            self._array = np.array(self._firsts, dtype=np.uint64)
        at = self._array.searchsorted(txns, side="right") - 1
        low, high = int(at.min()), int(at.max())
        if low < 0:
            raise nobody_asked(int(txns[int(at.argmin())]))
        if low == high:
            return [(self._owners[low], slice(None), self._places(self._owners[low], txns))]
        order = np.argsort(at, kind="stable")
        found: list[tuple[A, I64 | slice, I64]] = []
        for positions in np.split(order, np.flatnonzero(np.diff(at[order])) + 1):
            owner = self._owners[int(at[positions[0]])]
            found.append((owner, positions, self._places(owner, txns[positions])))
        return found

    def _places(self, owner: A, txns: U64) -> I64:
        places: I64 = (txns - np.uint64(owner.first_txn)).view(np.int64)
        if int(places.max()) >= owner.count or int(places.min()) < 0:
            raise nobody_asked(int(txns.max()))
        return places


def nobody_asked(txn: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        "a bookie answers a request that was not sent, or answers twice", value=f"transaction {txn}"
    )


def take_once(open_places: npt.NDArray[np.bool_], places: I64, first_txn: int) -> None:
    """Mark the requests at these positions as answered. Raises RemoteProtocolError for a request that was answered
    before, or twice now."""
    before = int(np.count_nonzero(open_places))
    open_places[places] = False
    if before - int(np.count_nonzero(open_places)) != places.size:
        raise nobody_asked(first_txn + int(places[0]))
