# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other threads, tasks and processes do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.01
SHUTDOWN_POLL_S = 0.01
"""How often a server of the standard library looks whether it shall end: half a second, unless told."""


def comes_true(condition: Callable[[], object], within_s: float = 20.0, poll_s: float = POLL_S) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def until(
    condition: Callable[[], object], within_s: float = 10.0, what: str = "it did not happen", poll_s: float = POLL_S
) -> None:
    """Wait until it comes true. Raises TimeoutError, which says ``what``."""
    if not comes_true(condition, within_s, poll_s):
        raise TimeoutError(f"{what}, not within {within_s:.0f} s")


async def eventually(condition: Callable[[], object], within_s: float = 10.0, poll_s: float = POLL_S / 2) -> None:
    """Wait until it comes true. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(poll_s)
