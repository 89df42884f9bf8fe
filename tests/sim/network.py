# SPDX-License-Identifier: Apache-2.0
"""The network between clients and bookies. Connections keep their order and may be cut anywhere. Requests may be lost,
doubled, late and out of order (RULES P11).

After a cut the client learns at once that its sessions are broken. Its earlier messages may still arrive, up to a
point, and only then does the bookie see the end of the stream. So half-open connections are the normal case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bk_core.model import BookieId, LedgerId
from bk_core.protocol.events import AttachSession, FramesAcked, SessionBroken, SessionEnded
from bk_core.transport.bookie_rpc.packing import Packer
from bookie_server.machine import events as ev
from tests.sim import lies
from tests.sim.apache import ApacheLine, ApacheRequest, ApacheSimBookie, ForceRequested
from tests.sim.bookie import SimBookie
from tests.sim.frames import contents
from tests.sim.knobs import Knobs
from tests.sim.scheduler import Item, Scheduler

Feed = Callable[[Any], None]


class Connection:
    """One client's connection to one bookie, from its making to its cut."""

    def __init__(self, network: SimNetwork, client: str, bookie: SimBookie, stream: int) -> None:
        self.network, self.client, self.bookie, self.stream = network, client, bookie, stream
        self.incarnation = bookie.starts
        self.up, self.down = f"{client}>{bookie.name}", f"{bookie.name}>{client}"
        self.open = True  # as the client sees it
        self.reached = bookie.starts  # the process of the bookie to which it leads
        self.in_flight = 0
        self.allowed: int | None = None  # after a cut: how many more messages arrive
        # all sessions, also detached ones, because late acks arrive too
        self.sessions: dict[int, tuple[int, Feed]] = {}
        self.sending: set[int] = set()

    def tell(self, event: ev.Event, label: str) -> None:
        """Send a message to the bookie."""
        self.in_flight += 1
        self.network.carry(self.up, f"{self.up} {label}", self._arrive, event)

    def _arrive(self, event: ev.Event) -> None:
        self.in_flight -= 1
        if self.allowed is not None:
            if self.allowed <= 0:
                return
            self.allowed -= 1
        if self.bookie.alive and self.bookie.starts == self.reached:
            self.bookie.feed(event)

    def cut(self, why: str) -> None:
        """Break the connection. A random part of the messages under way still arrives."""
        if not self.open:
            return
        self.open = False
        network = self.network
        network.forget(self)
        self.allowed = network.scheduler.random.randint(0, self.in_flight) if self.in_flight else 0
        sessions, self.sessions = self.sessions, {}
        for session, (index, feed) in sessions.items():
            label = f"{self.client} session {session} broken ({why})"
            network.carry(f"{self.client} hears", label, feed, SessionBroken(index, session, why))
        network.carry(self.up, f"{self.bookie.name} sees {self.client}'s stream {self.stream} end", self._ended)

    def _ended(self) -> None:
        if self.bookie.alive and self.bookie.starts == self.reached:
            self.bookie.feed(ev.StreamClosed(self.stream))
            self.bookie.routes.pop(self.stream, None)

    # --- from the bookie ---

    def deliver(self, effect: Any) -> None:
        if isinstance(effect, ev.CloseStream):
            self.cut("closed by the bookie")
        elif isinstance(effect, ev.SendAcks):
            random = self.network.scheduler.random
            if self.network.knobs.hostile and random.random() < self.network.knobs.hostile / 4:
                effect = lies.acks(effect, self.network.scheduler)
            label = f"{self.down} acks " + ",".join(
                f"{s}:{n}" for s, n in zip(effect.sessions, effect.frames, strict=True)
            )
            if effect.ended:
                label += " ended " + ",".join(f"{end.session}:{end.reason.name}" for end in effect.ended)
            self.network.carry(self.down, label, self._heard, effect)

    def _heard(self, effect: ev.SendAcks) -> None:
        if not self.open:
            return
        for session, frames in zip(effect.sessions, effect.frames, strict=True):
            if session in self.sessions:
                index, feed = self.sessions[session]
                if session not in self.sending:
                    self.network.scheduler.reached("a late ack of a session that is over")
                feed(FramesAcked(index, session, frames))
        for end in effect.ended:
            if end.session in self.sessions:
                index, feed = self.sessions[end.session]
                self.sending.discard(end.session)
                feed(SessionEnded(index, end.session, end.frames, end.reason, end.message))


class Request:
    """One request of a client, which ends once: with an answer, or with a failure."""

    def __init__(self, network: SimNetwork, client: str, bookie: SimBookie, answer: Feed, fail: Feed) -> None:
        self.network, self.client, self.bookie = network, client, bookie
        self.answer, self.fail = answer, fail
        self.streams: list[tuple[int, int]] = []  # (stream at the bookie, the bookie's process)
        self.first: int | None = None  # the stream whose answer counts
        self.lost: set[int] = set()  # streams of which a message was lost: no later one arrives
        self.not_before = 0.0
        self.ended = False
        self.deadline: Item | None = None
        self.lane = f"{bookie.name}?{client}"

    def arrive(self, make: Callable[[ev.RequestId], ev.Event]) -> None:
        if not self.bookie.alive:
            self.network.carry(self.lane, f"{self.lane} refused", self.failed, "unreachable", fifo=False)
            return
        stream = self.network.new_stream()
        self.streams.append((stream, self.bookie.starts))
        self.bookie.routes[stream] = self
        event = make((stream, 1))
        self.bookie.arrived(stream, event)
        self.bookie.feed(event)

    def failed(self, why: str) -> None:
        if not self.ended:
            self.end()
            self.fail(why)

    def end(self) -> None:
        self.ended = True
        if self.deadline is not None:
            self.deadline.cancel()

    def cancel(self) -> None:
        """Cancel the request for the client."""
        if self.ended:
            return
        self.end()
        for stream, starts in self.streams:
            label = f"{self.client} cancels its request to {self.bookie.name}"
            self.network.carry(f"{self.client}?{self.bookie.name}", label, self._cancelled, stream, starts, fifo=False)

    def _cancelled(self, stream: int, starts: int) -> None:
        if self.bookie.alive and self.bookie.starts == starts and self.bookie.routes.pop(stream, None):
            self.bookie.feed(ev.RequestCancelled((stream, 1)))

    def deliver(self, effect: Any) -> None:
        """Deliver an effect of the bookie's machine on this request's stream."""
        network, stream = self.network, effect.request[0]
        random, knobs = network.scheduler.random, network.knobs
        if isinstance(effect, ev.SendPart):
            self.bookie.later_part_sent(effect.request)
        else:
            self.bookie.routes.pop(stream, None)
        if stream in self.lost:
            return
        if random.random() < knobs.answer_lost:
            self.lost.add(stream)
            network.scheduler.note(f"{self.lane} answer lost")
            return
        item = network.scheduler.add(
            self.lane,
            f"{self.lane} {type(effect).__name__}",
            self._heard,
            stream,
            network.corrupt(effect),
            mean_ms=knobs.latency_ms,
            not_before=self.not_before,
        )
        self.not_before = item.time

    def _heard(self, stream: int, effect: Any) -> None:
        if self.first is None:
            self.first = stream
        if self.ended or self.first != stream:
            return  # late, doubled or cut off
        if not isinstance(effect, ev.SendPart):
            self.end()
        self.answer(effect)


class SimNetwork:
    """All connections and requests. Its controls are ``cut``, ``hold``/``release`` of links, and ``bookie.crash``."""

    def __init__(self, scheduler: Scheduler, knobs: Knobs) -> None:
        self.scheduler, self.knobs = scheduler, knobs
        self.bookies: dict[BookieId, SimBookie | ApacheSimBookie] = {}
        self.connections: dict[tuple[str, BookieId], Connection | ApacheLine] = {}
        self._packers: dict[str, Packer] = {}  # by client
        self._streams = 0

    def new_stream(self) -> int:
        self._streams += 1
        return self._streams

    def carry(self, lane: str, label: str, call: Callable[..., None], *args: Any, fifo: bool = True) -> Item:
        """Call ``call(*args)`` after the latency of a message."""
        return self.scheduler.add(lane, label, call, *args, mean_ms=self.knobs.latency_ms, fifo=fifo)

    # --- sessions ---

    def attach(self, client: str, asked: AttachSession, ledger_id: LedgerId, key: bytes, feed: Feed) -> None:
        bookie_id, session, mode = asked.bookie, asked.session, asked.mode
        connection = self._connection(client, bookie_id)
        if connection is None:
            broken = SessionBroken(asked.index, session, "unreachable")
            self.carry(f"{client} hears", f"{client} cannot reach {bookie_id}", feed, broken)
            return
        if isinstance(connection, ApacheLine):
            connection.attach(asked, ledger_id, key, feed)
            return
        connection.sessions[session] = (asked.index, feed)
        connection.sending.add(session)
        connection.bookie.modes[session] = mode
        connection.tell(
            ev.SessionAttached(connection.stream, session, ledger_id, key, mode),
            f"attach {session} {mode.name.lower()}",
        )

    def send(self, client: str, bookie_id: BookieId, session: int, frame: Any) -> None:
        connection = self.connections.get((client, bookie_id))
        if isinstance(connection, ApacheLine):
            connection.send(session, frame)
        elif connection is not None and session in connection.sending:
            event = ev.FramesArrived(connection.stream, memoryview(bytes(frame)))
            connection.tell(event, f"frame {session} from {contents(frame).header.first_entry_id}")

    def detach(self, client: str, bookie_id: BookieId, session: int) -> None:
        connection = self.connections.get((client, bookie_id))
        if isinstance(connection, ApacheLine):
            connection.detach(session)
        elif connection is not None and session in connection.sending:
            connection.sending.discard(session)
            connection.tell(ev.SessionsDetached(connection.stream, [session]), f"detach {session}")

    def force(
        self,
        client: str,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        session: int,
        *,
        answer: Callable[[], None],
        fail: Feed,
        deadline_ms: float,
    ) -> None:
        """Let the bookie sync the frames that it acked. A bookie of ours has done so already, so no message is sent to
        it."""
        if not isinstance(self.bookies[bookie_id], ApacheSimBookie):
            self.scheduler.at(0, f"{client} clock", f"{client} need not force {bookie_id}", answer)
            return

        def said(reply: Any) -> None:
            if reply.reason:
                fail(f"{bookie_id}: {reply.reason.name}")
            else:
                self.scheduler.reached("a force was answered")
                answer()

        self.request(
            client,
            bookie_id,
            lambda request: ForceRequested(ledger_id, session),
            "force",
            answer=said,
            fail=fail,
            deadline_ms=deadline_ms,
        )

    def _connection(self, client: str, bookie_id: BookieId) -> Connection | ApacheLine | None:
        found = self.connections.get((client, bookie_id))
        if found is not None:
            return found
        bookie = self.bookies[bookie_id]
        if not bookie.alive:
            return None
        if isinstance(bookie, ApacheSimBookie):
            packer = self._packers.setdefault(client, Packer())
            line = self.connections[client, bookie_id] = ApacheLine(self, client, bookie, packer)
            return line
        stream = self.new_stream()
        connection = self.connections[client, bookie_id] = Connection(self, client, bookie, stream)
        bookie.routes[stream] = connection
        return connection

    def forget(self, connection: Connection | ApacheLine) -> None:
        self.connections.pop((connection.client, connection.bookie.name), None)

    def leave(self, client: str) -> None:
        """End a client's process. Its connections have no listener any more."""
        for connection in [c for (name, _), c in self.connections.items() if name == client]:
            connection.sessions.clear()
            connection.cut("the client died")

    # --- requests ---

    def request(
        self,
        client: str,
        bookie_id: BookieId,
        make: Callable[[ev.RequestId], ev.Event],
        label: str,
        *,
        answer: Feed,
        fail: Feed,
        deadline_ms: float,
    ) -> Request | ApacheRequest:
        """Send a request. Exactly one of ``answer`` (its last call) and ``fail`` ends it, unless it is cancelled."""
        scheduler, knobs, bookie = self.scheduler, self.knobs, self.bookies[bookie_id]
        request = (
            ApacheRequest(answer, fail)
            if isinstance(bookie, ApacheSimBookie)
            else Request(self, client, bookie, answer, fail)
        )
        request.deadline = scheduler.at(
            deadline_ms, f"{client} clock", f"{client} deadline of {label} at {bookie_id}", request.failed, "deadline"
        )
        if isinstance(request, ApacheRequest):
            self._ask_apache(client, bookie_id, request, make((0, 0)))
            return request
        lane = f"{client}?{bookie_id}"
        draw = scheduler.random.random()
        copies = 0 if draw < knobs.request_lost else 2 if draw > 1 - knobs.request_doubled else 1
        for _ in range(copies):
            late = scheduler.random.random() < knobs.straggler
            mean = knobs.straggler_ms if late else knobs.latency_ms
            scheduler.add(lane, f"{lane} {label}", request.arrive, make, mean_ms=mean)
        return request

    def _ask_apache(self, client: str, bookie_id: BookieId, request: ApacheRequest, event: ev.Event) -> None:
        line = self._connection(client, bookie_id)
        if line is None:
            label = f"{client} cannot reach {bookie_id}"
            self.carry(f"{client} hears", label, request.failed, "unreachable", fifo=False)
            return
        assert isinstance(line, ApacheLine)
        request.begin(line, event)

    # --- lies on the way ---

    def corrupt(self, effect: Any) -> Any:
        """Sometimes replace an answer by one that no honest bookie would send (RULES P5)."""
        random = self.scheduler.random
        if not self.knobs.hostile or random.random() >= self.knobs.hostile:
            return effect
        if isinstance(effect, ev.SendPart):
            return lies.part(effect, random, self.scheduler, self.knobs.endless)
        if isinstance(effect, ev.SendTrailer):
            return lies.trailer(effect, random, self.scheduler)
        if isinstance(effect, ev.SendLac):
            return lies.evidence(effect, random, self.scheduler)
        return effect
