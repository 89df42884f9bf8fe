# SPDX-License-Identifier: Apache-2.0
"""Turns frames into requests of Apache's wire, once for all bookies of a write set, and finds the requests that answers
belong to. Pure."""

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
"""A frame is sent in pieces of at most PIECE_ENTRIES and about PIECE_BYTES, so that a bookie need not take all of it at
once."""


FIRST_TXN = 1 << 21
"""The first transaction. From here on numbers take four bytes for a long time, and messages of one length are read
faster."""


@dataclass(frozen=True, slots=True)
class How:
    """The fields that all adds of a session share."""

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
    """A part of a frame as adds. Entry k has the transaction ``first_txn + k``. ``buffers`` are the requests of all
    entries."""

    first_txn: int
    ledger_id: LedgerId
    entry_ids: I64
    bodies: Bodies
    buffers: list[Buffer]


class Packer:
    """The state that all links of one client share: the next transaction, and the requests of the frame that was packed
    last, because a writer gives the same frame to one bookie after the other."""

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
        """Release the last frame."""
        self._key, self._pieces = None, ()

    def pieces(self, frame: Buffer, how: How) -> tuple[AddPiece, ...]:
        """Return the adds of a frame. Raises IntegrityError if the frame is damaged, InvalidArgumentError if it belongs
        to another ledger."""
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
    """Return the ids of a frame's entries, and the entries in Apache's layout, over the frame's payload and with its
    digests. Raises as :meth:`Packer.pieces`."""
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
    """Consecutive transactions that one owner waits for."""

    @property
    def first_txn(self) -> int: ...
    @property
    def count(self) -> int: ...


A = TypeVar("A", bound=Asked)


class Waiting(Generic[A]):
    """The requests of one connection that wait for answers, by transaction."""

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
        """Group transactions by owner: the owner, their positions in ``txns``, and their places among the owner's
        transactions. Raises RemoteProtocolError for a transaction that no request waits for."""
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
    return RemoteProtocolError("a bookie answers what was not asked, or answers twice", value=f"transaction {txn}")


def take_once(open_places: npt.NDArray[np.bool_], places: I64, first_txn: int) -> None:
    """Mark these places as answered. Raises RemoteProtocolError for a place that was answered before, or twice now."""
    before = int(np.count_nonzero(open_places))
    open_places[places] = False
    if before - int(np.count_nonzero(open_places)) != places.size:
        raise nobody_asked(first_txn + int(places[0]))
