# SPDX-License-Identifier: Apache-2.0
"""Holds the stories of one connection of Apache's wire, which are its requests that wait for the machine (see
``reads.py``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bk_core.wire.lane.reasons import Reason
from bookie_server.machine import events
from bookie_server.machine.entry_reads import as_parts
from bookie_server.ports.bookie_rpc.answer_queue import AnswerQueue
from bookie_server.ports.bookie_rpc.reads import Batch, Read, ServedRangeRead, Story
from bookie_server.ports.bookie_rpc.served_client import ServedClient

RANGE_READS_MAX = 64
"""The maximum number of a connection's range reads that the machine has at the same time. Further range reads wait
here, in their order."""

WAITING_MAX = 4096
"""The maximum number of range reads that wait while the driver reads the connection. Above it, the driver does not
read."""


class Stories:
    """The stories of one connection, those that have begun and those that wait. They pass the stories' requests to the
    machine, and each effect of the machine to its story.

    - ``_open``: the story of each request that the machine has, by the request's number. ``_asked`` is the number of
      the last request.
    - ``waiting``: range reads that have not begun. ``_running`` is the number of those that have begun and have not
      ended.

    ``look`` is called when the number of waiting reads has changed.
    """

    def __init__(
        self,
        stream: events.StreamId,
        feed: Callable[[events.Event], None],
        answers: AnswerQueue,
        client: ServedClient,
        look: Callable[[], None],
    ) -> None:
        self.stream, self._feed, self._answers, self._client, self._look = stream, feed, answers, client, look
        self._open: dict[int, Story] = {}
        self._asked = 0
        self.waiting: deque[Story] = deque()
        self._running = 0

    def begin(self, story: Story) -> None:
        """Begin a story. A range read waits while RANGE_READS_MAX of them run. The machine gets every other story
        immediately and bounds their number, because a fence must not wait behind reads, nor a read behind long
        polls."""
        if isinstance(story, ServedRangeRead):
            if self.waiting or self._running >= RANGE_READS_MAX:
                self.waiting.append(story)
                self._look()
                return
            self._running += 1
        story.begin()

    def ask(self, story: Story, event: Callable[[events.RequestId], events.Event]) -> None:
        """Give the machine a request of a story."""
        self._asked += 1
        self._open[self._asked] = story
        self._feed(event((self.stream, self._asked)))

    def take_part(self, part: events.SendPart) -> None:
        """Give a story a part of what it reads, and queue the answers that the story makes from it."""
        story = self._open.get(part.request[1])
        for buffer in story.heard(part) if story else []:
            self._answers.send(buffer)
        self._answers.send(b"", part.request)

    def take_entries(self, effect: events.SendEntries) -> None:
        """Give each story the entry that it reads, which ends its request."""
        for part, trailer in as_parts(effect):
            self.take_part(part)
            self.end(trailer)

    def end(self, effect: events.SendTrailer | events.SendLac | events.SendReply) -> None:
        """Give a story the end of its request, and queue the answers that the story makes from it. The story may go on
        with another request."""
        story = self._open.pop(effect.request[1], None)
        if story is None:
            return
        asked = self._asked
        counted = isinstance(effect, events.SendLac)
        if counted and self._answers.is_full(fence=isinstance(story, Read) and story.fences):
            effect = events.SendReply(effect.request, Reason.OVERLOADED, "too many answers wait to be taken")
        if isinstance(story, (Read, Batch)) and story.fences:
            reason = Reason.REASON_NONE if isinstance(effect, events.SendLac) else effect.reason
            self._client.audit("fence", reason, ledger=story.ledger_id)
        for buffer in story.heard(effect):
            self._answers.send(buffer, counted=counted)
        if isinstance(story, ServedRangeRead) and self._asked == asked:  # it made no further request
            self._running -= 1
            while self.waiting and self._running < RANGE_READS_MAX:
                self._running += 1
                self.waiting.popleft().begin()
            self._look()

    def drop(self) -> None:
        """Forget all stories, because the connection is gone."""
        self.waiting.clear()
        self._open.clear()
