# SPDX-License-Identifier: Apache-2.0
"""Makes results of items on several threads, and delivers the results in the order of the items."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

THREADS = max(1, (os.cpu_count() or 1) - 1)
"""The default of the number of results that are made at the same time: one for each processor except that of the event
loop, which receives meanwhile. With one more, the threads would wait for each other."""

Item = TypeVar("Item")
Made = TypeVar("Made")


async def made_in_order(
    source: AsyncGenerator[Item, None], make: Callable[[Item], Made], *, at_once: int = THREADS
) -> AsyncGenerator[Made, None]:
    """Call ``make`` for each item of ``source`` on another thread, for up to ``at_once`` items at the same time, and
    yield the results in order. Meanwhile the next item is taken from the source.

    An error of the source or of ``make`` is raised after the results of the items before it. When this generator ends,
    no call of ``make`` runs any more, and the source is closed.
    """
    making = deque[asyncio.Task[Made]]()
    taking = asyncio.create_task(_taken(source))
    try:
        while True:
            has_ended = taking.done() and (taking.exception() is not None or not taking.result())
            if making and (has_ended or len(making) == at_once or making[0].done()):
                yield await making.popleft()
            elif has_ended:
                taking.result()  # raises the error of the source
                return
            elif taking.done():
                making.append(asyncio.create_task(asyncio.to_thread(make, *taking.result())))
                taking = asyncio.create_task(_taken(source))
            else:
                either: list[asyncio.Future[Any]] = [taking, *list(making)[:1]]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        taking.cancel()
        await asyncio.gather(taking, *making, return_exceptions=True)
        await source.aclose()


async def _taken(source: AsyncGenerator[Item, None]) -> tuple[Item, ...]:
    """Return a tuple with the next item, or an empty one if there is none."""
    async for item in source:
        return (item,)
    return ()
