# SPDX-License-Identifier: Apache-2.0
"""The driver of the bookie's machine: one loop, one commit thread, one reader thread, one for maintenance.

The loop owns the machine and the index; the commit thread owns the segment log, the maintenance thread its spares and
full segments and all that is done in the background; the reader thread owns the segment reader (RULES S10). Events come
in on the loop, effects are carried out in order, and an event that arises meanwhile waits its turn. Every frame given
to the commit thread is answered by one event, GroupCommitted or CommitFailed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from bk_core.errors import BookKeeperError, DataDirectoryError, LocalProtocolError
from bk_core.model import LedgerId
from bk_core.wire.lane import Reason
from bookie_server import machine_events as events
from bookie_server.committer import Committer
from bookie_server.holdings import answer_read
from bookie_server.index_hop import DEADLINE_S, copier, wait_for
from bookie_server.machine import BookieMachine
from bookie_server.maintenance import MaintenanceThread
from bookie_server.storage.commit import SegmentLog
from bookie_server.storage.compaction import Copy
from bookie_server.storage.maintaining import DirectoryMaintenance
from bookie_server.storage.reader import SegmentReader
from bookie_server.storage.segment import Place
from bookie_server.storage.storage_stats import StorageStats

log = logging.getLogger(__name__)

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


Maintain = Callable[[Copy, Callable[[int], None]], DirectoryMaintenance]
"""Makes the maintenance of a log, given what writes copies to it, and what waits until no read that was planned so far
is under way and closes what is open of a segment."""


class StreamSink(Protocol):
    """A stream of a lane, as the engine sees it."""

    def deliver(self, effect: StreamEffect) -> None:
        """Carry this out later; must not block nor call back before it returns."""
        ...


class BookieEngine:
    """Runs a machine. Made, started and stopped on the loop.

    ``on_failed`` hears once of what ends this bookie: StorageFailedError after a failed sync (RULES S6), or
    LocalProtocolError for a bug in the machine, whose state is then not to be trusted. Nothing is answered after it.
    ``on_hint`` hears of ledgers that somebody says were deleted; ``on_segment`` that a segment was begun;
    ``on_no_space`` of a group that the disk had no room for, before the machine does. None of them may block.
    """

    def __init__(
        self,
        machine: BookieMachine,
        log_: SegmentLog,
        reader: SegmentReader,
        maintain: Maintain,
        *,
        group_bytes_max: int,
        group_frames_max: int,
        on_failed: Callable[[BookKeeperError], None],
        on_hint: Callable[[Sequence[LedgerId]], None] = lambda _: None,
        on_segment: Callable[[], None] = lambda: None,
        on_no_space: Callable[[], None] = lambda: None,
    ) -> None:
        self._machine = machine
        self._loop = asyncio.get_running_loop()
        self._streams: dict[events.StreamId, StreamSink] = {}
        self._streams_opened = 0
        self._events: deque[events.Event] = deque()
        self._stepping = False
        self._broken = self._failed = False
        self._timers: dict[events.TimerId, asyncio.TimerHandle] = {}
        self._on_failed, self._on_hint = on_failed, on_hint
        self._on_segment, self._on_no_space = on_segment, on_no_space
        self._newest_generation = 0
        self._log = log_
        self._reader = _Reader(reader, self._loop, self.feed)
        maintenance = maintain(copier(lambda frames, counters: self._committer.copy(frames, counters)), self._release)
        self._maintenance = MaintenanceThread(maintenance, self._loop, self._commit_failed)
        self._committer = Committer(
            log_, self._loop, self._committed, self._commit_failed, group_bytes_max, group_frames_max,
            self._maintenance.look,
        )  # fmt: skip
        self._maintenance.start()

    def storage_stats(self) -> StorageStats:
        """The numbers of the data directory."""
        return self._maintenance.stats()

    # --- for services ---

    def open_stream(self, sink: StreamSink) -> events.StreamId:
        """A name for a stream, never used twice."""
        self._streams_opened += 1
        self._streams[self._streams_opened] = sink
        return self._streams_opened

    def close_stream(self, stream: events.StreamId) -> None:
        """The stream is gone; nothing more is delivered to its sink."""
        if self._streams.pop(stream, None):
            self.feed(events.StreamClosed(stream))

    def feed(self, event: events.Event) -> None:
        """Give the machine an event and carry out what it wants."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events and not self._broken:
                event = self._events.popleft()
                for effect in self._machine.step(event):
                    self._carry_out(effect)
        except Exception as error:
            log.critical("the machine failed on %s", type(event).__name__, exc_info=True)
            self._broken = True
            self._committer.drop(resume=False)
            self._on_failed(LocalProtocolError("the bookie's machine failed", value=repr(error)))
        finally:
            self._stepping = False

    def end_streams(self, message: str) -> None:
        """Have every stream end once what is ready for it has been written."""
        for stream, sink in list(self._streams.items()):
            sink.deliver(events.CloseStream(stream, message))

    async def stop(self) -> None:
        """Make durable what was taken, record the position, end the threads. Nothing is answered afterwards."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._loop.run_in_executor(None, self._stop_threads)

    def _stop_threads(self) -> None:
        self._committer.stop()
        self._log.release_full()
        self._maintenance.stop()
        try:
            self._log.close()
        except BookKeeperError as error:
            log.error("the log could not be closed: %s", error)
        self._reader.stop()

    # --- effects ---

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Commit(frames, reserve):
                self._committer.put(frames, reserve=reserve)
            case events.ReadFrames() | events.ReadMemberships():
                self._reader.put(effect)
            case events.SetTimer(timer, delay_ms):
                self._timers[timer] = self._loop.call_later(delay_ms / 1000, self._fire, timer)
            case events.CancelTimer(timer):
                handle = self._timers.pop(timer, None)
                if handle:
                    handle.cancel()
            case events.LookForDeletion(ledger_ids):
                self._on_hint(ledger_ids)
            case _:
                self._deliver(effect)

    def _deliver(self, effect: StreamEffect) -> None:
        match effect:
            case (
                events.SendAcks(stream=stream)
                | events.CloseStream(stream=stream)
                | events.PauseStream(stream=stream)
                | events.ResumeStream(stream=stream)
            ):
                sink = self._streams.get(stream)
            case _:
                sink = self._streams.get(effect.request[0])
        if sink:
            sink.deliver(effect)

    def _fire(self, timer: events.TimerId) -> None:
        self._timers.pop(timer, None)
        self.feed(events.TimerFired(timer))

    # --- the log ---

    def _committed(self, places: Sequence[Place]) -> None:
        self.feed(events.GroupCommitted(places))
        if places and places[-1].generation != self._newest_generation:
            self._newest_generation = places[-1].generation
            self._on_segment()

    def _release(self, generation: int) -> None:
        """On the maintenance thread, when the index names the segment no more: a plan is read at once, so that every
        read which may name it stands in the reader's queue by now."""
        wait_for(self._reader.release(generation), DEADLINE_S, "the reader thread")

    def _commit_failed(self, error: BookKeeperError) -> None:
        final = not isinstance(error, DataDirectoryError)
        if self._failed:
            return  # another thread has told it
        self._failed = final
        reason = Reason.STORAGE_FAILED if final else Reason.NO_SPACE
        log.error("a group commit failed: %s", error)
        self._committer.drop(resume=not final)
        if not final:
            self._on_no_space()
            self._maintenance.hurry()
        self.feed(events.CommitFailed(reason, error.what, final))
        if final:
            self._on_failed(error)


@dataclass(frozen=True, slots=True, eq=False)
class _Release:
    generation: int
    done: Future[None]


class _Reader:
    """The reader thread: answers ReadFrames and ReadMemberships in order."""

    def __init__(
        self, reader: SegmentReader, loop: asyncio.AbstractEventLoop, feed: Callable[[events.Event], None]
    ) -> None:
        self._reader, self._loop, self._feed = reader, loop, feed
        self._work: SimpleQueue[events.ReadFrames | events.ReadMemberships | _Release | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bookie-read", daemon=True)
        self._thread.start()

    def put(self, effect: events.ReadFrames | events.ReadMemberships) -> None:
        self._work.put(effect)

    def release(self, generation: int) -> Future[None]:
        """Close what is open of a segment, behind all reads that are queued. Any thread."""
        release = _Release(generation, Future())
        self._work.put(release)
        return release.done

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while effect := self._work.get():
            if isinstance(effect, _Release):
                if effect.done.set_running_or_notify_cancel():
                    self._reader.release(effect.generation)
                    effect.done.set_result(None)
                continue
            event = answer_read(self._reader, effect)
            try:
                self._loop.call_soon_threadsafe(self._feed, event)
            except RuntimeError:  # the loop is closed
                break
        self._reader.close()
