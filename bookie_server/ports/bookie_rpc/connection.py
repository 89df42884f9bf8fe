# SPDX-License-Identifier: Apache-2.0
"""One connection of Apache's wire on the bookie's side: bytes in, events to the engine, its effects to bytes out.

There is no socket and no clock here. The driver gives :meth:`Connection.receive` what came, and sends what
:meth:`Connection.next_message` has. A connection is one stream of the engine. It is not read while the machine has
paused it, while many of its reads wait for their turn, and while its client takes nothing (``flow``).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from bk_core.access.needs import APACHE, On
from bk_core.access.roles import EVERY, Right
from bk_core.errors import AuthenticationError
from bk_core.model import BOOKIE_RPC
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.connection import RequestReader
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, LENGTH_BYTES, Buffer, frames
from bk_core.wire.bookie_rpc.runs import AddRun, BatchRead, Burst, ReadRun, Single
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.reasons import Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.audit import outcome_of
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.machine import events
from bookie_server.ports.access.principal import UNKNOWN, Principal
from bookie_server.ports.bookie_rpc.adds import ServedAdds
from bookie_server.ports.bookie_rpc.auth import AuthPlugin
from bookie_server.ports.bookie_rpc.reads import (
    Batch,
    LastEntry,
    ListEntries,
    Read,
    ReadLac,
    ServedRangeRead,
    Story,
    WriteLac,
    ledgers_of,
)
from bookie_server.ports.bounds.limits import ClientShare, LimitReached, RequestKind
from bookie_server.ports.lane.streams import BookieFacts

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 1 << 20
"""About so much goes to the socket at once."""

STORIES_MAX = 64
"""Limits the reads of a connection that are with the machine; more wait here, in order."""

WAITING_MAX = 4096
"""While more reads than this wait, the connection is not read."""

ANSWER_BYTES_MAX = 16 << 20
"""Answers with LAC evidence may be as large as two entries: further ones are refused while so much waits here."""


class ServedConnection:
    """``wake`` is called when there is something to send, or the connection is to be closed, or ``flow`` changed.
    ``principal`` is the client's identity. In mode ``secure`` nothing is read until :meth:`allow` has said what it
    may."""

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
        self.principal = principal
        self._engine, self._facts, self._auth, self._clock_ms = engine, facts, auth.begin(principal), clock_ms
        self._wake, self.leave = wake, leave
        self._rights: Right | None = None if facts.authority is not None else EVERY  # None: it is not known yet
        self._may_add = self._rights is not None
        self.stream: events.StreamId = engine.open_stream(self)
        self._reader = RequestReader()
        self._fresh = True
        self._adds = ServedAdds(self.stream, engine.feed, self._send)
        self._stories: dict[int, Story] = {}
        self._waiting: deque[Story] = deque()
        self._requests = 0
        self._running = 0
        self.answers: deque[tuple[Buffer, events.RequestId | None, bool]] = deque()
        """What waits to be sent; to be looked at only. The request: of a part's last buffer."""
        self.flows = self._rights is not None
        """Whether it may be read."""
        self._answer_bytes = 0  # of those that are counted
        self._leaving: list[events.RequestId] = []
        self._paused = self._stalled = False
        self.closing = ""
        self.was_cut = False
        self.reading_since = math.inf
        self._share: ClientShare | None = None
        self._held = False  # not read for a while: the client has asked too much
        self.on_held: Callable[[float], object] = lambda wait_s: None
        """Called when :meth:`let_go` has to be called after so many seconds."""
        self.on_proven: Callable[[], object] = lambda: None
        """Called in mode ``secure`` when the principal has become another, whose rights :meth:`allow` has to say."""
        if self._auth.done:
            self._enter()

    # --- what the driver calls ---

    @property
    def has_begun(self) -> bool:
        """Whether something came, and the client has authenticated."""
        return not self._fresh and self._auth.done

    def receive(self, received: memoryview) -> int:
        """Take what came; returns how many bytes are dealt with. The caller gives the rest again, with more behind
        it."""
        if self._rights is None:
            return len(received) if self.closing else 0
        if not self._fresh and self._auth.done and not self.closing:
            wire = v3 if self._reader.version == 3 else v2
            lone = wire.lone_add(received) if self._may_add else None
            # a client that waits for each add sends one at a time, and then each step is a microsecond
            if lone is not None and (self._share is None or self._pays(_kind_of_add(lone[3]), 1)):
                self._adds.take_one(lone, wire)
                return len(received)
        used = 0
        if self._fresh:
            first = frames(received[: LENGTH_BYTES + FRAME_BYTES_MAX])
            if not first.offsets.size:
                return self._take(received) if first.fault else 0
            self._fresh = False
            used = self._take(received[: int(first.offsets[0] + first.lengths[0])])
        if self.closing:
            return len(received)
        if self._rights is None:  # it was AUTH: what is behind it waits for the rights of the new identity
            return used
        rest, reader = received[used:], self._reader
        before = reader.version
        burst = reader.read(rest)
        if reader.version != before:
            return used + self._turned(rest)
        return used + self._handle(burst, v3 if before == 3 else v2)

    def _turned(self, received: memoryview) -> int:
        """A burst of a client that has spoken version 3 and turns to version 2 in the middle: each frame is read by
        itself, because the answers differ."""
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
            self._item(item, wire)
        if burst.fault is not None:
            self.close(str(burst.fault))
        return burst.used

    def end(self) -> None:
        """The connection is gone."""
        self._engine.close_stream(self.stream)
        self.close("the connection ended")
        if self._share is not None:
            self._share.end()
        self._waiting.clear()
        self._stories.clear()
        while self.answers:
            self.next_message()

    def _look(self) -> None:
        """What ``flows`` depends on has changed."""
        held = self._rights is None or self._held
        self.flows = not (held or self._paused or self.closing or len(self._waiting) > WAITING_MAX)

    def next_message(self) -> list[Buffer]:
        """What is to be sent, about a mebibyte of it; empty if there is nothing."""
        message: list[Buffer] = []
        size = 0
        while self.answers and size < MESSAGE_BYTES:
            buffer, request, counted = self.answers.popleft()
            size += len(buffer)
            if counted:
                self._count(-len(buffer))
            if request is not None:
                self._leaving.append(request)
            message.append(buffer)
        return message

    def message_left(self) -> None:
        """The last message was taken by the socket, which takes more."""
        self._stalled = False
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            for request in leaving:
                self._engine.feed(events.PartSent(request))

    def stall(self) -> None:
        """The client has taken nothing for a while."""
        self._stalled = True
        if self.closing:
            self.cut("the client takes nothing")
        else:
            self._engine.feed(events.StreamStalled(self.stream))

    def close(self, message: str) -> None:
        """End the connection once its queued answers are sent."""
        self.closing = self.closing or message
        self._look()
        if self._stalled:
            self.cut(message)
        self._wake()

    def cut(self, message: str) -> None:
        """End it at once; queued answers are lost."""
        if not self.was_cut:
            logger.info("connection %d is cut: %s", self.stream, message)
            self.was_cut = True
            self.closing = self.closing or message
            self._look()
            self._wake()

    def _audit(self, did: str, reason: Reason = Reason.REASON_NONE, why: str = "", **to: object) -> None:
        """Say that the client did something; ``to`` says to what."""
        if self._facts.audit is not None:
            why = why or (reason.name if reason else "")
            who = self.principal.as_event()
            self._facts.audit.say(did, outcome_of(reason), lane=BOOKIE_RPC, why=why, **who, **to)

    # --- limits ---

    def _enter(self) -> None:
        """Take a place among what the client may have at once."""
        if self._facts.limits is None:
            return
        if self._share is not None:
            self._share.end()
        self._share = self._adds.share = None
        try:
            share = self._share = self._adds.share = self._facts.limits.enter(self.principal)
        except LimitReached as reached:
            self._audit("connect", Reason.OVERLOADED, str(reached))
            self.cut(str(reached))
            return
        if share is not None and share.owners:
            self._engine.feed(events.StreamOwned(self.stream, share.owners))

    def _pays(self, kind: RequestKind, count: int) -> bool:
        """Whether so many requests are taken; then the connection may not be read for a while."""
        assert self._share is not None
        taken = not self._share.refuses(kind)
        wait_s = self._share.pay(kind, count if taken else 0)
        if wait_s > 0 and not self._held:
            self._held = True
            self._look()
            self.on_held(wait_s)
        return taken

    def let_go(self) -> None:
        self._held = False
        self._look()
        self._wake()

    def _is_over_limit(self, item: AddRun | ReadRun | Single | BatchRead) -> bool:
        if isinstance(item, AddRun):
            recovery = int(item.recovery.sum())
            counts = {RequestKind.RECOVER: recovery, RequestKind.ADD: len(item) - recovery}
        elif isinstance(item, ReadRun):
            counts = {RequestKind.ASK: len(item)}
        elif isinstance(item, Single) and item.request.header.operation == pb.AUTH:
            return False
        else:
            counts = {RequestKind.RECOVER if _operations_of(item)[0].endswith("FENCE_LEDGER") else RequestKind.ASK: 1}
        return not all(self._pays(kind, count) for kind, count in counts.items() if count)

    # --- mode secure ---

    def allow(self, rights: Right) -> None:
        """What the client may do on the cluster, from now on. If that is less than before, the connection ends, with
        all that waits on it. The first time, what came before is to be given to :meth:`receive` again."""
        before, self._rights = self._rights, rights
        self._may_add = APACHE["ADD_ENTRY"].right in rights
        if before is not None and before & ~rights:
            self.close("a role was taken away")
        self._look()

    def _may(self, item: AddRun | ReadRun | Single | BatchRead) -> bool:
        for operation in _operations_of(item):
            need = APACHE.get(operation)
            if need is None or (need.on is not On.FREE and (not need.right or need.right not in self._known_rights)):
                return False
        return True

    @property
    def _known_rights(self) -> Right:
        return Right.NONE if self._rights is None else self._rights

    # --- requests ---

    def _item(self, item: AddRun | ReadRun | Single | BatchRead, wire: ModuleType) -> None:
        if not self._auth.done and not _may_come_first(item):
            self._unauthenticated(item, wire)
        elif self._facts.authority is not None and not self._may(item):
            self._denied(item, wire)
        elif self._share is not None and self._is_over_limit(item):
            self._refuse(item, wire, Status.ETOOMANYREQUESTS)
            self._audit(_operations_of(item)[0], Reason.OVERLOADED)
        elif isinstance(item, AddRun):
            alone = item.alone
            if alone is None:
                self._adds.take(item, wire)
            else:
                self._adds.take_one(alone, wire)
        elif isinstance(item, ReadRun):
            self._reads(item, wire)
        elif item.status is not Status.EOK:
            self._send(wire.refusal(item))
        elif isinstance(item, BatchRead):
            self._begin_or_refuse(Batch(self._ask, item), item, wire)
        else:
            self._single(item, wire)

    def _reads(self, run: ReadRun, wire: ModuleType) -> None:
        for begin, end in ledgers_of(run):
            txns, ids = run.txns[begin:end].copy(), run.entry_ids[begin:end].copy()
            ledger_id, first = int(run.ledger_ids[begin]), int(ids[0])
            if ledger_id < 0:
                self._send(wire.refused_reads(txns, ledger_id, ids, int(Status.ENOLEDGER)))
            elif first < 0:
                self._begin(LastEntry(self._ask, ledger_id, ids, txns, wire))
            else:
                self._begin(ServedRangeRead(self._ask, ledger_id, ids, txns, wire))

    def _single(self, item: Single, wire: ModuleType) -> None:
        request = item.request
        operation = request.header.operation
        if operation == pb.READ_ENTRY:
            read = Read(self._ask, item, wire, self._clock_ms)
            self._begin_or_refuse(read, item, wire)
        elif operation == pb.AUTH:
            self._authenticate(request, wire)
        elif operation == pb.READ_LAC:
            self._begin_or_refuse(ReadLac(self._ask, item), item, wire)
        elif operation == pb.WRITE_LAC:
            if self._facts.read_only():
                self._send(v3.framed(v3.answer(request, Status.EREADONLY)))
            else:
                self._begin(WriteLac(self._ask, item))
        elif operation == pb.FORCE_LEDGER:
            self._adds.after(
                request.forceLedgerRequest.ledgerId, lambda: self._send(v3.framed(v3.answer(request)))
            )  # an add is answered once it is durable: so is what was answered before
        elif operation == pb.GET_BOOKIE_INFO:
            self._info(request)
        elif operation == pb.GET_LIST_OF_ENTRIES_OF_LEDGER:
            self._begin_or_refuse(ListEntries(self._ask, item), item, wire)
        else:  # START_TLS
            self._send(v3.framed(v3.answer(request, Status.EBADREQ)))

    def _info(self, request: pb.Request) -> None:
        made, info = v3.answer(request), self._facts.info()
        wanted = request.getBookieInfoRequest.requested
        if wanted & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY:
            made.getBookieInfoResponse.totalDiskCapacity = info.total_bytes
        if wanted & pb.GetBookieInfoRequest.FREE_DISK_SPACE:
            made.getBookieInfoResponse.freeDiskSpace = info.free_bytes
        self._send(v3.framed(made))

    def _authenticate(self, request: pb.Request, wire: ModuleType) -> None:
        try:
            answer, status = self._auth.take(request.authRequest), Status.EOK
        except AuthenticationError as error:  # version 2 has no word for it, and Apache's clients look at the status
            answer = pb.AuthMessage(authPluginName="", payload=error.what.encode())
            status = Status.EUA
        if wire is v3:
            made = v3.header_only(request, status)
            made.authResponse.CopyFrom(answer)
            self._send(v3.framed(made))
        elif status is Status.EOK:
            self._send(v2.auth(answer))
        if status is not Status.EOK:
            self.close("the client is refused")
        elif self._auth.principal is not self.principal:
            self._proven(self._auth.principal)

    def _proven(self, principal: Principal) -> None:
        """The client has authenticated. In mode ``secure`` nothing more is read until :meth:`allow`."""
        self.principal = principal
        self._enter()
        if self._facts.authority is not None:
            self._rights, self._may_add = None, False
            self._look()
            self.on_proven()

    def _unauthenticated(self, item: AddRun | ReadRun | Single | BatchRead, wire: ModuleType) -> None:
        """As Apache's bookies say it: in version 3 with nothing but a header, so that it is not taken for an EUA about
        a ledger's password."""
        if self._facts.port_tls is not None:
            asked = ", ".join(_operations_of(item))
            self._facts.port_tls.refused(self.principal.peer, "Apache's wire", "it asks before it shows a token", asked)
        if isinstance(item, BatchRead):
            self.close("a client that is not authenticated asks")
        elif wire is v2:
            self._refuse(item, wire, Status.EUA)
        elif isinstance(item, Single):
            self._send(v3.framed(v3.header_only(item.request, Status.EUA)))
        else:
            operation = pb.ADD_ENTRY if isinstance(item, AddRun) else pb.READ_ENTRY
            self._send(v3.bare_answers(operation, item.txns.size, item.txns, int(Status.EUA)))

    def _denied(self, item: AddRun | ReadRun | Single | BatchRead, wire: ModuleType) -> None:
        """The client may not do this."""
        asked, who = ", ".join(_operations_of(item)), self.principal
        if self._facts.refusals.allows(who.host, f"{who.identity} may not {asked}"):
            logger.warning("connection %d: %s may not %s", self.stream, who, asked)
        for operation in _operations_of(item):
            self._audit(operation, Reason.PERMISSION_DENIED)
        self._refuse(item, wire, Status.EUA)

    def _refuse(self, item: AddRun | ReadRun | Single | BatchRead, wire: ModuleType, status: Status) -> None:
        if isinstance(item, AddRun):
            self._send(wire.add_answers(item.txns, item.ledger_ids, item.entry_ids, int(status)))
        elif isinstance(item, ReadRun):
            self._send(wire.refused_reads(item.txns, item.ledger_ids, item.entry_ids, int(status)))
        elif isinstance(item, BatchRead):
            self._send(v2.refusal(replace(item, status=status)))
        else:
            self._send(wire.refusal(Single(item.frame, item.request, status)))

    # --- stories ---

    def _begin_or_refuse(
        self, story: Read | Batch | ReadLac | ListEntries, item: Single | BatchRead, wire: ModuleType
    ) -> None:
        status = story.refusal()
        if status is Status.EOK:
            self._begin(story)
        elif isinstance(item, Single):
            self._send(wire.refusal(Single(item.frame, item.request, status)))
        else:
            assert isinstance(story, Batch)
            self._send(v2.refusal(story.refused(status)))

    def _begin(self, story: Story) -> None:
        """Begin a story. A plain read waits if many are under way; all others go to the machine, which bounds them: a
        fence must not wait behind reads, nor a read behind long polls."""
        if isinstance(story, ServedRangeRead) and (self._waiting or self._running >= STORIES_MAX):
            self._waiting.append(story)
            self._look()
            return
        self._running += isinstance(story, ServedRangeRead)
        story.begin()

    def _ask(self, story: Story, event: Callable[[events.RequestId], events.Event]) -> None:
        self._requests += 1
        self._stories[self._requests] = story
        self._engine.feed(event((self.stream, self._requests)))

    def deliver(self, effect: StreamEffect) -> None:
        match effect:
            case events.SendAcks():
                if self._adds.recovering:
                    self._audit_recoveries(effect)
                self._adds.told(effect)
            case events.PauseStream():
                self._paused = True
                self._look()
                self._wake()
            case events.ResumeStream():
                self._paused = False
                self._look()
                self._wake()
            case events.CloseStream(_, message):
                self.close(message)
            case events.SendPart(request):
                story = self._stories.get(request[1])
                buffers = story.heard(effect) if story else []
                for buffer in buffers:
                    self._send(buffer)
                self._send(b"", request)
            case _:
                self._ended(effect)

    def _audit_recoveries(self, effect: events.SendAcks) -> None:
        """A recovery has written, or may not. Once a session."""
        recovering = self._adds.recovering
        for session in effect.sessions:
            if session in recovering:
                self._audit("recovery-add", ledger=recovering.pop(session))
        for ended in effect.ended:
            if ended.session in recovering:
                self._audit("recovery-add", ended.reason, ledger=recovering.pop(ended.session))

    def _ended(self, effect: events.SendTrailer | events.SendLac | events.SendReply) -> None:
        story = self._stories.pop(effect.request[1], None)
        if story is None:
            return
        requests = self._requests
        counted = isinstance(effect, events.SendLac)
        if counted and self._too_many_answers(isinstance(story, Read) and story.fences):
            effect = events.SendReply(effect.request, Reason.OVERLOADED, "too many answers wait to be taken")
        if isinstance(story, (Read, Batch)) and story.fences:
            reason = Reason.REASON_NONE if isinstance(effect, events.SendLac) else effect.reason
            self._audit("fence", reason, ledger=story.ledger_id)
        for buffer in story.heard(effect):
            self._send(buffer, counted=counted)
        if isinstance(story, ServedRangeRead) and self._requests == requests:  # it did not go on
            self._running -= 1
            self._next_stories()

    def _too_many_answers(self, fence: bool) -> bool:
        return self._answer_bytes > ANSWER_BYTES_MAX or self._facts.answers.refuses(fence=fence)

    def _next_stories(self) -> None:
        flowed = self.flows
        while self._waiting and self._running < STORIES_MAX:
            self._running += 1
            self._waiting.popleft().begin()
        self._look()
        if self.flows and not flowed:
            self._wake()

    # --- what goes out ---

    def _send(self, buffer: Buffer, request: events.RequestId | None = None, *, counted: bool = False) -> None:
        if not self.answers:
            self._wake()
        self.answers.append((buffer, request, counted))
        if counted:
            self._count(len(buffer))

    def _count(self, size: int) -> None:
        self._answer_bytes += size
        self._facts.answers.bytes += size


def _operations_of(item: AddRun | ReadRun | Single | BatchRead) -> list[str]:
    """What a request asks for, by the names of the table of what is needed."""
    if isinstance(item, AddRun):
        recovery = item.recovery
        normal, again = not recovery.all(), bool(recovery.any())
        return ["ADD_ENTRY"] * normal + ["ADD_ENTRY RECOVERY_ADD"] * again
    if isinstance(item, ReadRun):
        return ["READ_ENTRY"]
    if isinstance(item, BatchRead):
        return ["BATCH_READ_ENTRY FENCE_LEDGER" if item.fencing else "BATCH_READ_ENTRY"]
    operation, read = item.request.header.operation, item.request.readRequest
    name = pb.OperationType.Name(operation) if operation in pb.OperationType.values() else "?"
    fences = operation == pb.READ_ENTRY and read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER
    return [f"{name} FENCE_LEDGER" if fences else name]


def _kind_of_add(recovery: bool) -> RequestKind:
    return RequestKind.RECOVER if recovery else RequestKind.ADD


def _may_come_first(item: AddRun | ReadRun | Single | BatchRead) -> bool:
    """Whether a client that is not authenticated may ask this."""
    return isinstance(item, Single) and item.request.header.operation in (pb.AUTH, pb.START_TLS)
