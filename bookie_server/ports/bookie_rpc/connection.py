# SPDX-License-Identifier: Apache-2.0
"""One connection of Apache's wire on the bookie's side. It turns received bytes into events for the engine, and the
engine's effects into answers.

There is no socket and no clock here. The driver gives :meth:`ServedConnection.receive` the received bytes, and sends
the messages of ``answers``. A connection is one stream of the engine. The driver does not read it
while the machine has paused it, while many of its reads wait for their turn, and while its client is held because it
has sent too many requests (``flows``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from types import ModuleType

from bk_core.access.roles import Right
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.connection import RequestReader, lone_adds
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, LENGTH_BYTES, frames
from bk_core.wire.bookie_rpc.runs import Burst
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.machine import events
from bookie_server.ports.access.principal import UNKNOWN, Principal
from bookie_server.ports.bookie_rpc.adds import ServedAdds
from bookie_server.ports.bookie_rpc.answer_queue import AnswerQueue
from bookie_server.ports.bookie_rpc.auth import AuthPlugin
from bookie_server.ports.bookie_rpc.requests import ServedRequests
from bookie_server.ports.bookie_rpc.served_client import ServedClient
from bookie_server.ports.bookie_rpc.stories import WAITING_MAX, Stories
from bookie_server.ports.bounds.limits import RequestKind
from bookie_server.ports.lane.streams import BookieFacts

logger = logging.getLogger(__name__)


class ServedConnection:
    """A connection of one client.

    - ``client``: the identity, the rights and the limits of the client. ``answers``: the answers that wait to be sent.
    - ``_adds``, ``_stories``: the requests that wait for the machine. ``_requests`` passes requests to them or answers
      them.
    - ``_reader``: splits bytes into requests. ``_is_fresh``: whether no whole request has come yet.
    - ``flows``: whether the driver may read the socket. ``_is_paused``: whether the machine has paused the stream.
    - ``closing``: the reason why the connection ends once its answers are sent, or empty. ``was_cut``: whether it ends
      immediately, so that its answers are lost.
    - ``reading_since``: the loop's time when the driver began to wait for the rest of a message, or infinite if it
      waits for none. The driver sets it.

    ``wake`` is called when there is something to send, when the connection is to be closed, and when ``flows`` may have
    changed. ``leave`` is called when the engine has delivered all answers of a commit, so that they are sent
    immediately.
    """

    def __init__(
        self,
        engine: BookieEngine,
        facts: BookieFacts,
        auth: AuthPlugin,
        clock_ms: Callable[[], int],
        wake: Callable[[], None],
        leave: Callable[[], None] = lambda: None,
        principal: Principal = UNKNOWN,
    ) -> None:
        self._engine, self._wake, self.leave = engine, wake, leave
        self.closing = ""
        self.was_cut = self._is_paused = False
        self._is_fresh = True
        self.reading_since = math.inf
        self.stream: events.StreamId = engine.open_stream(self)
        self._reader = RequestReader()
        self.client = ServedClient(facts, auth, principal, self._look)
        self.flows = self.client.rights is not None
        self.answers = AnswerQueue(facts.answers, engine.feed, wake)
        self._adds = ServedAdds(self.stream, engine.feed, self.answers.send)
        self._stories = Stories(self.stream, engine.feed, self.answers, self.client, self._look)
        self._requests = ServedRequests(
            facts, self.client, self._adds, self._stories, self.answers, clock_ms, self.close, self._proven
        )
        if self.client.auth.done:
            self._enter()

    @property
    def principal(self) -> Principal:
        return self.client.principal

    # --- bytes ---

    @property
    def has_begun(self) -> bool:
        """Whether a request has come and the client has authenticated."""
        return not self._is_fresh and self.client.auth.done

    def receive(self, received: memoryview) -> int:
        """Take received bytes and return how many were used. The caller passes the rest again, followed by later
        bytes."""
        client = self.client
        if client.rights is None:
            return len(received) if self.closing else 0
        if not self._is_fresh and client.auth.done and not self.closing and client.may_add:
            wire = v3 if self._reader.version == 3 else v2
            lone = wire.lone_add(received)
            # a client that waits for each add sends one at a time; then each step costs a microsecond of its wait
            if lone is not None and client.pays(RequestKind.ADD, 1):
                self._adds.take_one(lone, wire)
                return len(received)
            several = lone_adds(received, wire.lone_add) if lone is None else None
            if several is not None and client.pays(RequestKind.ADD, len(several[0])):
                self._adds.take_lone(several[0], wire)
                return several[1]
        used = 0
        if self._is_fresh:
            first = frames(received[: LENGTH_BYTES + FRAME_BYTES_MAX])
            if not first.offsets.size:
                return self._take(received) if first.fault else 0
            self._is_fresh = False
            used = self._take(received[: int(first.offsets[0] + first.lengths[0])])
        if self.closing:
            return len(received)
        if client.rights is None:  # the request was AUTH: those behind it wait for the rights of the new identity
            return used
        rest, reader = received[used:], self._reader
        before = reader.version
        burst = reader.read(rest)
        if reader.version != before:
            return used + self._take_frame_by_frame(rest)
        return used + self._handle(burst, v3 if before == 3 else v2)

    def _take_frame_by_frame(self, received: memoryview) -> int:
        """Take a burst in which the client turns from version 3 to version 2. Each frame is taken by itself, because
        the answers of the two versions differ."""
        self._reader, used = RequestReader(), 0
        for begin, length in zip(*(column.tolist() for column in frames(received)[:2]), strict=True):
            self._take(received[begin - LENGTH_BYTES : begin + length])
            used = begin + length
            if self.closing:
                break
        return used if not self.closing else len(received)

    def _take(self, received: memoryview) -> int:
        burst = self._reader.read(received)
        return self._handle(burst, v3 if self._reader.version == 3 else v2)

    def _handle(self, burst: Burst, wire: ModuleType) -> int:
        for item in burst.items:
            if self.closing:
                break
            self._requests.take(item, wire)
        if burst.fault is not None:
            self.close(str(burst.fault))
        return burst.used

    # --- effects of the machine ---

    def deliver(self, effect: StreamEffect) -> None:
        match effect:
            case events.SendAcks():
                if self._adds.recovering:
                    self._audit_recoveries(effect)
                self._adds.told(effect)
            case events.PauseStream() | events.ResumeStream():
                self._is_paused = isinstance(effect, events.PauseStream)
                self._look()
                self._wake()
            case events.CloseStream(_, message):
                self.close(message)
            case events.SendPart():
                self._stories.take_part(effect)
            case events.SendEntries():
                self._stories.take_entries(effect)
            case _:
                self._stories.end(effect)

    def _audit_recoveries(self, effect: events.SendAcks) -> None:
        """Record in the audit log, once for each session, that recovery adds were written or refused."""
        recovering = self._adds.recovering
        for session in effect.sessions:
            if session in recovering:
                self.client.audit("recovery-add", ledger=recovering.pop(session))
        for ended in effect.ended:
            if ended.session in recovering:
                self.client.audit("recovery-add", ended.reason, ledger=recovering.pop(ended.session))

    # --- the client ---

    def _enter(self) -> None:
        """Take one of the places for connections that the client may have at once, or cut the connection."""
        refused, share = self.client.enter(), self.client.share
        self._adds.share = share
        if refused:
            self.cut(refused)
        elif share is not None and share.owners:
            self._engine.feed(events.StreamOwned(self.stream, share.owners))

    def _proven(self, principal: Principal) -> None:
        """Set the identity that the client has proven. In mode ``secure`` nothing more is read until :meth:`allow`."""
        self.client.become(principal)
        self._enter()
        if self.client.rights is None:
            self._look()
            self.client.on_proven()

    def allow(self, rights: Right) -> None:
        """Set what the client may do on the cluster from now on. If a right was taken away, the connection closes.
        After the first call the driver passes the bytes that came before it to :meth:`receive` again."""
        if not self.client.allow(rights):
            self.close("a role was taken away")
        self._look()

    def let_go(self) -> None:
        """Let the driver read again, because the client was held for long enough."""
        self.client.is_held = False
        self._look()
        self._wake()

    # --- flow and end ---

    def _look(self) -> None:
        """Compute ``flows`` anew, and wake the driver if it may read again."""
        flowed, client = self.flows, self.client
        held = client.rights is None or client.is_held or self._is_paused
        self.flows = not (held or self.closing or len(self._stories.waiting) > WAITING_MAX)
        if self.flows and not flowed:
            self._wake()

    def stall(self) -> None:
        """Note that the client has taken no bytes for a while: tell the machine, or cut the connection if it is
        closing."""
        self.answers.is_stalled = True
        if self.closing:
            self.cut("the client reads nothing")
        else:
            self._engine.feed(events.StreamStalled(self.stream))

    def close(self, message: str) -> None:
        """End the connection once its queued answers are sent."""
        self.closing = self.closing or message
        self._look()
        if self.answers.is_stalled:
            self.cut(message)
        self._wake()

    def cut(self, message: str) -> None:
        """End the connection immediately. Queued answers are lost."""
        if not self.was_cut:
            logger.info("connection %d is cut: %s", self.stream, message)
            self.was_cut = True
            self.closing = self.closing or message
            self._look()
            self._wake()

    def end(self) -> None:
        """Forget all requests and answers, because the connection is gone."""
        self._engine.close_stream(self.stream)
        self.close("the connection ended")
        self.client.leave()
        self._stories.drop()
        self.answers.drop()
