# SPDX-License-Identifier: Apache-2.0
"""Signals that change the log level of a server while it runs (decision 0058)."""

from __future__ import annotations

import signal

from bk_core.observe import log_level


def listen() -> None:
    """Set the level to DEBUG at SIGUSR1, and back to the level of the start at SIGUSR2. Call it on the main thread."""
    signal.signal(signal.SIGUSR1, lambda *_: log_level.set_level("DEBUG"))
    signal.signal(signal.SIGUSR2, lambda *_: log_level.set_level(log_level.BACK))
