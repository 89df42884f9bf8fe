# SPDX-License-Identifier: Apache-2.0
"""Calls from the maintenance thread to the owners of its data: the loop (index), the committer and the reader. Also
posts results from any thread to the loop.

Each wait has a deadline. A call that has not begun by then is cancelled and never happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

from bk_core.errors import BookKeeperError, Outcome
from bookie_server.machine.disk_places import Place
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.maintenance.compaction import Copy
from bookie_server.storage.maintenance.index_port import Stopping

logger = logging.getLogger(__name__)

T = TypeVar("T")

Frames = Sequence[bytes | bytearray | memoryview]

DEADLINE_S = 30.0
_LOOK_S = 0.5  # how soon a closed loop is noticed


class LoopIndexPort:
    """Access to the index, which belongs to the loop. Any thread may call ``ask``, including the loop's own."""

    def __init__(self, index: LedgerIndex, loop: asyncio.AbstractEventLoop, *, deadline_s: float = DEADLINE_S) -> None:
        self._index, self._loop, self._deadline_s = index, loop, deadline_s

    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        if _running_loop() is self._loop:
            return question(self._index)
        answer: Future[T] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question(self._index))
            except Exception as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop is closed
            raise Stopping from None
        return wait_for(answer, self._deadline_s, "the bookie's loop", self._loop.is_closed)


def wait_for(done: Future[T], deadline_s: float, whom: str, is_over: Callable[[], bool] = lambda: False) -> T:
    """Wait for ``done``; return its result or raise its exception.

    Raises Stopping if ``done`` was cancelled, or if ``is_over`` returns that it will never finish. Raises
    BookKeeperError after the deadline. Either the call was cancelled before it began, or it is still under way and its
    outcome is unknown. ``whom`` names the other side in the error.
    """
    end = time.monotonic() + deadline_s
    while not done.done() and (left_s := end - time.monotonic()) > 0:
        wait([done], min(_LOOK_S, left_s))
        if is_over() and not done.done():
            raise Stopping
    late = not done.done()
    if late and not done.cancel():
        wait([done], deadline_s)  # it has begun, so it gets the same time again
        if not done.done():
            raise BookKeeperError(f"{whom} does not answer", value=f"{deadline_s:.0f} s", outcome=Outcome.UNKNOWN)
    try:
        return done.result()
    except CancelledError:
        if not late:
            raise Stopping from None
    raise BookKeeperError(f"{whom} does not answer", value=f"{deadline_s:.0f} s")


def poster(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[Any], None], object], None]:
    """Return a function that schedules a call on the loop, from any thread. Once the loop is closed it does nothing,
    because nothing waits for the call."""

    def post(call: Callable[[Any], None], argument: object) -> None:
        try:
            loop.call_soon_threadsafe(call, argument)
        except RuntimeError:
            logger.debug("an answer came after the loop closed: %s", argument)

    return post


def copier(begin: Callable[[Frames], Future[list[Place]]]) -> Copy:
    """Return ``Committer.copy`` as a blocking function, which raises Stopping when the commit thread has ended."""

    def copy(frames: Frames) -> list[Place]:
        return wait_for(begin(frames), DEADLINE_S, "the commit thread")

    return copy


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
