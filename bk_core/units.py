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
    """Parse ``128m``, ``1 GiB`` or ``1048576`` into bytes, or return None if ``text`` is no size. Units are powers of
    1024."""
    return _parsed(_SIZE, text, _SIZES)


def parse_time_ms(text: str) -> int | None:
    """Parse ``15m``, ``30s``, ``500ms`` or ``7d`` into milliseconds, or return None if ``text`` is no time."""
    return _parsed(_TIME, text, _TIMES_MS)


def time_in_words(time_ms: int) -> str:
    """Return a time like ``7 d`` or ``90 min``, in the largest unit that is exact."""
    for unit in ("d", "h", "min", "s"):
        if time_ms and time_ms % _TIMES_MS[unit] == 0:
            return f"{time_ms // _TIMES_MS[unit]} {unit}"
    return f"{time_ms} ms"


def roughly_in_words(seconds: float) -> str:
    """Return a time like ``7 d`` or ``90 min``, rounded down, in the largest unit of which there are at least two."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _parsed(form: re.Pattern[str], text: str, units: Mapping[str, int]) -> int | None:
    match = form.fullmatch(text.strip())
    return int(match[1]) * units[match[2].lower()] if match else None
