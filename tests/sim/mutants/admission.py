# SPDX-License-Identifier: Apache-2.0
"""Known defects of admission: what takes all the room there is, or has no bound."""

from __future__ import annotations

from typing import Any

from bookie_server.machine.adds import Adds
from bookie_server.machine.lac import Lacs
from bookie_server.machine.reads import Reads
from bookie_server.machine.requests import Requests
from bookie_server.machine.state import Flight
from bookie_server.machine.turns import FairQueue, Turns
from tests.sim.mutants.mutant import Mutants

MUTANTS = Mutants()


@MUTANTS.instead(Adds, "__init__", "recovery shares the room of normal adds", "L3")
def recovery_shares_the_room(begin: Any, self: Adds, *args: Any) -> None:
    begin(self, *args)
    self.recovery = self.normal


@MUTANTS.instead(Adds, "__init__", "recovery has no bound", "L3")
def recovery_has_no_bound(begin: Any, self: Adds, *args: Any) -> None:
    begin(self, *args)
    self.recovery = Flight(1 << 62, 1 << 62)


@MUTANTS.instead(Adds, "_is_too_much", "recovering streams are paused for others", "L3")
def recovering_streams_are_paused_for_others(_: Any, self: Adds, stream: Any) -> bool:
    return stream.pending_bytes > self._core.limits.stream_bytes_max or self.normal.full()


@MUTANTS.instead(Adds, "_is_too_much", "streams have no bound", "L3")
def streams_have_no_bound(_: Any, self: Adds, stream: Any) -> bool:
    return (self.recovery if stream.recovering else self.normal).full()


@MUTANTS.instead(Adds, "close", "streams that are gone wait on", "L3")
def streams_that_are_gone_wait_on(close: Any, self: Adds, stream_id: int) -> None:
    stream = self._streams.get(stream_id)
    if stream:
        self.normal.waiting += sum(message.frames.nbytes for message in stream.waiting)
    close(self, stream_id)


@MUTANTS.instead(Adds, "attach", "sessions have no bound", "I13")
def sessions_have_no_bound(attach: Any, self: Adds, event: Any) -> None:
    self._sessions, kept = 0, self._sessions
    attach(self, event)
    self._sessions += kept


@MUTANTS.instead(Lacs, "_persist", "LACs do not wait for the log", "P9")
def lacs_do_not_wait_for_the_log(persist: Any, self: Lacs) -> None:
    self._given.clear()
    persist(self)


def _pop_first(self: FairQueue[Any], line: Any, stream: int) -> Any:
    things = line[stream]
    thing = things.popleft()
    if not things:
        del line[stream]
    return thing


@MUTANTS.instead(FairQueue, "put", "first come, first served", "L3", (FairQueue, "_pop", _pop_first))
def first_come_first_served(put: Any, self: FairQueue[Any], stream: int, thing: Any, *, urgent: bool) -> None:
    """One line for all streams: who asks for most gets most."""
    put(self, thing.stream, thing, urgent=urgent)


@MUTANTS.instead(Reads, "_take_turn", "who reads goes on reading", "L3")
def who_reads_goes_on_reading(take: Any, self: Reads, request: Any) -> bool:
    """The next part of an answer takes the room of the last one before anybody else may have it."""
    if not request.turn and self.turns.may(request.stream, request.fencing):
        self._waiting.remove(request.stream, request)
        request.turn, request.waiting = True, False
        self.turns.take(request.stream)
    return take(self, request)


@MUTANTS.instead(FairQueue, "put", "nothing is urgent", "L3")
def nothing_is_urgent(put: Any, self: FairQueue[Any], stream: int, thing: Any, *, urgent: bool) -> None:
    put(self, stream, thing, urgent=False)


@MUTANTS.instead(FairQueue, "take", "urgent ones always first", "L3")
def urgent_ones_always_first(take: Any, self: FairQueue[Any], may: Any) -> Any:
    self._in_a_row = 0
    return take(self, may)


@MUTANTS.instead(Turns, "_is_full", "no room is kept for recovery", "L3")
def no_room_is_kept_for_recovery(full: Any, self: Any, urgent: Any, further: Any = False) -> Any:
    return full(self, True, further=further)


@MUTANTS.instead(Turns, "may", "one stream may take all turns", "L3")
def one_stream_may_take_all_turns(_: Any, self: Turns, stream: int | None, urgent: bool) -> bool:
    return self._active - self._parts < self._unread_max and not self._is_full(urgent)


@MUTANTS.instead(Turns, "fill", "bytes of parts are not counted", "I13")
def bytes_of_parts_are_not_counted(fill: Any, self: Any, request: Any, size: Any) -> Any:
    return fill(self, request, 0)


@MUTANTS.instead(Turns, "to_end", "slow readers are ended at once", "L3")
def slow_readers_are_ended_at_once(_: Any, self: Turns, waiting: Any) -> int | None:
    stream = next(iter(self.stalled), None)
    if stream is not None:
        del self.stalled[stream]
    return stream


@MUTANTS.instead(Turns, "sent", "once slow, always slow", "L3")
def once_slow_always_slow(sent: Any, self: Turns, request: Any) -> bool:
    stalled = dict(self.stalled)
    try:
        return sent(self, request)
    finally:
        self.stalled = stalled


@MUTANTS.instead(Requests, "_ask", "the storage is asked for everything", "L3")
def storage_is_asked_for_everything(_: Any, self: Requests, request: Any, effect: Any) -> None:
    self._send(effect)


@MUTANTS.instead(Requests, "_answered", "answers to nobody are not counted", "L3")
def answers_to_nobody_are_not_counted(answered: Any, self: Requests, request_id: Any) -> None:
    if request_id in self._by_id:
        answered(self, request_id)


@MUTANTS.instead(Requests, "_under_way_of", "who has few is refused for others", "L3")
def who_has_few_is_refused_for_others(under_way: Any, self: Any, stream: Any) -> Any:
    return under_way(self, stream) + 16


MUTANTS.add(
    "frames are not counted", "I13",
    (Flight, "full", lambda self: self.bytes > self.bytes_max),
    (Flight, "refuses", lambda self: self.bytes > 2 * self.bytes_max),
)  # fmt: skip
MUTANTS.add("nothing is refused", "I13", (Flight, "refuses", lambda self: False))
MUTANTS.add("nobody waits for room", "L3", (Flight, "holds_up", lambda self: False))
MUTANTS.add("any number wait for room", "I13", (Flight, "holds_up", Flight.full))
MUTANTS.add("streams stay paused", "L3", (Adds, "_resume", lambda self: None))
MUTANTS.add("messages are kept whole for a part", "I13", (Adds, "_let_go", lambda self, message: None))
MUTANTS.add("slow readers keep their room", "L3", (Turns, "stall", lambda self, stream: None))
MUTANTS.add("cancelled ones wait on", "I13", (FairQueue, "remove", lambda self, stream, thing: None))
MUTANTS.add("requests of a stream have no bound", "I13", (Requests, "_pause", lambda self, stream: None))
MUTANTS.add("paused for ever", "L3", (Requests, "_resume", lambda self, stream: None))
MUTANTS.add("watches of a stream have no bound", "I13", (Requests, "too_many_watches", lambda self, stream: None))
