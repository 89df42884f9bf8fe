# SPDX-License-Identifier: Apache-2.0
"""Bookies behind connections of given rates, one consumer, and virtual time: what one range read does in them.

It does what the driver does: requests are sent ahead where the machine allows it, and waits are reported.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import numpy as np

from bk_core.client.reading.shared_read import SharedRead
from bk_core.client.reading.sharing import Sharing
from bk_core.entries.batch import EntryBatch
from bk_core.entries.frame import decode_frame, encode_frame
from bk_core.model import LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.protocol.reader import RangeRead, ReadEffect, ReadEvent
from tests.protocol.kit import LEDGER, digester, metadata

ROUND_TRIP_S = 0.001
PART_ENTRIES = 2


@dataclass
class Line:
    """The connection of one bookie, which answers one request after the other. ``asked`` have not ended; the first of
    them has given the entries before ``next``. ``busy_max`` is the most requests at a time."""

    bytes_s: float
    asked: list[ev.SendRead] = field(default_factory=list)
    next: int = 0
    size: int = 0
    sent: int = 0
    turn: int = 0
    busy_max: int = 0


class SharedWorld:
    """``rates`` has the bytes a second of each connection, and ``cable`` those of all of them. The consumer needs
    ``consumer_s`` for a byte. ``spoil`` may change or drop what a bookie sends."""

    def __init__(
        self,
        rates: tuple[float, ...],
        *,
        cable: float = 1e12,
        consumer_s: float = 0.0,
        values: list[bytes] | None = None,
        bytes_max: int = 1 << 16,
        record: LedgerMetadata | None = None,
        spoil: Callable[[str, ReadEvent], ReadEvent | None] = lambda bookie, event: event,
    ) -> None:
        self.record = record or metadata(len(rates), len(rates), 1).value
        names = sorted({name for fragment in self.record.fragments for name in fragment.ensemble})
        self.lines = {name: Line(rate) for name, rate in zip(names, rates, strict=True)}
        self.cable, self.consumer_s, self.bytes_max, self.spoil = cable, consumer_s, bytes_max, spoil
        self.values = values or [b"%06d" % n * 170 for n in range(3_000)]
        made = EntryBatch.from_list(self.values)
        self.truth = decode_frame(
            bytes(encode_frame(made, digester=digester(), ledger_id=LEDGER, first_entry_id=0, lac=-1, length_before=0))
        )
        self.now = self._clock = 0.0  # of the consumer; of what happens while it is busy
        self.got: list[bytes] = []
        self.end: object = None
        self.asked: list[tuple[float, ev.SendRead]] = []
        self.serving: list[int] = []  # the numbers of bookies that were wanted, each change once
        self.ahead_max = 0  # the most bytes that came and that the consumer had not taken
        self._ahead = 0
        self._wire: list[tuple[float, int, Callable[[], object]]] = []  # what happens, and when
        self._order = itertools.count()
        self._queue: deque[ReadEvent] = deque()  # came, and the consumer did not get to it yet
        self._sent_ahead: ev.SendRead | None = None
        self._cancelled: set[int] = set()
        self._timers: dict[str, object] = {}

    def read(self, sharing: Sharing | None = None) -> Self:
        record, last = self.record, len(self.values) - 1
        self.sharing = sharing or Sharing(record.write_quorum_size)
        make = partial(RangeRead, record, digester())
        self.machine = SharedRead(make, record, 0, last, sharing=self.sharing, bytes_max=self.bytes_max, prefer=1)
        self.sharing.waited(0.0, 0.0, 0.0)
        self._carry(self.machine.start())
        while self.end is None:
            began = self.now
            self._let_come(self.now)
            while not self._queue:
                self._let_come(self._wire[0][0])
            if self.now > began:
                self.sharing.waited(self.now, self.now - began, 0.0)
            if self.sharing.wanted not in self.serving[-1:]:
                self.serving.append(self.sharing.wanted)
            self._carry(self.machine.step(self._queue.popleft()))
        return self

    def at(self, when: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._wire, (when, next(self._order), what))

    def break_off(self, bookie: str) -> None:
        """Let the bookie's connection break: what it has not sent yet fails, and all later requests."""
        self.lines[bookie].bytes_s = 0.0

    # --- the consumer ---

    def _let_come(self, until: float) -> None:
        """Let everything happen up to this time, also while the consumer is busy."""
        while self._wire and self._wire[0][0] <= until:
            when, _, what = heapq.heappop(self._wire)
            self._clock = when
            what()
        self.now = max(self.now, until)

    def _carry(self, effects: list[ReadEffect]) -> None:
        for effect in effects:
            match effect:
                case ev.SendRead():
                    if effect != self._sent_ahead:
                        self._send(effect, self.now)
                    self._sent_ahead = None
                case ev.CancelRead(request):
                    self._cancel(request)
                case ev.SetTimer(name, delay_ms):
                    self._set_timer(name, self.now + delay_ms / 1000)
                case ev.DeliverBatch(batch):
                    self.got += batch.to_list()
                    self._let_come(self.now + batch.payload.nbytes * self.consumer_s)
                    self._ahead -= batch.payload.nbytes
                case _:
                    self.end = effect

    def _set_timer(self, name: str, when: float) -> None:
        timer = self._timers[name] = object()  # a timer replaces the last one of its name

        def fire() -> None:
            if self._timers.get(name) is timer:
                self._queue.append(ev.TimerFired(name))

        self.at(when, fire)

    # --- bookies ---

    def _send(self, read: ev.SendRead, when: float) -> None:
        self.asked.append((when, read))
        self.at(when + ROUND_TRIP_S, partial(self._received, read))

    def _received(self, read: ev.SendRead) -> None:
        line = self.lines[read.bookie]
        if read.request in self._cancelled:
            return
        line.asked.append(read)
        line.busy_max = max(line.busy_max, len(line.asked))
        if len(line.asked) == 1:
            self._begin(line)

    def _cancel(self, request: int) -> None:
        for line in self.lines.values():
            was = line.asked[:1]
            line.asked = [read for read in line.asked if read.request != request]
            if line.asked and was != line.asked[:1]:
                self._begin(line)
        self._cancelled.add(request)

    def _begin(self, line: Line) -> None:
        line.next, line.size, line.turn = line.asked[0].first, 0, line.turn + 1
        self._next_part(line, line.asked[0])

    def _next_part(self, line: Line, read: ev.SendRead) -> None:
        if line.bytes_s <= 0:
            self._end_answer(line, read, ev.ReadFailed(read.request, "the connection broke"))
        elif line.next > read.last or line.size >= read.bytes_max:
            self._end_answer(line, read, ev.ReadAnswered(read.request, line.next - 1))
        else:
            last = min(read.last, line.next + PART_ENTRIES - 1)
            size = sum(map(len, self.values[line.next : last + 1]))
            active = sum(bool(other.asked) for other in self.lines.values())
            took_s = size / min(line.bytes_s, self.cable / active)
            self.at(self._clock + took_s, partial(self._part_came, line, line.turn, last, size))

    def _part_came(self, line: Line, turn: int, last: int, size: int) -> None:
        if not line.asked or line.turn != turn:
            return  # it was cancelled
        read = line.asked[0]
        if line.bytes_s > 0:
            frame = encode_frame(self.truth.select(np.arange(line.next, last + 1)), digester=None, session=1)
            self._came(read.bookie, ev.FramesRead(read.request, memoryview(bytes(frame))), size)
            line.next, line.size, line.sent = last + 1, line.size + size, line.sent + size
        self._next_part(line, read)

    def _came(self, bookie: str, event: ReadEvent, size: int = 0) -> None:
        spoilt = self.spoil(bookie, event)
        if spoilt is not None:
            self._queue.append(spoilt)
            self._ahead += size if spoilt is event else 0
            self.ahead_max = max(self.ahead_max, self._ahead)

    def _end_answer(self, line: Line, read: ev.SendRead, event: ReadEvent) -> None:
        self._came(read.bookie, event)
        line.asked.remove(read)
        goes_on = isinstance(event, ev.ReadAnswered) and event.answered_through < read.last
        if goes_on and self._sent_ahead is None and self.machine.goes_on(read.request):
            self._sent_ahead = replace(read, request=read.request + 1, first=line.next)
            self._send(self._sent_ahead, self._clock)
        if line.asked:
            self._begin(line)
