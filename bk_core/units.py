# SPDX-License-Identifier: Apache-2.0
"""Parses sizes and times in the form in which people write them, such as ``256m`` and ``7d``, and formats times. Plain
numbers are bytes and milliseconds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"(\d+)\s*(ms|min|[smhdw]?)", re.IGNORECASE | re.ASCII)
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_size(text: str) -> int | None:
    """Parse a size such as ``128m``, ``1 GiB`` or ``1048576`` and return it in bytes, or None if ``text`` is not a
    size. Units are powers of 1024."""
    return _parsed(_SIZE, text, _SIZES)


def parse_time_ms(text: str) -> int | None:
    """Parse a time such as ``15m``, ``30s``, ``500ms`` or ``7d`` and return it in milliseconds, or None if ``text`` is
    not a time."""
    return _parsed(_TIME, text, _TIMES_MS)


def time_in_words(time_ms: int) -> str:
    """Return a time in words, such as ``7 d`` or ``90 min``, in the largest unit that is exact."""
    for unit in ("d", "h", "min", "s"):
        if time_ms and time_ms % _TIMES_MS[unit] == 0:
            return f"{time_ms // _TIMES_MS[unit]} {unit}"
    return f"{time_ms} ms"


def roughly_in_words(seconds: float) -> str:
    """Return a time in words, such as ``7 d`` or ``90 min``, rounded down. The unit is the largest in which the number
    is at least 2."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _parsed(form: re.Pattern[str], text: str, units: Mapping[str, int]) -> int | None:
    match = form.fullmatch(text.strip())
    return int(match[1]) * units[match[2].lower()] if match else None
