# SPDX-License-Identifier: Apache-2.0
"""The port to bookies, as the asyncio driver sees it. Adapters: grpc; of the tests: tests/kit/memory_transport.py.

Each request becomes exactly one event: an answer or a failure, its deadline included. All methods are
called on the driver's loop, and so are all callbacks. Nothing here knows the protocol's quorums.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bk_core.errors import Outcome, TransportError
from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId
from bk_core.wire.lane import AttachMode, EntryRange, Reason


class RefusedError(TransportError):
    """A bookie refused a request, with its reason. Not applied, but unknown where it is FENCED or came too late."""

    code = "BK_REFUSED"
    outcome = Outcome.NOT_APPLIED

    def __init__(self, reason: Reason, what: str, *, value: str = "", remedy: str = "") -> None:
        unknown = reason in (Reason.FENCED, Reason.TIMEOUT)
        super().__init__(what, value=value or reason.name, remedy=remedy, outcome=Outcome.UNKNOWN if unknown else None)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return RefusedError, (self.reason, self.what)


class AddListener(Protocol):
    """Who hears of one session (RULES P1)."""

    def on_acked(self, session: int, frames: int) -> None:
        """The first ``frames`` frames of the session are durable. Cumulative; never goes back."""
        ...

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        """The bookie refused a later frame, or the attach; the first ``frames`` are durable. The last call."""
        ...

    def on_broken(self, session: int, message: str) -> None:
        """The stream is gone; frames above the last ack may or may not be durable. Last call for a session."""
        ...


@dataclass(frozen=True, slots=True)
class LacEvidence:
    """What a bookie says about the end of a ledger; only its digested parts count (RULES P5)."""

    last_entry_id: EntryId
    last_entry_frame: bytes | bytearray | memoryview
    lac_body: bytes
    lac_frame: bytes | bytearray | memoryview
    fenced: bool
    known: bool


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A piece of an answer: one or more whole frames, in a buffer that nobody writes to."""

    frames: memoryview


@dataclass(frozen=True, slots=True)
class ReadTrailer:
    """The end of an answer (RULES P4). Without it nothing is known of ids that did not arrive."""

    answered_through: EntryId
    absent: tuple[EntryRange, ...] = ()
    unknown: tuple[EntryRange, ...] = ()
    fenced: bool = False


class Transport(Protocol):
    """Connections to bookies, made on first use and shared.

    Calls on a bookie that cannot be reached raise BookieUnreachableError; a stream cut in the middle raises
    TransportError; a refusal raises :class:`RefusedError` with its reason.
    """

    def attach(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        ledger_key: bytes,
        mode: AttachMode,
        session: int,
        listener: AddListener,
    ) -> None:
        """Open a session on the add stream of that bookie, connecting if need be. Never blocks and never raises for the
        network: trouble arrives as ``on_broken``. ``session`` is unique in this transport."""
        ...

    def send(self, bookie_id: BookieId, session: int, frame: bytes | bytearray | memoryview) -> None:
        """Queue one frame, whose bytes 60–63 already hold ``session``. What is queued for a bookie in one turn of the
        loop leaves in one write (RULES L4). Frames of an ended session are dropped."""
        ...

    def detach(self, bookie_id: BookieId, session: int) -> None:
        """No more frames and no more callbacks for this session."""
        ...

    def read(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        bytes_max: int,
        fence_key: bytes | None = None,
        deadline_s: float,
    ) -> AsyncIterator[ReadPart | ReadTrailer]:
        """Entries first to last (inclusive) or fewer; ends with a trailer, or raises. ``fence_key`` makes it a
        recovery read, which fences first. Closing the iterator cancels the request."""
        ...

    async def fence(
        self, bookie_id: BookieId, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float
    ) -> LacEvidence: ...
    async def read_lac(self, bookie_id: BookieId, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence: ...
    async def watch_lac(
        self, bookie_id: BookieId, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float
    ) -> LacEvidence:
        """Answers once the bookie has evidence of a LAC above ``previous_lac``, or after ``timeout_s``."""
        ...

    async def write_lac(
        self, bookie_id: BookieId, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float
    ) -> None: ...
    async def delete_hint(self, bookie_id: BookieId, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        """Tell a bookie that these ledgers were deleted from the metadata store, at most 10,000 at a time. It looks
        there itself, and again after its grace period, before it forgets any (RULES S9): the answer says that it heard.
        """
        ...

    def update_bookies(self, infos: Sequence[BookieServiceInfo]) -> None:
        """Addresses as last published; used for the next connection."""
        ...

    async def close(self) -> None: ...
