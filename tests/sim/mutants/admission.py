# SPDX-License-Identifier: Apache-2.0
"""Known defects of admission, put back while a context lasts: what takes all the room there is, or has no bound."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from bookie_server.machine.adds import Adds
from bookie_server.machine.lac import Lacs
from bookie_server.machine.reads import Reads
from bookie_server.machine.requests import Requests
from bookie_server.machine.state import Flight
from bookie_server.machine.turns import FairQueue, Turns
from tests.sim.mutants.exhaustive import patched

Planted = Callable[[], AbstractContextManager[None]]

_begin, _attach, _close, _put = Adds.__init__, Adds.attach, Adds.close, FairQueue.put


def recovery_shares_the_room() -> AbstractContextManager[None]:
    def mutant(self: Adds, *args: Any) -> None:
        _begin(self, *args)
        self.recovery = self.normal

    return patched((Adds, "__init__", mutant))


def recovery_has_no_bound() -> AbstractContextManager[None]:
    def mutant(self: Adds, *args: Any) -> None:
        _begin(self, *args)
        self.recovery = Flight(1 << 62, 1 << 62)

    return patched((Adds, "__init__", mutant))


def recovering_streams_are_paused_for_others() -> AbstractContextManager[None]:
    def mutant(self: Adds, stream: Any) -> bool:
        return stream.pending_bytes > self._core.limits.stream_bytes_max or self.normal.full()

    return patched((Adds, "_is_too_much", mutant))


def streams_have_no_bound() -> AbstractContextManager[None]:
    def mutant(self: Adds, stream: Any) -> bool:
        return (self.recovery if stream.recovering else self.normal).full()

    return patched((Adds, "_is_too_much", mutant))


def frames_are_not_counted() -> AbstractContextManager[None]:
    return patched(
        (Flight, "full", lambda self: self.bytes > self.bytes_max),
        (Flight, "refuses", lambda self: self.bytes > 2 * self.bytes_max),
    )


def nothing_is_refused() -> AbstractContextManager[None]:
    return patched((Flight, "refuses", lambda self: False))


def nobody_waits_for_room() -> AbstractContextManager[None]:
    return patched((Flight, "holds_up", lambda self: False))


def any_number_wait_for_room() -> AbstractContextManager[None]:
    return patched((Flight, "holds_up", Flight.full))


def streams_that_are_gone_wait_on() -> AbstractContextManager[None]:
    def mutant(self: Adds, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream:
            self.normal.waiting += sum(message.frames.nbytes for message in stream.waiting)
        _close(self, stream_id)

    return patched((Adds, "close", mutant))


def streams_stay_paused() -> AbstractContextManager[None]:
    return patched((Adds, "_resume", lambda self: None))


def messages_are_kept_whole() -> AbstractContextManager[None]:
    return patched((Adds, "_let_go", lambda self, message: None))


def sessions_have_no_bound() -> AbstractContextManager[None]:
    def mutant(self: Adds, event: Any) -> None:
        self._sessions, kept = 0, self._sessions
        _attach(self, event)
        self._sessions += kept

    return patched((Adds, "attach", mutant))


def lacs_do_not_wait_for_the_log() -> AbstractContextManager[None]:
    persist = Lacs._persist

    def mutant(self: Lacs) -> None:
        self._given.clear()
        persist(self)

    return patched((Lacs, "_persist", mutant))


def first_come_first_served() -> AbstractContextManager[None]:
    """One line for all streams: who asks for most gets most."""

    def mutant(self: FairQueue[Any], stream: int, thing: Any, *, urgent: bool) -> None:
        _put(self, thing.stream, thing, urgent=urgent)

    def pop(self: FairQueue[Any], line: Any, stream: int) -> Any:
        things = line[stream]
        thing = things.popleft()
        if not things:
            del line[stream]
        return thing

    return patched((FairQueue, "put", mutant), (FairQueue, "_pop", pop))


def who_reads_goes_on_reading() -> AbstractContextManager[None]:
    """The next part of an answer takes the room of the last one before anybody else may have it."""
    take = Reads._take_turn

    def mutant(self: Reads, request: Any) -> bool:
        if not request.turn and self.turns.may(request.stream, request.fencing):
            self._waiting.remove(request.stream, request)
            request.turn, request.waiting = True, False
            self.turns.take(request.stream)
        return take(self, request)

    return patched((Reads, "_take_turn", mutant))


def nothing_is_urgent() -> AbstractContextManager[None]:
    def mutant(self: FairQueue[Any], stream: int, thing: Any, *, urgent: bool) -> None:
        _put(self, stream, thing, urgent=False)

    return patched((FairQueue, "put", mutant))


def urgent_ones_always_first() -> AbstractContextManager[None]:
    take = FairQueue.take

    def mutant(self: FairQueue[Any], may: Any) -> Any:
        self._in_a_row = 0
        return take(self, may)

    return patched((FairQueue, "take", mutant))


def no_room_is_kept_for_recovery() -> AbstractContextManager[None]:
    full = Turns._is_full
    return patched((Turns, "_is_full", lambda self, urgent, further=False: full(self, True, further=further)))


def one_stream_may_take_all_turns() -> AbstractContextManager[None]:
    def mutant(self: Turns, stream: int | None, urgent: bool) -> bool:
        return self._active - self._parts < self._unread_max and not self._is_full(urgent)

    return patched((Turns, "may", mutant))


def bytes_of_parts_are_not_counted() -> AbstractContextManager[None]:
    fill = Turns.fill
    return patched((Turns, "fill", lambda self, request, size: fill(self, request, 0)))


def slow_readers_keep_their_room() -> AbstractContextManager[None]:
    return patched((Turns, "stall", lambda self, stream: None))


def slow_readers_are_ended_at_once() -> AbstractContextManager[None]:
    def mutant(self: Turns, waiting: Any) -> int | None:
        stream = next(iter(self.stalled), None)
        if stream is not None:
            del self.stalled[stream]
        return stream

    return patched((Turns, "to_end", mutant))


def once_slow_always_slow() -> AbstractContextManager[None]:
    sent = Turns.sent

    def mutant(self: Turns, request: Any) -> bool:
        stalled = dict(self.stalled)
        try:
            return sent(self, request)
        finally:
            self.stalled = stalled

    return patched((Turns, "sent", mutant))


def cancelled_ones_wait_on() -> AbstractContextManager[None]:
    return patched((FairQueue, "remove", lambda self, stream, thing: None))


def storage_is_asked_for_everything() -> AbstractContextManager[None]:
    def mutant(self: Requests, request: Any, effect: Any) -> None:
        self._send(effect)

    return patched((Requests, "_ask", mutant))


def answers_to_nobody_are_not_counted() -> AbstractContextManager[None]:
    answered = Requests._answered

    def mutant(self: Requests, request_id: Any) -> None:
        if request_id in self._by_id:
            answered(self, request_id)

    return patched((Requests, "_answered", mutant))


def requests_of_a_stream_have_no_bound() -> AbstractContextManager[None]:
    return patched((Requests, "_pause", lambda self, stream: None))


def paused_for_ever() -> AbstractContextManager[None]:
    return patched((Requests, "_resume", lambda self, stream: None))


def who_has_few_is_refused_for_others() -> AbstractContextManager[None]:
    under_way = Requests._under_way_of
    return patched((Requests, "_under_way_of", lambda self, stream: under_way(self, stream) + 16))


def watches_of_a_stream_have_no_bound() -> AbstractContextManager[None]:
    return patched((Requests, "too_many_watches", lambda self, stream: None))


ADMISSION_MUTANTS: tuple[tuple[str, str, Planted], ...] = (
    ("recovery shares the room of normal adds", "L3", recovery_shares_the_room),
    ("recovery has no bound", "L3", recovery_has_no_bound),
    ("recovering streams are paused for others", "L3", recovering_streams_are_paused_for_others),
    ("streams have no bound", "L3", streams_have_no_bound),
    ("frames are not counted", "I13", frames_are_not_counted),
    ("nothing is refused", "I13", nothing_is_refused),
    ("nobody waits for room", "L3", nobody_waits_for_room),
    ("any number wait for room", "I13", any_number_wait_for_room),
    ("streams that are gone wait on", "L3", streams_that_are_gone_wait_on),
    ("streams stay paused", "L3", streams_stay_paused),
    ("messages are kept whole for a part", "I13", messages_are_kept_whole),
    ("sessions have no bound", "I13", sessions_have_no_bound),
    ("LACs do not wait for the log", "P9", lacs_do_not_wait_for_the_log),
    ("who reads goes on reading", "L3", who_reads_goes_on_reading),
    ("first come, first served", "L3", first_come_first_served),
    ("nothing is urgent", "L3", nothing_is_urgent),
    ("urgent ones always first", "L3", urgent_ones_always_first),
    ("no room is kept for recovery", "L3", no_room_is_kept_for_recovery),
    ("one stream may take all turns", "L3", one_stream_may_take_all_turns),
    ("bytes of parts are not counted", "I13", bytes_of_parts_are_not_counted),
    ("slow readers keep their room", "L3", slow_readers_keep_their_room),
    ("slow readers are ended at once", "L3", slow_readers_are_ended_at_once),
    ("once slow, always slow", "L3", once_slow_always_slow),
    ("cancelled ones wait on", "I13", cancelled_ones_wait_on),
    ("the storage is asked for everything", "L3", storage_is_asked_for_everything),
    ("answers to nobody are not counted", "L3", answers_to_nobody_are_not_counted),
    ("requests of a stream have no bound", "I13", requests_of_a_stream_have_no_bound),
    ("paused for ever", "L3", paused_for_ever),
    ("who has few is refused for others", "L3", who_has_few_is_refused_for_others),
    ("watches of a stream have no bound", "I13", watches_of_a_stream_have_no_bound),
)
"""Name, rule, and what puts it back."""
