# SPDX-License-Identifier: Apache-2.0
"""The port to bookies: a client asks its :class:`Transport` for the :class:`Link` to a bookie, which a lane makes.

The transport of a client is in ``lanes.py``, the link of its lane in ``grpc.py``; tests have a transport without a
network, ``tests/kit/memory_transport.py``. Each request ends with exactly one answer or failure; a passed deadline is a
failure. All methods and all callbacks are called on the driver's loop. Nothing here knows the protocol's quorums.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bk_core.access.roles import Right
from bk_core.errors import BookKeeperError, Outcome, TransportError
from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId
from bk_core.wire.lane.reasons import AttachMode, Cut, EntryRange, Reason

if TYPE_CHECKING:
    from bk_core.access.secret_files import TokenFile
    from bk_core.access.tls import Tls
    from bk_core.transport.wallet import Wallet


class RefusedError(TransportError):
    """A bookie refused a request, for ``reason``. The outcome is UNKNOWN for FENCED and TIMEOUT, else NOT_APPLIED."""

    code = "BK_REFUSED"
    outcome = Outcome.NOT_APPLIED

    def __init__(self, reason: Reason, what: str, *, value: str = "", remedy: str = "") -> None:
        unknown = reason in (Reason.FENCED, Reason.TIMEOUT)
        super().__init__(what, value=value or reason.name, remedy=remedy, outcome=Outcome.UNKNOWN if unknown else None)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return RefusedError, (self.reason, self.what)


class AddListener(Protocol):
    """Gets the callbacks of a session (P1)."""

    def on_acked(self, session: int, frames: int) -> None:
        """The first ``frames`` frames of the session are durable; the number never falls."""
        ...

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        """The bookie refused the attach or a frame; the first ``frames`` frames are durable. The session's last
        callback."""
        ...

    def on_broken(self, session: int, message: str) -> None:
        """The stream broke; frames above the last ack may or may not be durable. The session's last callback."""
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
class LacEvidence:
    """A bookie's evidence of a ledger's end; only parts with a valid digest count (P5)."""

    last_entry_id: EntryId
    last_entry_frame: bytes | bytearray | memoryview
    lac_body: bytes
    lac_frame: bytes | bytearray | memoryview
    fenced: bool
    known: bool


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A part of an answer: one or more whole frames, in a buffer that nobody changes."""

    frames: memoryview


@dataclass(frozen=True, slots=True)
class ReadTrailer:
    """The end of an answer (P4). Without it, ids that did not arrive are UNKNOWN."""

    answered_through: EntryId
    absent: tuple[EntryRange, ...] = ()
    unknown: tuple[EntryRange, ...] = ()
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """What a bookie says about itself: the bytes of its data directories together, the name of its software, and of how
    many ledgers it knows that its own copies are incomplete, because of limbo or of damage. Not every wire has a field
    for all but the bytes."""

    total_bytes: int
    free_bytes: int
    read_only: bool = False
    version: str = ""
    limbo_ledgers: int = 0
    damaged_ledgers: int = 0


class ToldRead:
    """What a read is beside an iterator where its answers can be told as they come, which costs less."""

    def tell(self, listener: Callable[[ReadPart | ReadTrailer | BookKeeperError], None]) -> None:
        """Give all answers to ``listener``, which must not raise. The last is a trailer or an error."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the request. Does nothing once the answer has ended."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Caller:
    """What the links of a client have in common.

    ``instance_id`` is the cluster's, which hello compares unless it is empty (L1). ``client`` is a name for the
    bookie's log. ``connect_timeout_s`` bounds connecting and hello together. ``lanes``: best first; empty: all there
    are. ``batch_reads``: a lane that reads entry by entry may open a second connection on which it need not. ``tls``:
    every connection is one over TLS, whatever the bookie registered. ``wallet``: only bookies that allow nothing
    without a grant are used, and all links keep their grants there. ``mixed``: also bookies that have Apache's wire
    alone, which knows no grants. ``token``: what this client shows to say who it is, over TLS only.
    """

    instance_id: str = ""
    client: str = "pyspark-bookkeeper"
    connect_timeout_s: float = 5.0
    lanes: tuple[str, ...] = ()
    batch_reads: bool = True
    tls: Tls | None = None
    wallet: Wallet | None = None
    mixed: bool = False
    token: TokenFile | None = None


class Link(Protocol):
    """One connection to one bookie over one lane. It connects on first use.

    A link breaks once: then all that waits on it fails, and the transport makes a new one. A call raises
    BookieUnreachableError if the bookie cannot be reached, TransportError if the stream breaks, and
    :class:`RefusedError` if the bookie refuses the request.
    """

    @property
    def broken(self) -> TransportError | None:
        """Why the link broke."""
        ...

    def attach(self, session: NewSession) -> None:
        """Open a session on the bookie's add stream. Never blocks; network errors are not raised but reported by
        ``on_broken``."""
        ...

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        """Queue one frame, whose bytes 60–63 hold ``session`` already. Frames queued for a bookie in one turn of the
        loop leave in one write (L4). Frames of an ended session are dropped."""
        ...

    def detach(self, session: int) -> None:
        """End a session: its queued frames are dropped, and it gets no more callbacks."""
        ...

    async def force(self, ledger_id: LedgerId, session: int, *, deadline_s: float) -> None:
        """Returns once the bookie has synced every frame that this session, which still lives, had acked before."""
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
        """The entries ``first`` to ``last``, both inclusive, or fewer; ends with a trailer, or raises. With
        ``fence_key`` it is a recovery read, which fences first. With ``cut`` parts of the entries are enough; a bookie
        that cannot cut answers with whole ones. With ``ids_only`` the answer is a trailer alone, about some of the ids:
        one that is neither absent nor unknown is there; a wire without that refuses it as UNIMPLEMENTED. Closing the
        iterator cancels the request. The iterator may be a :class:`ToldRead`."""
        ...

    async def permit(self, ledger_id: LedgerId, right: Right) -> None:
        """Returns once this client may do that with the ledger, as far as anybody can say without doing it: at least
        it is let in. Raises AuthenticationError; RefusedError, PERMISSION_DENIED if no role gives the right."""
        ...

    async def fence(self, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float) -> LacEvidence: ...
    async def read_lac(self, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence: ...
    async def watch_lac(self, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float) -> LacEvidence:
        """Returns once the bookie has evidence of a LAC above ``previous_lac``, or after ``timeout_s``."""
        ...

    async def write_lac(
        self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float
    ) -> None: ...
    def hint_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes) -> None:
        """As ``write_lac``, but nobody waits for the answer, and nobody hears of a failure."""
        ...

    async def delete_hint(self, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        """Tell the bookie that these ledgers, at most 10,000, were deleted from the metadata store. The answer only
        confirms the message: the bookie looks in the store itself, twice, before it deletes a ledger (S9)."""
        ...

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        """What the bookie says about itself; it is that bookie, and not another one at its address."""
        ...

    async def close(self) -> None:
        """Break the link; returns once its tasks and its connection have ended."""
        ...


class Transport(Protocol):
    """The links to bookies, made on first use and shared."""

    def link(self, bookie_id: BookieId) -> Link:
        """The link to a bookie; a new one if the last one broke. Raises BookieUnreachableError if no way to the bookie
        is known, TransportError once the transport is closed."""
        ...

    def update_bookies(self, infos: Sequence[BookieServiceInfo]) -> None:
        """Set the bookies' addresses; they are used for new connections."""
        ...

    async def close(self) -> None: ...
