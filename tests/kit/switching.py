# SPDX-License-Identifier: Apache-2.0
"""Threads that CPython changes after every few instructions, instead of 200 times a second.

What it adds to the controlled schedules of ``tests/sim/threads``: the real locks, queues, loop and files. What it does
not do: choose the order, or repeat it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

TINY_S = 1e-6


@contextlib.contextmanager
def tiny_switches() -> Iterator[None]:
    """Within: whoever waits for the interpreter asks for it at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TINY_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
