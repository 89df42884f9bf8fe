# SPDX-License-Identifier: Apache-2.0
"""Traces the frames of a writer. Each frame has a span from the time when it is sent until it is confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.model import EntryId, LedgerId
from bk_core.observe.traces import Spans, spans


class AppendSpans:
    """The open spans of one writer's frames. The parent of a frame's span is the span that was current at the first
    append after the previous frame was sent. If nothing was appended since then, the frame gets the parent of the
    previous frame, because one batch may fill many frames."""

    def __init__(self, found: Spans, ledger_id: LedgerId) -> None:
        self._spans, self._ledger_id = found, ledger_id
        self._parent: Any = None
        self._was_sent = True
        self._open: deque[tuple[EntryId, Any]] = deque()  # the last entry of each frame, and its span

    def appends(self) -> None:
        """Note an append. If it is the first append after a frame was sent, the caller's current span becomes the
        parent of the next frame's span."""
        if self._was_sent:
            self._parent, self._was_sent = self._spans.here(), False

    @contextmanager
    def sending(self, first: EntryId, entries: int, size: int) -> Iterator[None]:
        """Begin the span of a frame, and make it current while the frame is sent."""
        self._was_sent = True
        span = self._spans.begin(
            "append", self._parent, ledger=self._ledger_id, first_entry=first, entries=entries, bytes=size
        )
        self._open.append((first + entries - 1, span))
        with self._spans.current(span):
            yield

    def confirmed(self, lac: EntryId, sessions: Callable[[], Sequence[str]]) -> None:
        """End the spans of frames up to ``lac``. ``sessions`` returns the names of the writer's sessions, in the form
        that bookies use in their spans and log lines."""
        while self._open and self._open[0][0] <= lac:
            span = self._open.popleft()[1]
            span.set_attribute("bookkeeper.sessions", sessions())
            span.end()

    def ended(self, error: BookKeeperError) -> None:
        """End the open spans as failed. The writer ended before their frames were confirmed."""
        while self._open:
            span = self._open.popleft()[1]
            self._spans.fail(span, error)
            span.end()


def append_spans(ledger_id: LedgerId) -> AppendSpans | None:
    """Return the spans of a new writer, or None if this process is not traced."""
    found = spans()
    return None if found is None else AppendSpans(found, ledger_id)
