# SPDX-License-Identifier: Apache-2.0
"""Has the client's side of the three streams to a bookie. They convert calls and frames to messages, and messages to
answers (L1 to L6). ``link.py`` joins them to one link.

The streams have no socket. A lane sends the messages that :meth:`LaneStream.next_message` returns, and passes received
messages to :meth:`LaneStream.receive`. Short frames that are queued in one turn of the loop are sent in one message. A
broken stream fails all its callers, and the next use makes a new stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from google.protobuf.message import DecodeError

from bk_core.access.grants import NO_LEDGER
from bk_core.access.tokens import MECHANISM, not_let_in
from bk_core.errors import (
    BookKeeperError,
    ClusterMismatchError,
    InsecureBookieError,
    RemoteProtocolError,
    TransportError,
)
from bk_core.model import BookieId, EntryId, LedgerId
from bk_core.observe.traces import spans
from bk_core.transport.lane.messages import (
    CUT_FIELDS,
    LANE_VERSION,
    asleep,
    cut_to_proto,
    reason_of,
    trailer_from_proto,
)
from bk_core.transport.port import AddListener, NewSession, ReadListener, ReadPart, RefusedError, ToldRead
from bk_core.transport.wallet import Permits
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX, NAMED_MAX, AttachMode, Buffer, Cut, LaneMessage, Reason
from bk_core.wire.proto import lane_pb2

logger = logging.getLogger(__name__)

MESSAGE_FRAMES_BYTES = 4 << 20
"""The maximum number of bytes of frames in one message. A larger frame is sent alone."""

READ_BYTES_MAX = 64 << 20
"""The maximum number of bytes in the answer to a read whose caller sets no limit."""

MESSAGE_FRAMES_MAX = 256
"""The maximum number of frames in one message, so that a message of small frames does not delay the bookie's loop."""

_new = tuple.__new__  # costs less than the constructor of a named tuple

TOLD_MAX = 16_384
"""The number of requests, of about 100 bytes each, that wait to be sent before further hints are dropped. Hints need no
answer."""


class LaneStream:
    """The base class of the three streams.

    A stream first sends only ``said``, its hello. Until the bookie has answered hello, another process may be at the
    address, and must get no key and no entry. The stream calls ``wake`` when there are messages to send. The lane sets
    ``wake``, and then sends the messages that are already there.
    """

    method: str
    """The name of the stream on the wire."""

    requests: Any
    """The class of the client's messages."""

    answers: Any
    """The class of the bookie's messages."""

    gets_frames = False
    """Whether the bookie's messages carry frames, in field 1."""

    alone_bytes = math.inf
    """The size, in bytes, from which a frame is sent alone in a message. The lane sets it."""

    def __init__(self, said: lane_pb2.Hello) -> None:
        self.bookie_id, self._instance_id = said.bookie_id, said.instance_id
        self.wake: Callable[[], object] = asleep
        self.greeted = self.takes_cuts = False
        self.broken: TransportError | None = None
        self._hello: lane_pb2.Hello | None = said
        self._spans = spans()
        self._secure = said.grants
        self._shown: dict[LedgerId, bytes] = {}  # grants
        self.distrusted: Callable[[], object] = asleep
        """A function that is called when the bookie does not accept a grant."""
        self._proven = False

    def begin(self, said: lane_pb2.Hello, token: bytes = b"") -> None:
        """Set the hello that is sent first, and the token that identifies the client. The link calls this for each
        attempt to connect."""
        if token:
            said.mechanism, said.token = MECHANISM, token
        self._hello, self._proven = said, bool(token)

    def receive(self, rest: Buffer, frames: memoryview | None = None) -> None:
        """Take one message from the bookie. Raises TransportError or RemoteProtocolError; both must end the stream."""
        if frames and not self.gets_frames:
            raise RemoteProtocolError(
                "a bookie sends frames on a stream that carries none", value=f"bookie {self.bookie_id}"
            )
        try:
            answer = self.answers.FromString(rest)
        except DecodeError as error:
            raise RemoteProtocolError("a message cannot be parsed", value=self.answers.DESCRIPTOR.name) from error
        if not self.greeted:
            if not answer.HasField("hello"):
                raise RemoteProtocolError("a bookie did not answer hello", value=f"bookie {self.bookie_id}")
            self._check_hello(answer.hello)
            self.greeted, self.takes_cuts = True, answer.hello.parts
            self.wake()  # all queued messages had to wait for the answer to hello
        self.take(answer, frames)  # the message with the hello may carry more

    def _check_hello(self, answer: lane_pb2.HelloAnswer) -> None:
        reason = reason_of(int(answer.reason))
        if reason is Reason.WRONG_CLUSTER or (self._instance_id and answer.instance_id != self._instance_id):
            raise TransportError(
                f"bookie {self.bookie_id} belongs to another cluster",
                value=f"cluster {answer.instance_id}, not {self._instance_id}",
                remedy="check the metadata service URI",
            ) from ClusterMismatchError("another cluster")
        if reason is Reason.UNAUTHENTICATED:
            raise not_let_in(f"bookie {self.bookie_id}", answer.message, has_token=self._proven)
        if reason or answer.bookie_id != self.bookie_id:
            raise RefusedError(
                reason or Reason.WRONG_BOOKIE,
                f"bookie {self.bookie_id} refused the connection: {answer.message or answer.bookie_id}",
            )
        if self._secure and not answer.secure:
            raise _insecure(self.bookie_id)
        if answer.version != LANE_VERSION:
            raise RemoteProtocolError(
                "a bookie chose a version that was not offered", value=f"version {answer.version}"
            )

    def next_message(self) -> LaneMessage | None:
        """Return the next message to send, or None if there is none. Hello is the first message. All others wait for
        the bookie's answer to hello."""
        said, self._hello = self._hello, None
        if said is not None:
            return LaneMessage(self.requests(hello=said).SerializeToString())
        return self.next_request() if self.greeted else None

    def fail(self, error: TransportError) -> None:
        """Break the stream, and fail all callers that wait. Only the first call counts."""
        if self.broken is None:
            self.broken = error
            self.lost(error)

    def is_new(self, ledger_id: LedgerId, grant: bytes) -> bool:
        """Note the grant as shown on this stream, and return whether it was not shown before. An empty grant is never
        shown."""
        if not grant or self._shown.get(ledger_id) == grant:
            return False
        self._shown[ledger_id] = grant
        return True

    # --- implemented by each stream ---

    def take(self, answer: Any, frames: memoryview | None) -> None:
        """Pass the answers in a message to the callers that wait for them."""
        raise NotImplementedError

    def next_request(self) -> LaneMessage | None:
        """Return the next message to send after hello, or None."""
        raise NotImplementedError

    def lost(self, error: TransportError) -> None:
        """Fail all callers that wait with ``error``."""
        raise NotImplementedError


class AddStream(LaneStream):
    """The stream of the sessions with one bookie. It sends frames and receives acks (P1)."""

    method = "Add"
    requests = lane_pb2.AddRequest
    answers = lane_pb2.AddResponse

    def __init__(self, said: lane_pb2.Hello) -> None:
        super().__init__(said)
        self._listeners: dict[int, AddListener] = {}
        self._sent: dict[int, int] = {}  # session → the number of frames sent, which limits acks
        self._attaches: list[lane_pb2.Attach] = []
        self._frames: deque[tuple[int, Buffer, str]] = deque()  # session, frame, and its traceparent if it is traced
        self._detaches: list[int] = []
        self._traceparent = ""  # the traceparent of the next message
        self._grants: list[bytes] = []

    def show(self, ledger_id: LedgerId, grant: bytes) -> None:
        """Show a grant with the next message, unless it was shown on this stream."""
        if self.is_new(ledger_id, grant):
            self._grants.append(grant)
            self.wake()

    def attach(self, session: NewSession) -> None:
        number, ledger_id, key = session.number, session.ledger_id, session.ledger_key
        self._listeners[number] = session.listener
        self._sent[number] = 0
        wanted = lane_pb2.RECOVER if session.mode is AttachMode.RECOVER else lane_pb2.WRITE
        self._attaches.append(lane_pb2.Attach(session=number, ledger_id=ledger_id, ledger_key=key, mode=wanted))
        self.wake()

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        if session in self._listeners:
            traceparent = "" if self._spans is None else self._spans.traceparent()
            is_first = not self._frames
            self._frames.append((session, frame, traceparent))
            if is_first:  # otherwise the lane was woken before, and will take all frames
                self.wake()

    def send_all(self, sessions: Sequence[int], frames: Sequence[bytes]) -> None:
        traceparent = "" if self._spans is None else self._spans.traceparent()
        self._frames.extend(zip(sessions, frames, repeat(traceparent)))  # those of ended sessions are dropped later
        self.wake()

    def detach(self, session: int) -> None:
        if self._listeners.pop(session, None):
            del self._sent[session]
            self._detaches.append(session)
            self.wake()

    def take(self, answer: lane_pb2.AddResponse, frames: memoryview | None) -> None:
        listeners = self._listeners
        sessions, counts, ended = answer.sessions[:], answer.frames[:], answer.ended[:]  # iterated faster as lists
        if len(sessions) != len(counts):
            raise RemoteProtocolError("the two columns of acks differ in length", value=f"bookie {self.bookie_id}")
        acks = [*zip(sessions, counts, strict=True)]
        said = [*acks, *((end.session, end.frames) for end in ended)] if ended else acks
        for session, count in said:  # all are checked before, so that a wrong message is not applied in part
            if count > self._sent.get(session, count):
                value = f"bookie {self.bookie_id}: {count} of {self._sent[session]} frames"
                raise RemoteProtocolError("a bookie acknowledges frames that it was never sent", value=value)
        for session, count in acks:
            listener = listeners.get(session)
            if listener:
                listener.on_acked(session, count)
        for end in ended:
            listener = listeners.get(end.session)
            if listener:
                self.detach(end.session)
                if end.reason == lane_pb2.GRANT_NEEDED:
                    self.distrusted()
                listener.on_ended(end.session, end.frames, reason_of(int(end.reason)), end.message)

    def next_request(self) -> LaneMessage | None:
        grants, self._grants = self._grants[:NAMED_MAX], self._grants[NAMED_MAX:]
        count = 0 if self._grants else NAMED_MAX  # a grant is sent first, then its session, then the frames
        attaches, self._attaches = self._attaches[:count], self._attaches[count:]
        frames = [] if self._attaches else self._next_frames()
        detaches: list[int] = []
        if not (self._frames or self._attaches):  # a session is detached only after its last frame
            detaches, self._detaches = self._detaches, []
        traceparent, self._traceparent = self._traceparent, ""
        if not (attaches or detaches or grants or traceparent):
            return LaneMessage(b"", frames) if frames else None
        rest = lane_pb2.AddRequest(attach=attaches, detach=detaches, grants=grants, traceparent=traceparent)
        return LaneMessage(rest.SerializeToString(), frames)

    def _next_frames(self) -> list[Buffer]:
        """Take the frames of the next message. The message gets the traceparent of the first traced frame."""
        taken: list[Buffer] = []
        size, looked = 0.0, 0
        for session, frame, traceparent in self._frames:
            if session in self._listeners:  # otherwise the session has ended: the frame is dropped
                length = len(frame)
                is_alone = length >= self.alone_bytes
                if taken and (is_alone or len(taken) == MESSAGE_FRAMES_MAX or size + length > MESSAGE_FRAMES_BYTES):
                    break
                self._sent[session] += 1
                self._traceparent = self._traceparent or traceparent
                taken.append(frame)
                size += math.inf if is_alone else length
            looked += 1
        for _ in range(looked):
            self._frames.popleft()
        return taken

    def lost(self, error: TransportError) -> None:
        listeners, self._listeners = self._listeners, {}
        self._frames.clear()
        self._sent.clear()
        for session, listener in listeners.items():
            listener.on_broken(session, str(error))


class ReadCall(ToldRead):
    """A read in progress. Its answers, at most ``bytes_max`` and one frame, wait for the caller that iterates, or are
    passed to the listener of :meth:`tell`. ``due`` is the loop's time at which the awaited answer is too late."""

    def __init__(self, stream: ReadStream, number: int, bytes_max: int, deadline_s: float) -> None:
        self._stream, self._number, self.deadline_s = stream, number, deadline_s
        self.room = bytes_max + FRAME_BYTES_MAX  # the last frame may exceed the limit
        self.due = math.inf
        self.answers: deque[ReadPart | ReadTrailer | BookKeeperError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._tell: ReadListener | None = None
        self._ended = False

    def tell(self, listener: ReadListener) -> None:
        self._tell = listener
        self._stream.wait(self, self.deadline_s)

    def put_off(self) -> None:
        """Give the bookie the time for another answer, if a listener waits for it."""
        if self._tell is not None:
            self.due = asyncio.get_running_loop().time() + self.deadline_s

    def put(self, frames: memoryview | None, end: ReadTrailer | BookKeeperError | None) -> None:
        """Pass on the frames that came, and the end of the answer, if they came."""
        if self._tell is not None:
            self._tell(frames, end)
            return
        if frames is not None:
            self.answers.append(ReadPart(frames))
        if end is not None:
            self.answers.append(end)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> ReadPart | ReadTrailer:
        """Return the next part, or the trailer. Raises TransportError, and RefusedError, with TIMEOUT after the
        deadline."""
        while not self.answers:
            self._waiter = asyncio.get_running_loop().create_future()
            self._stream.wait(self, self.deadline_s)
            try:
                await self._waiter
            finally:
                self._waiter, self.due = None, math.inf
        answer = self.answers.popleft()
        self._ended = not isinstance(answer, ReadPart)
        if isinstance(answer, BookKeeperError):
            raise answer
        return answer

    def __aiter__(self) -> ReadCall:
        return self

    async def __anext__(self) -> ReadPart | ReadTrailer:
        if self._ended:
            raise StopAsyncIteration
        return await self.next()

    async def aclose(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._stream.cancel(self._number)


class ReadStream(LaneStream):
    """The stream of the reads of one bookie."""

    method = "Read"
    requests = lane_pb2.ReadRequest
    answers = lane_pb2.ReadResponse
    gets_frames = True

    def __init__(self, said: lane_pb2.Hello) -> None:
        super().__init__(said)
        self._calls: dict[int, ReadCall] = {}
        self._number = 0
        self._requests: deque[lane_pb2.ReadRequest | bytes] = deque()
        """The requests that are to be sent. Those for whole entries are bytes already."""
        self._plain = lane_pb2.ReadRequest()  # is filled again for each of those, which costs less than making one
        self._cancelled: list[int] = []
        self._look_again: asyncio.TimerHandle | None = None
        self._looks_at = math.inf  # the loop's time of that timer
        self.permits: Permits | None = None

    def read(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
        fence_key: bytes | None,
        cut: Cut | None = None,
        ids_only: bool = False,
        deadline_s: float = math.inf,
    ) -> ReadCall:
        """Begin a read. ``deadline_s`` limits the wait for each part of the answer."""
        self._number += 1
        call = self._calls[self._number] = ReadCall(self, self._number, bytes_max or READ_BYTES_MAX, deadline_s)
        if fence_key is None and cut is None and not ids_only and self._spans is None and self.permits is None:
            plain = self._plain
            plain.id, plain.ledger_id, plain.bytes_max = self._number, ledger_id, bytes_max
            plain.first_entry_id, plain.last_entry_id = first, last
            self._requests.append(plain.SerializeToString())
            if len(self._requests) == 1:  # otherwise the lane was woken before, and will take all requests
                self.wake()
            return call
        request = lane_pb2.ReadRequest(
            id=self._number,
            ledger_id=ledger_id,
            first_entry_id=first,
            last_entry_id=last,
            bytes_max=bytes_max,
            ids_only=ids_only,
            **({} if cut is None else cut_to_proto(cut)),
        )
        if fence_key is not None:
            request.fence, request.ledger_key = True, fence_key
        if self._spans is not None:
            request.traceparent = self._spans.traceparent()
        if self.permits is None:
            self._requests.append(request)
            self.wake()
        else:
            self.permits.read(self, request)
        return call

    def ask(self, request: lane_pb2.ReadRequest, grant: bytes) -> None:
        """Send a read for which a grant was got, unless the read was cancelled."""
        if request.id in self._calls:
            if self.is_new(request.ledger_id, grant):
                request.grants.append(grant)
            self._requests.append(request)
            self.wake()

    def refuse(self, request: int, error: BookKeeperError) -> None:
        """Fail a read that gets no grant."""
        waits = self._calls.pop(request, None)
        if waits is not None:
            waits.put(None, error)

    def cancel(self, number: int) -> None:
        if self._calls.pop(number, None):
            self._cancelled.append(number)
            self.wake()

    def wait(self, call: ReadCall, deadline_s: float) -> None:
        """Note the time at which this call's next answer is too late. All calls share one timer, because most are
        answered in time."""
        if deadline_s < math.inf:
            call.due = due = asyncio.get_running_loop().time() + deadline_s
            if due < self._looks_at:
                self._look_at(due)

    def _look_at(self, due: float) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
        self._looks_at = due
        self._look_again = asyncio.get_running_loop().call_at(due, self._look_for_late) if due < math.inf else None

    def _look_for_late(self) -> None:
        now = asyncio.get_running_loop().time()
        for number, call in [(number, call) for number, call in self._calls.items() if call.due <= now]:
            self.cancel(number)
            call.put(None, too_late(self.bookie_id, call.deadline_s))
        self._look_at(min((call.due for call in self._calls.values()), default=math.inf))

    def take(self, answer: lane_pb2.ReadResponse, frames: memoryview | None) -> None:
        frames = frames or (memoryview(answer.frames) if answer.frames else None)
        number = answer.id
        call = self._calls.get(number)
        if call is None:
            return
        if frames:
            call.room -= len(frames)
            if call.room < 0:
                raise RemoteProtocolError("a bookie answers more than was asked for", value=f"bookie {self.bookie_id}")
        if answer.HasField("trailer"):
            del self._calls[number]
            trailer = answer.trailer
            if trailer.reason == lane_pb2.GRANT_NEEDED:
                self.distrusted()
            call.put(frames, _ending(trailer))
        elif frames:
            call.put_off()
            call.put(frames, None)

    def next_request(self) -> LaneMessage | None:
        if not (self._requests or self._cancelled):
            return None
        request = self._requests.popleft() if self._requests else lane_pb2.ReadRequest()
        if isinstance(request, bytes):
            return _new(LaneMessage, (request, ()))  # a cancel follows in a message of its own
        if not self.takes_cuts:
            for field in CUT_FIELDS:
                request.ClearField(field)
        if self._cancelled and not self._requests:  # a cancel is sent only after its read
            request.cancel.extend(self._cancelled)
            self._cancelled.clear()
        return LaneMessage(request.SerializeToString())

    def lost(self, error: TransportError) -> None:
        calls, self._calls = self._calls, {}
        self._look_at(math.inf)
        for call in calls.values():
            call.put(None, error)


class ControlStream(LaneStream):
    """The stream of the control calls to one bookie: fences, reads, writes and watches of the LAC, and deletion
    hints."""

    method = "Control"
    requests = lane_pb2.ControlRequest
    answers = lane_pb2.ControlResponse

    def __init__(self, said: lane_pb2.Hello) -> None:
        super().__init__(said)
        self._calls: dict[int, asyncio.Future[lane_pb2.ControlResponse]] = {}
        self._number = 0
        self._requests: deque[lane_pb2.ControlRequest] = deque()

    async def call(
        self, request: lane_pb2.ControlRequest, deadline_s: float, ledger_id: LedgerId = NO_LEDGER, grant: bytes = b""
    ) -> lane_pb2.ControlResponse:
        """Send a request and return its answer. Raises TransportError, and RefusedError, with TIMEOUT after
        ``deadline_s``."""
        if self.is_new(ledger_id, grant):
            request.grants.append(grant)
        self._number += 1
        number = request.id = self._number
        if self._spans is not None:
            request.traceparent = self._spans.traceparent()
        answer: asyncio.Future[lane_pb2.ControlResponse] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        self._requests.append(request)
        self.wake()
        try:
            async with asyncio.timeout(deadline_s):
                response = await answer
        except TimeoutError as error:
            raise too_late(self.bookie_id, deadline_s) from error
        finally:
            if self._calls.pop(number, None):
                self._cancel(number)
        reason = reason_of(int(response.reason))
        if reason is Reason.GRANT_NEEDED:
            self.distrusted()
        if reason:
            raise RefusedError(reason, response.message or reason.name, value=f"bookie {self.bookie_id}")
        return response

    def tell(self, request: lane_pb2.ControlRequest, ledger_id: LedgerId = NO_LEDGER, grant: bytes = b"") -> None:
        """Send a request without waiting for its answer. It is dropped if TOLD_MAX requests wait to be sent."""
        if len(self._requests) < TOLD_MAX:
            if self.is_new(ledger_id, grant):
                request.grants.append(grant)
            self._number += 1
            request.id = self._number
            self._requests.append(request)
            self.wake()

    def _cancel(self, number: int) -> None:
        if self.broken is None:
            self._requests.append(lane_pb2.ControlRequest(cancel=lane_pb2.CancelRequest(id=number)))
            self.wake()

    def take(self, answer: lane_pb2.ControlResponse, frames: memoryview | None) -> None:
        call = self._calls.pop(answer.id, None)
        if call and not call.done():
            call.set_result(answer)

    def next_request(self) -> LaneMessage | None:
        return LaneMessage(self._requests.popleft().SerializeToString()) if self._requests else None

    def lost(self, error: TransportError) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(error)


def _insecure(bookie_id: BookieId) -> InsecureBookieError:
    return InsecureBookieError(
        f"bookie {bookie_id} checks no rights, and this client must use secure bookies only",
        value="security=secure",
        remedy='give the bookie security = "secure", or this client security=open',
    )


def too_late(bookie_id: BookieId, deadline_s: float) -> RefusedError:
    return RefusedError(Reason.TIMEOUT, f"bookie {bookie_id} did not answer in {deadline_s:g} s")


def _ending(trailer: lane_pb2.ReadTrailer) -> ReadTrailer | RefusedError:
    if trailer.reason:
        reason = reason_of(int(trailer.reason))
        return RefusedError(reason, trailer.message or reason.name)
    return trailer_from_proto(trailer)
