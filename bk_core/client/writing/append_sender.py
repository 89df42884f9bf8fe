# SPDX-License-Identifier: Apache-2.0
"""Passes queued entries to the machine of a writer, and counts them in the window until they are confirmed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from bk_core.client.config import ClientConfig
from bk_core.client.running.driver import Driver
from bk_core.client.running.metrics import Observer
from bk_core.client.writing.append_queue import AppendQueue, cost
from bk_core.client.writing.append_spans import append_spans
from bk_core.client.writing.writer_end import WriterEnd
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.model import BookieId, EntryId, LedgerId
from bk_core.protocol import writer as machine
from bk_core.protocol.events import Append


class AppendSender:
    """Passes entries from a writer's queue to its machine. Any thread that holds the queue's lock may call
    :meth:`schedule`; the loop makes all other calls.

    - ``is_scheduled`` says that a call of :meth:`flush` is scheduled. The queue's lock guards the change to True.
    - ``is_held`` says that the writer sends nothing until :meth:`LedgerWriter.release`.
    - ``_in_flight`` has, in order, the batches that the machine has and that are not confirmed. It has each batch's
      last entry id, its bytes in the window, and the time when it was sent.
    - ``_counted`` is the last entry that the client's metrics count as confirmed.
    - ``spans`` are the spans of the batches in flight, or None if nothing is traced.
    """

    def __init__(
        self,
        protocol: machine.LedgerWrite,
        driver: Driver,
        queue: AppendQueue,
        end: WriterEnd,
        config: ClientConfig,
        observer: Observer,
        leave: Callable[[], None],
    ) -> None:
        self._leave_table = leave
        self._machine, self._driver, self._queue, self._end = protocol, driver, queue, end
        self._config, self._observer = config, observer
        self._thread = threading.get_ident()
        self.is_scheduled = self.is_held = False
        self._in_flight: deque[tuple[EntryId, int, float]] = deque()
        self._counted = protocol.lac
        self.spans = append_spans(protocol.ledger_id)

    def schedule(self) -> None:
        """Call :meth:`flush` in the loop's next turn."""
        if not self.is_scheduled:
            self.is_scheduled = True
            if self.spans is not None:
                self.spans.appends()
            if threading.get_ident() == self._thread:
                self._driver.loop.call_soon(self.flush)
            else:
                self._driver.loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """Pass queued entries to the machine. Pass all entries if none is in flight or the writer is closing, otherwise
        only entries that fill whole frames. Pass nothing while the machine keeps more than ``slow_bookie_bytes_max``
        bytes for the slowest bookie."""
        self.is_scheduled = False
        if self._machine.is_lent:
            self._leave_table()
        queue, delivery, config = self._queue, self._machine.delivery, self._config
        while queue and self._end.error is None and not self.is_held:
            if not self._machine.idle and queue.bytes < config.frame_bytes and not self._end.is_closing:
                return
            if delivery.retained_bytes > config.slow_bookie_bytes_max:
                return
            if self.spans is None and (lone := queue.take_lone()) is not None:
                self._send_lone(*lone)
                continue
            batch, held = queue.take(config.frame_bytes)
            entries, size, first = batch.lengths.size, batch.payload.nbytes, delivery.last_sent + 1
            self._count(entries, size, held)
            if self.spans is None:
                self._driver.feed(Append(batch))
            else:
                with self.spans.sending(first, entries, size):
                    self._driver.feed(Append(batch))

    def _send_lone(self, payload: Bytes, held: int) -> None:
        """Pass one entry to the machine, without an event unless the machine needs it."""
        self._count(1, len(payload), held)
        if not self._driver.took(self._machine.take_entry, payload):
            self._driver.feed(Append(EntryBatch.from_list([payload])))

    def _count(self, entries: int, size: int, held: int) -> None:
        """Note that the next entries are in flight, and count them. They use ``held`` bytes of the window."""
        self._in_flight.append((self._machine.delivery.last_sent + entries, held, monotonic()))
        counts = self._observer.counts
        counts.appended_frames += 1
        counts.appended_entries += entries
        counts.appended_bytes += size

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, traced or held back."""
        return not (self._in_flight or self.is_held or self.spans is not None or self._queue)

    def resume(self, in_flight: tuple[int, float] | None) -> None:
        """Continue after entries were sent and confirmed past this object. ``in_flight`` is the payload size and the
        time of the last one, if it is not confirmed."""
        self._counted = self._machine.lac
        if in_flight is not None:
            held = cost(in_flight[0], 1)
            self._in_flight.append((self._machine.lap, held, in_flight[1]))
            self._queue.took(held)

    def confirmed(self, through: EntryId) -> None:
        """Subtract the batches that end at or before entry ``through`` from the window, count their entries as
        confirmed, and report a slow batch."""
        in_flight, counts = self._in_flight, self._observer.counts
        if in_flight and in_flight[0][0] <= through:
            took_s = monotonic() - in_flight[0][2]
            counts.append_seconds.observe(took_s)
            if took_s >= self._observer.slow_s:
                self._report_slow(took_s, through)
        if self.spans is not None:
            self.spans.confirmed(through, self._session_names)
        if through > self._counted:
            counts.confirmed_entries += through - self._counted
            self._counted = through
        while in_flight and in_flight[0][0] <= through:
            self._queue.confirmed(in_flight.popleft()[1])

    def _report_slow(self, took_s: float, through: EntryId) -> None:
        """Log an append that took long. The log line names sessions in the same way as the bookies' log lines."""
        first, size = self._counted + 1, sum(each for last, each, _ in self._in_flight if last <= through)
        acked = [(lane.bookie, lane.session, lane.watermark) for lane in self._machine.delivery.lanes]
        self._observer.was_slow(lambda: slow_append(self._machine.ledger_id, (first, through), size, took_s, acked))

    def _session_names(self) -> list[str]:
        return [f"{lane.bookie} session {lane.session}" for lane in self._machine.delivery.lanes]


def slow_append(
    ledger_id: LedgerId,
    entries: tuple[EntryId, EntryId],
    size: int,
    took_s: float,
    acked: Sequence[tuple[BookieId, int, EntryId]],
) -> str:
    """Return the log line of an append that took long. ``acked`` has each bookie, its session, and the last entry that
    it has acked."""
    return (
        f"append to ledger {ledger_id}, entries {entries[0]} to {entries[1]}, {size:,} bytes: "
        f"{took_s * 1000:,.0f} ms from sending to confirmation; "
        + ", ".join(f"{bookie} session {session} acked to {last}" for bookie, session, last in acked)
    )
