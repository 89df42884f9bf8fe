# SPDX-License-Identifier: Apache-2.0
"""Makes CPython switch threads after every few instructions, instead of 200 times a second.

Unlike the controlled schedules of ``tests/sim/threads``, this tests the real locks, queues, loop and files. It cannot
choose the order of the threads, or repeat it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

TINY_S = 1e-6


@contextlib.contextmanager
def tiny_switches() -> Iterator[None]:
    """Let a thread that waits for the interpreter request it at once, within this block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TINY_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
