# SPDX-License-Identifier: Apache-2.0
"""Bookies that answer as Apache's do, and this project's connections to them, in a simulated world.

The bookie is :class:`tests.kit.apache_bookie.ApacheBookie`. It answers entry by entry, in any order, without trailers
and limbo. It answers a fence that finds no entry before the fence is on disk. The pure part of the client's lane over
Apache's wire is in the loop: packing, adds, reads, LAC calls, and the codecs below them. Bytes cross the network. A
connection keeps their order and may be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.errors import BookKeeperError, TransportError
from bk_core.model import BookieId, LedgerId
from bk_core.protocol.events import AttachSession, FramesAcked, SessionBroken, SessionEnded
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.lac import WireLacs
from bk_core.transport.bookie_rpc.packing import Packer
from bk_core.transport.bookie_rpc.reads import WireRangeRead, refused
from bk_core.transport.port import NewSession, ReadPart, RefusedError
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine import events as ev
from tests.kit.apache_bookie import ApacheBookie, ApacheConnection, Doing
from tests.sim.knobs import Knobs
from tests.sim.scheduler import Item, Scheduler

if TYPE_CHECKING:
    from tests.sim.checkers import Checker
    from tests.sim.network import SimNetwork

Feed = Callable[[Any], None]

PAUSE_MS = 10.0
_ID: ev.RequestId = (0, 0)  # no request has this id
_READ_BYTES_MAX = 64 << 20
_NAMES = {"add": "an add", "fence": "a fence"}


@dataclass(frozen=True, slots=True)
class ForceRequested:
    """A force in a session. Bookies of ours never get one."""

    ledger_id: LedgerId
    session: int


class ApacheDisk:
    """The disk of a bookie of Apache's, in the place of the back end of one of ours."""

    def __init__(self, bookie: ApacheBookie) -> None:
        self.full = False
        self._bookie = bookie

    def flip_bit(self, random: Random) -> tuple[LedgerId, int] | None:
        held = [(i, k) for i, ledger in self._bookie.ledgers.items() for k in ledger.entries]
        if not held:
            return None
        ledger_id, entry_id = random.choice(held)
        self._bookie.damage(ledger_id, entry_id, random.randrange(1 << 16))
        return ledger_id, entry_id


class _Kept(ApacheBookie):
    """A bookie in whose answers a bit is flipped now and then."""

    flip: Callable[[bytes], bytes]

    def read(self, ledger_id: int, entry_id: int) -> tuple[Status, bytes, int]:
        status, entry, lac = super().read(ledger_id, entry_id)
        return status, self.flip(entry) if entry else entry, lac


class ApacheSimBookie:
    """The processes of one bookie, one after the other on one disk, with the methods of
    :class:`~tests.sim.bookie.SimBookie`."""

    def __init__(self, name: BookieId, scheduler: Scheduler, knobs: Knobs, watcher: Checker) -> None:
        self.name, self.scheduler, self.knobs, self.watcher = name, scheduler, knobs, watcher
        self.alive, self.dead_for_good, self.starts = True, False, 1
        self.lines: dict[ApacheLine, None] = {}
        self._group = 0  # how many of the operations that wait for the journal are being written
        bookie = self.inner = _Kept(self._after, order=scheduler.random)
        bookie.held, bookie.flip, bookie.refuse, bookie.on_disk = True, self._flipped, self._refused, self._on_disk
        self.back_end = ApacheDisk(bookie)

    # --- from clients ---

    def receive(self, line: ApacheLine, data: bytes) -> None:
        if not line.connection.receive(data):
            line.cut("closed by the bookie")
        self._begin_sync()

    def feed(self, event: Any) -> None:
        """Take an event from the world that is no request."""
        if isinstance(event, ev.ReadOnlyChanged):
            self.inner.read_only = event.read_only
        elif isinstance(event, ev.LedgersDeleted) and self.alive:
            for ledger_id in event.ledger_ids:
                self.inner.forget(ledger_id)

    def _refused(self, what: str, ledger_id: int, entry_id: int) -> Status | None:
        random, knobs = self.scheduler.random, self.knobs
        if what == "add" and self.back_end.full:
            self.scheduler.reached("a bookie of Apache's found no space")
            return Status.EIO
        if knobs.busy and random.random() < knobs.busy:
            trouble = (Status.ETOOMANYREQUESTS, Status.ETOOMANYREQUESTS, Status.EIO)
            status = random.choice(trouble if what == "add" else (*trouble, Status.EUNKNOWNLEDGERSTATE))
            self.scheduler.reached(f"a bookie of Apache's answered {status.name}")
            return status
        return None

    def _flipped(self, entry: bytes) -> bytes:
        random = self.scheduler.random
        if not self.knobs.hostile or random.random() >= self.knobs.hostile:
            return entry
        self.scheduler.reached("an answer with a flipped bit")
        changed = bytearray(entry)
        bit = random.randrange(len(changed) * 8)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    # --- the journal ---

    def _begin_sync(self) -> None:
        if self.alive and self.inner.unsynced and not self._group:
            self._group = len(self.inner.unsynced)
            lane, label = f"{self.name} disk", f"{self.name} sync"
            self.scheduler.add(lane, label, self._sync, self.starts, mean_ms=self.knobs.sync_ms)

    def _sync(self, starts: int) -> None:
        if self.alive and self.starts == starts:
            count, self._group = self._group, 0
            self.inner.sync(count)
            self._begin_sync()

    def _on_disk(self, doing: Doing) -> None:
        if doing.kind == "add":
            self.watcher.on_apaches_disk(self, doing.entry, doing.recovery)

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        starts = self.starts

        def due() -> None:
            if self.alive and self.starts == starts:
                call()

        self.scheduler.at(delay_s * 1000, f"{self.name} clock", f"{self.name} timer", due)

    # --- life ---

    def kill(self, *, in_commit: bool = True) -> None:
        """Kill the process and break its connections. Operations that were not on disk are lost, or some of them."""
        if not self.alive:
            return
        self.alive, random, waiting = False, self.scheduler.random, self.inner.unsynced
        kept = 0
        if waiting and in_commit and random.random() < self.knobs.torn_commit:
            self.scheduler.reached("crash in a commit")
            kept = random.randint(0, len(waiting))
        for kind in sorted({doing.kind for doing in waiting[kept:] if doing.answered}):
            self.scheduler.reached(f"{_NAMES[kind]} of which the answer had left was lost")
        self.inner.kill(kept)
        self._group = 0
        for line in tuple(self.lines):
            line.cut("the bookie died")

    def restart(self) -> bool:
        if not (self.alive or self.dead_for_good):
            self.alive, self.starts = True, self.starts + 1
        return self.alive


# ── the client's side ──


class ApacheLine:
    """One client's connection to one of Apache's bookies, from its making to its cut, as a link is in production."""

    def __init__(self, network: SimNetwork, client: str, bookie: ApacheSimBookie, packer: Packer) -> None:
        self.network, self.client, self.bookie = network, client, bookie
        self.up, self.down = f"{client}>{bookie.name}", f"{bookie.name}>{client}"
        self.open = True
        self.exchange = Exchange(packer)
        self.lacs = WireLacs(self.exchange, bookie.name)
        self.connection = ApacheConnection(bookie.inner, self._answered)
        self.sessions: dict[int, tuple[int, Feed]] = {}
        self.requests: dict[ApacheRequest, None] = {}
        self.inbox: list[Callable[[], None]] = []  # calls to make after the exchange
        self._reached = bookie.starts
        self._in_flight = 0
        self._allowed: int | None = None  # after a cut: how many more messages arrive
        self._rest = b""
        self._waking = self._resuming = False
        bookie.lines[self] = None

    # --- out ---

    def attach(self, asked: AttachSession, ledger_id: LedgerId, key: bytes, feed: Feed) -> None:
        self.sessions[asked.session] = asked.index, feed
        self.exchange.adds.attach(NewSession(ledger_id, key, asked.mode, asked.session, self, asked.deferred))
        self.wake()

    def send(self, session: int, frame: Any) -> None:
        self.exchange.adds.send(session, bytes(frame))
        self.wake()

    def detach(self, session: int) -> None:
        self.exchange.adds.detach(session)
        self.sessions.pop(session, None)

    def wake(self) -> None:
        """Send everything that waits, at the end of this turn."""
        if not self._waking:
            self._waking = True
            self.network.scheduler.at(0, f"{self.client} turn", f"{self.up} flush", self._flush)

    def _flush(self) -> None:
        self._waking = False
        if not self.open:
            return
        self.exchange.tell()
        sent = b"".join(bytes(b) for buffers in iter(self.exchange.next_buffers, None) for b in buffers)
        if sent:
            self._in_flight += 1
            self.network.carry(self.up, f"{self.up} {len(sent)} bytes", self._arrive, sent)
        if self.exchange.adds.pausing and not self._resuming:
            self._resuming = True
            self.network.scheduler.at(PAUSE_MS, f"{self.client} clock", f"{self.up} goes on", self._resume)
        self._tell()

    def _resume(self) -> None:
        self._resuming = False
        self.exchange.adds.resume()
        self.wake()

    def _arrive(self, data: bytes) -> None:
        self._in_flight -= 1
        if self._allowed is not None:
            if self._allowed <= 0:
                return
            self._allowed -= 1
        if self.bookie.alive and self.bookie.starts == self._reached:
            self.bookie.receive(self, data)

    # --- in ---

    def _answered(self, frame: bytes) -> None:
        self.network.carry(self.down, f"{self.down} answer of {len(frame)} bytes", self._heard, frame)

    def _heard(self, frame: bytes) -> None:
        if not self.open:
            return
        received = self._rest + frame
        try:
            self._rest = received[self.exchange.receive(received) :]
        except BookKeeperError as error:
            raise AssertionError(
                f"{self.client} takes an answer of {self.bookie.name} for nonsense: {error}"
            ) from error
        self.exchange.tell()
        self._tell()
        self.wake()

    def _tell(self) -> None:
        calls, self.inbox = self.inbox, []
        for call in calls:
            call()

    def on_acked(self, session: int, frames: int) -> None:
        self._to_session(session, lambda index: FramesAcked(index, session, frames))

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        self._to_session(session, lambda index: SessionEnded(index, session, frames, reason, message))

    def on_broken(self, session: int, message: str) -> None:
        self._to_session(session, lambda index: SessionBroken(index, session, message))

    def _to_session(self, session: int, event: Callable[[int], Any]) -> None:
        if session in self.sessions:
            index, feed = self.sessions[session]
            self.inbox.append(lambda: feed(event(index)))

    # --- its end ---

    def cut(self, why: str) -> None:
        """Break the connection. A random part of the messages under way still arrives."""
        if not self.open:
            return
        self.open, random = False, self.network.scheduler.random
        self.network.forget(self)
        self.bookie.lines.pop(self, None)
        self._allowed = random.randint(0, self._in_flight) if self._in_flight else 0
        self.network.carry(f"{self.client} hears", f"{self.up} is broken ({why})", self._lost, why)
        self.network.carry(self.up, f"{self.bookie.name} sees {self.client} leave", self._ended)

    def _lost(self, why: str) -> None:
        self.exchange.lost(TransportError(why))
        for request in tuple(self.requests):
            self.inbox.append(lambda request=request: request.failed(why))
        self._tell()

    def _ended(self) -> None:
        self.connection.gone = True


class ApacheRequest:
    """One request of a client, which ends once: with an answer, or with a failure. Answers have the form of those of
    our bookies, so that hosts need not know which kind of bookie they ask."""

    def __init__(self, answer: Feed, fail: Feed) -> None:
        self._answer, self._fail = answer, fail
        self._line: ApacheLine | None = None
        self._range: WireRangeRead | None = None
        self.ended = False
        self.deadline: Item | None = None

    def begin(self, line: ApacheLine, event: Any) -> None:
        self._line = line
        line.requests[self] = None
        match event:
            case ev.ReadRequested(_, ledger_id, first, last, bytes_max, key):
                self._range = WireRangeRead(ledger_id, first, last, bytes_max or _READ_BYTES_MAX, key, self._read)
                line.exchange.read(self._range)
            case ev.FenceRequested(_, ledger_id, key):
                line.lacs.fence(ledger_id, key, self._told)
            case ev.ReadLacRequested(_, ledger_id):
                line.lacs.read(ledger_id, self._told)
            case ev.WatchLacRequested(_, ledger_id, previous, timeout_ms):
                line.lacs.watch(ledger_id, previous, timeout_ms, self._told)
            case ev.WriteLacRequested(_, ledger_id, key, body):
                line.lacs.write(ledger_id, key, body, self._told)
            case ForceRequested(ledger_id, session):
                if line.exchange.adds.has(session):
                    line.exchange.force(ledger_id, self._forced)
                else:
                    line.network.scheduler.reached("a force found its session over")
                    self._told(RefusedError(Reason.NOT_ATTACHED, "the session is over"))
            case _:
                raise AssertionError(f"Apache's bookies are not asked {event}")
        line.wake()

    # --- what it is told ---

    def _read(self, end: ReadPart | ReadTrailer | BookKeeperError) -> None:
        if isinstance(end, ReadPart):
            self._say(ev.SendPart(_ID, [bytes(end.frames)]))
        elif isinstance(end, ReadTrailer):
            self._say(ev.SendTrailer(_ID, end))
        elif isinstance(end, RefusedError):
            self._say(ev.SendTrailer(_ID, ReadTrailer(-1), end.reason, end.what))

    def _told(self, said: LacEvidence | RefusedError | None) -> None:
        if isinstance(said, LacEvidence):
            self._say(ev.SendLac(_ID, said))
        else:
            self._say(ev.SendReply(_ID, *((said.reason, said.what) if said is not None else ())))

    def _forced(self, status: Status) -> None:
        self._told(None if status is Status.EOK else refused(status, "the log could not be forced"))

    def _say(self, effect: Any) -> None:
        assert self._line is not None
        self._line.inbox.append(lambda: self._heard(effect))

    def _heard(self, effect: Any) -> None:
        if self.ended:
            return
        if not isinstance(effect, ev.SendPart):
            self.end()
        self._answer(effect)

    # --- ends ---

    def failed(self, why: str) -> None:
        if not self.ended:
            self.end()
            if self._range is not None:
                self._range.forget()
            self._fail(why)

    def end(self) -> None:
        self.ended = True
        if self.deadline is not None:
            self.deadline.cancel()
        if self._line is not None:
            self._line.requests.pop(self, None)

    def cancel(self) -> None:
        """Cancel the request for the client."""
        if not self.ended:
            self.end()
            if self._range is not None:
                self._range.forget()
