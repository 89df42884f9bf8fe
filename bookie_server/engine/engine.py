# SPDX-License-Identifier: Apache-2.0
"""Drives the bookie's machine on one loop. Each data directory has threads of its own (``log_driver.py``).

The loop owns the machine and the indexes (RULES S10: storage itself starts no threads). Effects are carried out in
order; an event that arises meanwhile is queued. Every group of frames given to a log is answered by one event,
GroupCommitted or CommitFailed. A failed sync of one log ends the whole bookie (S6); a restart serves what can still be
served.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar

from bk_core.errors import BookKeeperError, DataDirectoryError, LocalProtocolError
from bk_core.model import LedgerId
from bk_core.observe.slow_log import SlowLog
from bk_core.wire.lane.reasons import Reason
from bookie_server.engine.log_driver import LogDriver, OpenLog
from bookie_server.engine.loop import BookieLoop
from bookie_server.machine import events
from bookie_server.machine.disk_places import Place
from bookie_server.machine.machine import BookieMachine, MachineNumbers

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

StreamEffect = (
    events.SendAcks
    | events.CloseStream
    | events.PauseStream
    | events.ResumeStream
    | events.SendPart
    | events.SendTrailer
    | events.SendLac
    | events.SendReply
)


class StreamSink(Protocol):
    """A stream of a lane, as the engine sees it."""

    def deliver(self, effect: StreamEffect) -> None:
        """Queue this effect. Must not block; what it feeds the engine is taken after this step."""
        ...

    def leave(self) -> None:
        """A commit has ended, and all that it answers was delivered: it may leave now. Else it leaves when the stream
        wakes its writer, at the end of a turn."""
        ...


class BookieEngine:
    """Runs a machine over these logs; a log's number is its place in ``logs``. Made, started and stopped on the loop.

    ``on_failed`` hears once of the error that ends this bookie: StorageFailedError after a failed sync (RULES S6), or
    LocalProtocolError for a bug in the machine, whose state cannot be trusted any more. Nothing is answered after it.
    ``on_hint`` hears of ledgers that a client calls deleted, and ``on_segment`` that a segment was begun.
    ``on_no_space`` hears the number of a log that had no room for a group, before the machine hears of it. None of
    these may block.
    """

    def __init__(
        self,
        machine: BookieMachine,
        logs: Sequence[OpenLog],
        *,
        group_bytes_max: int,
        group_frames_max: int,
        on_failed: Callable[[BookKeeperError], None],
        on_hint: Callable[[Sequence[LedgerId]], None] = lambda _: None,
        on_segment: Callable[[], None] = lambda: None,
        on_no_space: Callable[[int], None] = lambda _: None,
        slow: SlowLog | None = None,
    ) -> None:
        self._machine = machine
        self._loop = asyncio.get_running_loop()
        self._streams: dict[events.StreamId, StreamSink] = {}
        self._streams_opened = 0
        self._events: deque[events.Event] = deque()
        self.taken: defaultdict[type[events.Event], int] = defaultdict(int)
        self._stepping = False
        self._answered: dict[StreamSink, None] = {}  # by the commit that is told
        self.tells_a_commit = False
        """Whether the streams to which something is delivered now are told to :meth:`~StreamSink.leave` at once."""
        self._broken = self._failed = False
        self._in_burst = False
        self._at_turn_end: list[Callable[[], None]] = []
        self._turn = self._loop.turn if isinstance(self._loop, BookieLoop) else None
        self._timers: dict[events.TimerId, asyncio.TimerHandle] = {}
        self._on_failed, self._on_hint = on_failed, on_hint
        self.slow = slow or SlowLog(logger, 0)
        self._on_segment, self._on_no_space = on_segment, on_no_space
        self._newest_generations = [0] * len(logs)
        self._logs = tuple(
            LogDriver(
                number, each, self, group_bytes_max=group_bytes_max, group_frames_max=group_frames_max, slow=self.slow
            )
            for number, each in enumerate(logs)
        )

    # --- for services ---

    def open_stream(self, sink: StreamSink) -> events.StreamId:
        """Returns a name for the stream that is never used again."""
        self._streams_opened += 1
        self._streams[self._streams_opened] = sink
        return self._streams_opened

    def close_stream(self, stream: events.StreamId) -> None:
        """The stream is gone; its sink gets nothing more."""
        if self._streams.pop(stream, None):
            self.feed(events.StreamClosed(stream))

    def feed(self, event: events.Event) -> None:
        """Give the machine an event and carry out its effects."""
        if self._stepping:
            self._events.append(event)
            return
        self._stepping = True
        try:
            while not self._broken:
                self.taken[type(event)] += 1
                for effect in self._machine.step(event):
                    self._carry_out(effect)
                if not self._events:
                    break
                event = self._events.popleft()
        except Exception as error:
            logger.critical("the machine failed on %s", type(event).__name__, exc_info=True)
            self._broken = True
            self._end_commits()
            self._on_failed(LocalProtocolError("the bookie's machine failed", value=repr(error)))
        finally:
            self._stepping = False

    @property
    def logs(self) -> tuple[LogDriver, ...]:
        """For metrics, as ``numbers``; ``taken`` counts the machine's events by kind."""
        return self._logs

    @property
    def streams(self) -> int:
        return len(self._streams)

    def numbers(self) -> MachineNumbers:
        """What the machine holds and counts. Any thread."""
        return self._machine.numbers()

    def frames_of(self, stream: events.StreamId) -> int:
        """How many frames a stream has brought so far, as far as the machine had room to look at them."""
        return self._machine.frames_of(stream)

    def burst(self, take: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``take``, which feeds all that a connection received at once. Where nothing else came in this turn of
        the loop, the turn ends with the burst: what the burst gave to a log is committed here, without another
        turn."""
        self._in_burst = True
        try:
            return take(*args, **kwargs)
        finally:
            self._in_burst = False
            if self._at_turn_end:
                self._end_turn()

    def _end_turn(self) -> None:
        calls, self._at_turn_end = self._at_turn_end, []
        alone = self._turn is not None and self._turn.found <= 1
        for call in calls:
            if not alone:
                self._loop.call_soon(call)
                continue
            try:
                call()
            except Exception:  # a bug, of one log: the others are looked after, and the connection is not to blame
                logger.exception("a commit at the end of a burst failed")

    def at_turn_end(self, call: Callable[[], None]) -> None:
        """Have a call made once the loop has taken all that came in this turn."""
        if self._in_burst:
            self._at_turn_end.append(call)
        else:
            self._loop.call_soon(call)

    def end_streams(self, message: str) -> None:
        """End every stream once its queued answers have been written."""
        for stream, sink in list(self._streams.items()):
            sink.deliver(events.CloseStream(stream, message))

    async def stop(self) -> None:
        """Make accepted frames durable, record the position and end the threads. Nothing is answered afterwards."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._loop.run_in_executor(None, self._stop_threads)

    def _stop_threads(self) -> None:
        for each in self._logs:
            each.stop()

    def _end_commits(self) -> None:
        """No log writes its queued frames any more."""
        for each in self._logs:
            each.committer.drop(resume=False)

    # --- effects ---

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Commit():
                self._logs[effect.log].committer.put(effect.frames, effect.headers, reserve=effect.reserve)
            case events.SendAcks():
                self._deliver(effect, effect.stream)
            case events.ReadFrames() | events.ReadMemberships():
                self._logs[effect.log].read(effect)
            case events.SetTimer(timer, delay_ms):
                self._timers[timer] = self._loop.call_later(delay_ms / 1000, self._fire, timer)
            case events.CancelTimer(timer):
                handle = self._timers.pop(timer, None)
                if handle:
                    handle.cancel()
            case events.LookForDeletion(ledger_ids):
                self._on_hint(ledger_ids)
            case events.CloseStream() | events.PauseStream() | events.ResumeStream():
                self._deliver(effect, effect.stream)
            case _:
                self._deliver(effect, effect.request[0])

    def _deliver(self, effect: StreamEffect, stream: events.StreamId) -> None:
        sink = self._streams.get(stream)
        if sink:
            sink.deliver(effect)
            if self.tells_a_commit:
                self._answered[sink] = None

    def _fire(self, timer: events.TimerId) -> None:
        self._timers.pop(timer, None)
        self.feed(events.TimerFired(timer))

    # --- for the logs ---

    def committed(self, number: int, places: Sequence[Place], group_bytes: int = 0) -> None:
        """A group of this log is durable; the next may have ``group_bytes``. Ignored if another log has failed, because
        the machine has given the group up."""
        if self._failed:
            return
        self.tells_a_commit = True
        self.feed(events.GroupCommitted(places, number, group_bytes))
        self.tells_a_commit = False
        answered, self._answered = self._answered, {}
        for sink in answered:
            try:
                sink.leave()
            except Exception:  # a bug, of one stream: the others have answers, too
                logger.exception("what a commit answers could not leave")
        if places and places[-1].generation != self._newest_generations[number]:
            self._newest_generations[number] = places[-1].generation
            self._on_segment()

    def commit_failed(self, number: int, error: BookKeeperError) -> None:
        """This log failed: with StorageFailedError, which ends the bookie, or with DataDirectoryError for a group
        without room."""
        if self._failed:
            return  # another thread has told it
        self._failed = final = not isinstance(error, DataDirectoryError)
        reason = Reason.STORAGE_FAILED if final else Reason.NO_SPACE
        logger.error("a group commit failed: %s", error)
        if final:
            self._end_commits()
        else:
            self._on_no_space(number)
            self._logs[number].hurry()
            self._logs[number].committer.drop(resume=True)  # last: what it gives the log from here on is written
        self.feed(events.CommitFailed(reason, error.what, final, number))
        if final:
            self._on_failed(error)
