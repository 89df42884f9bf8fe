# SPDX-License-Identifier: Apache-2.0
"""Waits for what other threads, tasks and processes do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

POLL_S = 0.01
SHUTDOWN_POLL_S = 0.01
"""The seconds between two checks of a server of the standard library whether it must end. Its default is half a
second."""


def comes_true(condition: Callable[[], object], within_s: float = 20.0, poll_s: float = POLL_S) -> bool:
    """Return whether the condition becomes true within ``within_s`` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def until(
    condition: Callable[[], object], within_s: float = 10.0, what: str = "it did not happen", poll_s: float = POLL_S
) -> None:
    """Wait until the condition is true. Raises TimeoutError with the text ``what`` after ``within_s`` seconds."""
    if not comes_true(condition, within_s, poll_s):
        raise TimeoutError(f"{what}, not within {within_s:.0f} s")


async def eventually(condition: Callable[[], object], within_s: float = 10.0, poll_s: float = POLL_S / 2) -> None:
    """Wait until the condition is true, without blocking the loop. Raises TimeoutError after ``within_s`` seconds."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(poll_s)


def in_thread(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """Call a function in a new thread and return its future result. A call that never ends does not keep the process
    alive."""
    future = Future[T]()

    def work() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
