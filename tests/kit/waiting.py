# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def comes_true(condition: Callable[[], bool], within_s: float, poll_s: float = 0.02) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def until(condition: Callable[[], bool], within_s: float, what: str, poll_s: float = 0.02) -> None:
    """Wait until it comes true. Raises TimeoutError, which says ``what`` did not happen."""
    if not comes_true(condition, within_s, poll_s):
        raise TimeoutError(f"{what}, not within {within_s:.0f} s")
