# SPDX-License-Identifier: Apache-2.0
"""Drives the bookie's machine on one loop. Each data directory has threads of its own (``log_driver.py``).

The loop owns the machine and the indexes (RULES S10: storage itself starts no threads). Effects are carried out in
order; an event that arises meanwhile is queued. The log answers every group of frames with one event, GroupCommitted or
CommitFailed. A failed sync of one log ends the whole bookie (S6); after a restart the bookie serves the data that can
still be read.
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
    | events.SendEntries
    | events.SendTrailer
    | events.SendLac
    | events.SendReply
)


class StreamSink(Protocol):
    """A stream of a lane, as the engine sees it."""

    def deliver(self, effect: StreamEffect) -> None:
        """Queue this effect. Must not block. Events that it feeds to the engine are handled after this step."""
        ...

    def leave(self) -> None:
        """Send the queued effects. The engine calls this once it has delivered all answers of a commit, or to the reads
        that a connection received at once. Effects delivered at other times are sent when the stream wakes its writer,
        at the end of a turn of the loop."""
        ...


class BookieEngine:
    """Runs a machine over these logs; a log's number is its place in ``logs``. Made, started and stopped on the loop.

    ``on_failed`` is called once, with the error that ends this bookie: StorageFailedError after a failed sync (RULES
    S6), or LocalProtocolError for a bug in the machine, whose state cannot be trusted afterwards. Nothing is answered
    after it. ``on_hint`` is called with ledgers that a client reports as deleted, and ``on_segment`` when a segment was
    begun. ``on_no_space`` is called with the number of a log that had no room for a group, before the machine gets the
    failure. None of these may block.
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
        self._answered: dict[StreamSink, None] = {}  # sinks that got answers since the gathering began
        self.gathers_answers = False
        """Whether the effects delivered now are answers of a commit, or to what a connection received at once: then the
        engine calls :meth:`~StreamSink.leave` afterwards."""
        self._broken = self._failed = False
        self._in_burst = False
        self._at_turn_end: list[Callable[[], None]] = []
        self._at_burst_end: Callable[[], None] | None = None
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
        """Register a stream, and return a name for it that is never used again."""
        self._streams_opened += 1
        self._streams[self._streams_opened] = sink
        return self._streams_opened

    def close_stream(self, stream: events.StreamId) -> None:
        """Remove a stream that is gone; its sink gets nothing more."""
        if self._streams.pop(stream, None):
            self.feed(events.StreamClosed(stream))

    def feed(self, event: events.Event) -> None:
        """Pass an event to the machine and carry out the effects."""
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
        """The drivers of the logs, for metrics."""
        return self._logs

    @property
    def streams(self) -> int:
        return len(self._streams)

    def numbers(self) -> MachineNumbers:
        """Return the amounts that the machine holds and its counters, for metrics. Any thread may call."""
        return self._machine.numbers()

    def frames_of(self, stream: events.StreamId) -> int:
        """Return the number of frames of a stream that the machine has taken so far. Messages that wait for room do not
        count."""
        return self._machine.frames_of(stream)

    def burst(self, take: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``take``, which feeds everything that a connection received at once. If no other connection received
        anything in this turn of the loop, the frames of the burst are committed here, without waiting for the next
        turn."""
        self._in_burst = True
        try:
            return take(*args, **kwargs)
        finally:
            if self._at_burst_end is not None:
                self._end_burst()
            self._in_burst = False
            if self._at_turn_end:
                self._end_turn()

    def _end_burst(self) -> None:
        call, self._at_burst_end = self._at_burst_end, None
        assert call is not None
        try:
            self._answer(call)
        except Exception:  # a bug in one stream must not end its connection without a word
            logger.exception("the requests of a burst could not be handled")

    def _end_turn(self) -> None:
        calls, self._at_turn_end = self._at_turn_end, []
        alone = self._turn is not None and self._turn.found <= 1
        for call in calls:
            if not alone:
                self._loop.call_soon(call)
                continue
            try:
                call()
            except Exception:  # a bug in one log must end neither the others nor the connection
                logger.exception("a commit at the end of a burst failed")

    def at_burst_end(self, call: Callable[[], None]) -> None:
        """Make a call once the connection has handed over everything that it received at once, or now if it cannot
        tell. Only one call of a burst is remembered, because a burst is of one stream."""
        if self._in_burst:
            self._at_burst_end = call
        else:
            call()

    def at_turn_end(self, call: Callable[[], None]) -> None:
        """Make a call once the loop has handled everything that came in this turn."""
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
        """Drop the queued frames of all logs, for good."""
        for each in self._logs:
            each.committer.drop(resume=False)

    # --- effects ---

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Commit():
                self._logs[effect.log].committer.put(effect.frames, effect.headers, reserve=effect.reserve)
            case events.SendAcks() | events.SendEntries():
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
            if self.gathers_answers:
                self._answered[sink] = None

    def _fire(self, timer: events.TimerId) -> None:
        self._timers.pop(timer, None)
        self.feed(events.TimerFired(timer))

    # --- for the logs ---

    def committed(self, number: int, places: Sequence[Place], group_bytes: int = 0) -> None:
        """Report to the machine that a group of this log is durable; ``group_bytes`` is the maximum size of the next
        group. This does nothing if another log has failed, because the machine has given the group up."""
        if self._failed:
            return
        self._answer(lambda: self.feed(events.GroupCommitted(places, number, group_bytes)))
        if places and places[-1].generation != self._newest_generations[number]:
            self._newest_generations[number] = places[-1].generation
            self._on_segment()

    def _answer(self, call: Callable[[], None]) -> None:
        """Make a call, and let the streams send the answers that were delivered meanwhile."""
        self.gathers_answers = True
        try:
            call()
        finally:
            self.gathers_answers = False
        answered, self._answered = self._answered, {}
        for sink in answered:
            try:
                sink.leave()
            except Exception:  # a bug in one stream must not hold up the answers of the others
                logger.exception("answers could not be sent")

    def commit_failed(self, number: int, error: BookKeeperError) -> None:
        """Report to the machine that this log failed. A StorageFailedError ends the bookie. A DataDirectoryError means
        that a group had no room."""
        if self._failed:
            return  # another thread has reported it
        self._failed = final = not isinstance(error, DataDirectoryError)
        reason = Reason.STORAGE_FAILED if final else Reason.NO_SPACE
        logger.error("a group commit failed: %s", error)
        if final:
            self._end_commits()
        else:
            self._on_no_space(number)
            self._logs[number].hurry()
            self._logs[number].committer.drop(resume=True)  # last: frames that the machine adds after this are written
        self.feed(events.CommitFailed(reason, error.what, final, number))
        if final:
            self._on_failed(error)
