# SPDX-License-Identifier: Apache-2.0
"""The port to bookies. A client's :class:`Transport` has a :class:`Link` to each bookie, which a lane makes.

A client's transport is in ``lanes.py``, and the links of the lanes are in ``lane/`` and ``bookie_rpc/``. Tests have a
transport without a network, ``tests/kit/memory_transport.py``. Each request ends with exactly one answer or failure. A
missed deadline is a failure. All methods and all callbacks are called on the driver's loop. Links know nothing about
quorums.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from bk_core.access.roles import Right
from bk_core.errors import BookKeeperError, Outcome, TransportError
from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Cut, Reason


class RefusedError(TransportError, code="BK_REFUSED", outcome=Outcome.NOT_APPLIED):
    """A bookie refused a request for ``reason``. The outcome is UNKNOWN for FENCED and TIMEOUT, otherwise
    NOT_APPLIED."""

    def __init__(self, reason: Reason, what: str, *, value: str = "", remedy: str = "") -> None:
        unknown = reason in (Reason.FENCED, Reason.TIMEOUT)
        super().__init__(what, value=value or reason.name, remedy=remedy, outcome=Outcome.UNKNOWN if unknown else None)
        self.reason = reason


class AddListener(Protocol):
    """Gets the callbacks of a session (P1)."""

    def on_acked(self, session: int, frames: int) -> None:
        """Note that the first ``frames`` frames of the session are durable. The number never falls."""
        ...

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        """Note that the bookie refused the attach or a frame. The first ``frames`` frames of the session are durable.
        This is the session's last callback."""
        ...

    def on_broken(self, session: int, message: str) -> None:
        """Note that the stream broke. Frames after the last acked one may or may not be durable. This is the session's
        last callback."""
        ...


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to be opened. ``number`` is unique in the transport. With ``deferred``, the bookie may ack frames
    before it syncs them."""

    ledger_id: LedgerId
    ledger_key: bytes = field(repr=False)
    mode: AttachMode
    number: int
    listener: AddListener
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A part of an answer to a read. It has one or more whole frames, in a buffer that must not be changed."""

    frames: memoryview


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A bookie's report about itself. ``total_bytes`` and ``free_bytes`` are the sums over all its data directories.
    ``version`` names its software. ``limbo_ledgers`` and ``damaged_ledgers`` count the ledgers whose copies on this
    bookie may be incomplete. Apache's wire carries only the two sums."""

    total_bytes: int
    free_bytes: int
    read_only: bool = False
    version: str = ""
    limbo_ledgers: int = 0
    damaged_ledgers: int = 0


ReadListener: TypeAlias = Callable[[memoryview | None, ReadTrailer | BookKeeperError | None], None]
"""The listener of a :class:`ToldRead`. Its arguments are the frames of a part of the answer, or None, and the trailer
or error with which the answer ends, or None if more will come."""


class ToldRead:
    """A read that can pass its answers to a listener as they come. This costs less than iteration."""

    def tell(self, listener: ReadListener) -> None:
        """Pass all parts of the answer to ``listener``, which must not raise."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the request. This does nothing once the answer has ended."""
        raise NotImplementedError


class Link(Protocol):
    """A link from a client to one bookie over one lane. It connects on first use.

    A link breaks only once. Then all calls that wait on it fail, and the transport makes a new link at the next use. A
    call raises BookieUnreachableError if the bookie cannot be reached, TransportError if the stream breaks, and
    :class:`RefusedError` if the bookie refuses the request.
    """

    @property
    def broken(self) -> TransportError | None:
        """The error that broke the link, or None while it is not broken."""
        ...

    def attach(self, session: NewSession) -> None:
        """Open a session on the bookie's add stream. This never blocks, and reports network errors by ``on_broken``."""
        ...

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        """Queue one frame, whose bytes 60–63 already hold ``session``. All frames that are queued for a bookie in one
        turn of the loop are sent in one write (L4). Frames of an ended session are dropped."""
        ...

    def send_all(self, sessions: Sequence[int], frames: Sequence[bytes]) -> None:
        """Queue one frame for each of these sessions, as :meth:`send` does."""
        ...

    def detach(self, session: int) -> None:
        """End a session. Its queued frames are dropped, and it gets no more callbacks."""
        ...

    async def force(self, ledger_id: LedgerId, session: int, *, deadline_s: float) -> None:
        """Return once the bookie has synced every frame that it had acked in this session. The session must still be
        open."""
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
        """Read the entries ``first`` to ``last``, both inclusive. The bookie may answer only the first of them. The
        answer ends with a trailer or an error.

        With ``fence_key`` this is a recovery read, which first fences the ledger. With ``cut`` the bookie sends only
        these parts of the entries, or whole entries if it cannot cut. With ``ids_only`` the answer is only a trailer;
        the bookie has each answered id that is neither absent nor unknown. A wire without such a request refuses it as
        UNIMPLEMENTED. Closing the iterator cancels the request. The iterator may be a :class:`ToldRead`.
        """
        ...

    async def permit(self, ledger_id: LedgerId, right: Right) -> None:
        """Return once it is certain that this client has the right on the ledger. A client or a wire without grants
        only finds out whether the bookie accepts the client. Raises AuthenticationError, and RefusedError with
        PERMISSION_DENIED if no role gives the right."""
        ...

    async def fence(self, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float) -> LacEvidence: ...
    async def read_lac(self, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence: ...
    async def watch_lac(self, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float) -> LacEvidence:
        """Return the bookie's evidence of the LAC once its LAC is above ``previous_lac``, or after ``timeout_s``."""
        ...

    async def write_lac(
        self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float
    ) -> None: ...
    def hint_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes) -> None:
        """Send a LAC as ``write_lac`` does, without waiting for an answer. A failure is ignored."""
        ...

    async def delete_hint(self, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        """Send the bookie a hint that these ledgers, at most 10,000, were deleted from the metadata store. The answer
        only confirms the message. The bookie itself reads the store, twice, before it deletes a ledger (S9)."""
        ...

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        """Return the bookie's report about itself. Another bookie at its address never answers for it."""
        ...

    async def close(self) -> None:
        """Break the link. Return once its tasks and its connection have ended."""
        ...


class Transport(Protocol):
    """The links of a client to bookies. A link is made on first use, and all callers share it."""

    def link(self, bookie_id: BookieId) -> Link:
        """Return the link to a bookie, or a new link if the last one broke. Raises BookieUnreachableError if the
        transport has no usable endpoint of the bookie, and TransportError once the transport is closed."""
        ...

    def update_bookies(self, infos: Sequence[BookieServiceInfo]) -> None:
        """Set the addresses of bookies, for new connections."""
        ...

    async def close(self) -> None: ...
