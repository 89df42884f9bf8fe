# SPDX-License-Identifier: Apache-2.0
"""The spans of a writer's frames: each from when it is sent until it is confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.model import EntryId, LedgerId
from bk_core.observe.traces import Spans, spans


class AppendSpans:
    """A frame's span belongs to the operation that appended first since the frame before it was sent, or to that
    frame's, if nobody did: a batch may be many frames."""

    def __init__(self, found: Spans, ledger_id: LedgerId) -> None:
        self._spans, self._ledger_id = found, ledger_id
        self._parent: Any = None
        self._was_sent = True
        self._open: deque[tuple[EntryId, Any]] = deque()  # by the last entry

    def appends(self) -> None:
        """Begins the span of an append, in the context of the caller."""
        if self._was_sent:
            self._parent, self._was_sent = self._spans.here(), False

    @contextmanager
    def sending(self, first: EntryId, entries: int, size: int) -> Iterator[None]:
        """Around the sending of a frame."""
        self._was_sent = True
        span = self._spans.begin(
            "append", self._parent, ledger=self._ledger_id, first_entry=first, entries=entries, bytes=size
        )
        self._open.append((first + entries - 1, span))
        with self._spans.current(span):
            yield

    def confirmed(self, lac: EntryId, sessions: Callable[[], Sequence[str]]) -> None:
        """``sessions``: as bookies name them in their spans and log lines."""
        while self._open and self._open[0][0] <= lac:
            span = self._open.popleft()[1]
            span.set_attribute("bookkeeper.sessions", sessions())
            span.end()

    def ended(self, error: BookKeeperError) -> None:
        """The writer did, before these were confirmed."""
        while self._open:
            span = self._open.popleft()[1]
            self._spans.fail(span, error)
            span.end()


def append_spans(ledger_id: LedgerId) -> AppendSpans | None:
    """None if nothing is traced."""
    found = spans()
    return None if found is None else AppendSpans(found, ledger_id)
