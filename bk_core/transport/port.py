# SPDX-License-Identifier: Apache-2.0
"""The port to bookies: a client asks its :class:`Transport` for the :class:`Link` to a bookie, which a lane makes.

A client's transport is in ``lanes.py``, and the links of the lanes are in ``lane/`` and ``bookie_rpc/``; tests have a
transport without a network, ``tests/kit/memory_transport.py``. Each request ends with exactly one answer or failure; a
passed deadline is a failure. All methods and all callbacks are called on the driver's loop. Nothing here knows the
protocol's quorums.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bk_core.access.roles import Right
from bk_core.errors import BookKeeperError, Outcome, TransportError
from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Cut, Reason


class RefusedError(TransportError):
    """A bookie refused a request for ``reason``. The outcome is UNKNOWN for FENCED and TIMEOUT, otherwise
    NOT_APPLIED."""

    code = "BK_REFUSED"
    outcome = Outcome.NOT_APPLIED

    def __init__(self, reason: Reason, what: str, *, value: str = "", remedy: str = "") -> None:
        unknown = reason in (Reason.FENCED, Reason.TIMEOUT)
        super().__init__(what, value=value or reason.name, remedy=remedy, outcome=Outcome.UNKNOWN if unknown else None)
        self.reason = reason


class AddListener(Protocol):
    """Gets the callbacks of a session (P1)."""

    def on_acked(self, session: int, frames: int) -> None:
        """Note that the first ``frames`` frames of the session are durable; the number never falls."""
        ...

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        """Note that the bookie refused the attach or a frame; the first ``frames`` frames are durable. This is the
        session's last callback."""
        ...

    def on_broken(self, session: int, message: str) -> None:
        """Note that the stream broke; frames above the last ack may or may not be durable. This is the session's last
        callback."""
        ...


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to be opened. ``number`` is unique in the transport. ``deferred``: acks may come before the bookie has
    synced the frames."""

    ledger_id: LedgerId
    ledger_key: bytes = field(repr=False)
    mode: AttachMode
    number: int
    listener: AddListener
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A part of an answer: one or more whole frames, in a buffer that must not be changed."""

    frames: memoryview


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A bookie's report about itself. The bytes are those of all its data directories together. ``version`` names its
    software. ``limbo_ledgers`` and ``damaged_ledgers`` count the ledgers whose copies it knows to be incomplete.
    Apache's wire carries only the bytes."""

    total_bytes: int
    free_bytes: int
    read_only: bool = False
    version: str = ""
    limbo_ledgers: int = 0
    damaged_ledgers: int = 0


class ToldRead:
    """A read that can pass its answers to a listener as they come, which costs less than iterating."""

    def tell(self, listener: Callable[[ReadPart | ReadTrailer | BookKeeperError], None]) -> None:
        """Give all answers to ``listener``, which must not raise. The last is a trailer or an error."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the request. Does nothing once the answer has ended."""
        raise NotImplementedError


class Link(Protocol):
    """One connection to one bookie over one lane. It connects on first use.

    A link breaks only once: all calls that wait on it fail, and the transport makes a new link at the next use. A call
    raises BookieUnreachableError if the bookie cannot be reached, TransportError if the stream breaks, and
    :class:`RefusedError` if the bookie refuses the request.
    """

    @property
    def broken(self) -> TransportError | None:
        """Why the link broke; None while it is whole."""
        ...

    def attach(self, session: NewSession) -> None:
        """Open a session on the bookie's add stream. Never blocks; network errors are not raised but reported by
        ``on_broken``."""
        ...

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        """Queue one frame, whose bytes 60–63 already hold ``session``. Frames queued for a bookie in one turn of the
        loop leave in one write (L4). Frames of an ended session are dropped."""
        ...

    def detach(self, session: int) -> None:
        """End a session: its queued frames are dropped, and it gets no more callbacks."""
        ...

    async def force(self, ledger_id: LedgerId, session: int, *, deadline_s: float) -> None:
        """Return once the bookie has synced every frame that it had acked in this session, which must still be open."""
        ...

    def read(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        bytes_max: int,
        fence_key: bytes | None = None,
        cut: Cut | None = None,
        ids_only: bool = False,
        deadline_s: float,
    ) -> AsyncIterator[ReadPart | ReadTrailer]:
        """Read the entries ``first`` to ``last``, both inclusive, or fewer of them; end with a trailer, or raise. With
        ``fence_key`` it is a recovery read, which fences first. With ``cut`` the bookie sends only these parts of the
        entries, or whole entries if it cannot cut. With ``ids_only`` the answer is only a trailer, about some of the
        ids: the bookie has each of them that is neither absent nor unknown. A wire without such a request refuses it as
        UNIMPLEMENTED. Closing the iterator cancels the request. The iterator may be a :class:`ToldRead`."""
        ...

    async def permit(self, ledger_id: LedgerId, right: Right) -> None:
        """Return once this client has the right on the ledger. A client or a wire without grants finds out only that
        the bookie lets it in. Raises AuthenticationError, and RefusedError: PERMISSION_DENIED if no role gives the
        right."""
        ...

    async def fence(self, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float) -> LacEvidence: ...
    async def read_lac(self, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence: ...
    async def watch_lac(self, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float) -> LacEvidence:
        """Return evidence once the bookie has a LAC above ``previous_lac``, or after ``timeout_s``."""
        ...

    async def write_lac(
        self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float
    ) -> None: ...
    def hint_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes) -> None:
        """Send a LAC as ``write_lac`` does, but wait for no answer and ignore a failure."""
        ...

    async def delete_hint(self, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        """Tell the bookie that these ledgers, at most 10,000, were deleted from the metadata store. The answer only
        confirms the message: the bookie looks in the store itself, twice, before it deletes a ledger (S9)."""
        ...

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        """Ask the bookie about itself. The answer is this bookie's, never that of another bookie at its address."""
        ...

    async def close(self) -> None:
        """Break the link; return once its tasks and its connection have ended."""
        ...


class Transport(Protocol):
    """The links to bookies, made on first use and shared."""

    def link(self, bookie_id: BookieId) -> Link:
        """Return the link to a bookie, a new one if the last one broke. Raises BookieUnreachableError if the transport
        has no usable endpoint of the bookie, TransportError once the transport is closed."""
        ...

    def update_bookies(self, infos: Sequence[BookieServiceInfo]) -> None:
        """Set the bookies' addresses; they are used for new connections."""
        ...

    async def close(self) -> None: ...
