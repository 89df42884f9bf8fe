# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as people write them: ``256m``, ``7d``. Plain numbers are bytes and milliseconds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"(\d+)\s*(ms|min|[smhdw]?)", re.IGNORECASE | re.ASCII)
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_size(text: str) -> int | None:
    """``128m``, ``1 GiB``, ``1048576`` in bytes, or None if ``text`` is no size. Powers of 1024."""
    return _parsed(_SIZE, text, _SIZES)


def parse_time_ms(text: str) -> int | None:
    """``15m``, ``30s``, ``500ms``, ``7d`` in milliseconds, or None if ``text`` is no time."""
    return _parsed(_TIME, text, _TIMES_MS)


def time_in_words(time_ms: int) -> str:
    """``7 d``, ``90 min``: the largest unit that says it exactly."""
    for unit in ("d", "h", "min", "s"):
        if time_ms and time_ms % _TIMES_MS[unit] == 0:
            return f"{time_ms // _TIMES_MS[unit]} {unit}"
    return f"{time_ms} ms"


def roughly_in_words(seconds: float) -> str:
    """``7 d``, ``90 min``: the largest unit of which there are at least two, rounded down."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _parsed(form: re.Pattern[str], text: str, units: Mapping[str, int]) -> int | None:
    match = form.fullmatch(text.strip())
    return int(match[1]) * units[match[2].lower()] if match else None
