# SPDX-License-Identifier: Apache-2.0
"""Waits, on another thread, for work on the client's loop. Arrow reads its streams on threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from bk_core.client.running.fork import ForkGuard
from bk_core.errors import ClientClosedError, InvalidArgumentError, Outcome

if TYPE_CHECKING:
    from bk_core.client.bookkeeper import BookKeeper

T = TypeVar("T")
LOOK_S = 1.0
"""The number of seconds after which a waiting thread checks again that the client is still open."""


class Pull:
    """Lets a thread other than the loop's wait for work that runs on the client's loop."""

    def __init__(self, bookkeeper: BookKeeper, loop: asyncio.AbstractEventLoop) -> None:
        self._bookkeeper, self._loop, self._guard = bookkeeper, loop, ForkGuard()
        self._thread = threading.get_ident()  # the thread of the loop

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and return its result. Raises the errors of ``work``, ClientClosedError once the
        client is closed, ForkedHandleError in a forked child, and InvalidArgumentError on the loop's thread, where the
        call would wait for ever."""
        try:
            self._check()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        try:
            while not concurrent.futures.wait([future], LOOK_S).done:
                self._check()
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosedError("this client was closed while it was waiting") from None
        except BaseException:
            future.cancel()
            raise

    def _check(self) -> None:
        self._guard.check("this reader")
        if self._loop.is_closed():
            raise ClientClosedError("this client is closed", remedy="connect again", outcome=Outcome.NOT_APPLIED)
        self._bookkeeper.check_open()
        if threading.get_ident() == self._thread:
            raise InvalidArgumentError(
                "a RecordBatchReader waits for the loop, on whose thread it was called",
                remedy="read it in await asyncio.to_thread(…), or use await to_arrow()",
            )
