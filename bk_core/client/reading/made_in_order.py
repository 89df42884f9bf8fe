# SPDX-License-Identifier: Apache-2.0
"""Makes results of items on several threads, and delivers the results in the order of the items."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

THREADS = os.cpu_count() or 1
"""The default of the number of results that are made at the same time: one for each processor, although the thread of
the event loop receives meanwhile, because a thread also waits for Python's lock and for memory."""

Item = TypeVar("Item")
Made = TypeVar("Made")


async def made_in_order(
    source: AsyncGenerator[Item, None], make: Callable[[Item], Made], *, at_once: int = THREADS
) -> AsyncGenerator[Made, None]:
    """Call ``make`` for each item of ``source`` on another thread, for up to ``at_once`` items at the same time, and
    yield the results in order. The next item is taken meanwhile, and the next call begins before a result is yielded,
    so that the threads do not wait for the consumer. Up to ``at_once`` + 1 results, made or not, wait for it.

    An error of the source or of ``make`` is raised after the results of the items before it. When this generator ends,
    no call of ``make`` runs any more, and the source is closed.
    """
    making = deque[asyncio.Task[Made]]()
    taking = asyncio.create_task(_taken(source))
    try:
        while True:
            has_ended = taking.done() and (taking.exception() is not None or not taking.result())
            running = [each for each in making if not each.done()]
            if taking.done() and not has_ended and len(running) < at_once and len(making) <= at_once:
                making.append(asyncio.create_task(asyncio.to_thread(make, *taking.result())))
                taking = asyncio.create_task(_taken(source))
            elif making and (has_ended or making[0].done()):
                yield await making.popleft()
            elif has_ended:
                taking.result()  # raises the error of the source
                return
            else:
                awaited: list[asyncio.Future[Any]] = [*running, *([] if taking.done() else [taking])]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        taking.cancel()
        await asyncio.gather(taking, *making, return_exceptions=True)
        await source.aclose()


async def _taken(source: AsyncGenerator[Item, None]) -> tuple[Item, ...]:
    """Return a tuple with the next item, or an empty one if there is none."""
    async for item in source:
        return (item,)
    return ()
