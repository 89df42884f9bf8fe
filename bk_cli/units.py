# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as people write them: ``256m``, ``7d``. Plain numbers are bytes and milliseconds."""

from __future__ import annotations

import re

import click

SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
TIMES_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"(\d+)\s*(ms|[smhdw]?)", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int | None:
    """Bytes, or None for what is not a size. Powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * SIZES[match[2].lower()] if match else None


def parse_time_ms(text: str) -> int | None:
    """Milliseconds, or None for what is not a time."""
    match = _TIME.fullmatch(text.strip())
    return int(match[1]) * TIMES_MS[match[2].lower()] if match else None


def time_in_words(time_ms: int) -> str:
    """``7 d``, ``90 min``: the largest unit that says it exactly."""
    for unit, size in (("d", TIMES_MS["d"]), ("h", TIMES_MS["h"]), ("min", TIMES_MS["m"]), ("s", TIMES_MS["s"])):
        if time_ms and time_ms % size == 0:
            return f"{time_ms // size} {unit}"
    return f"{time_ms} ms"


def size_option(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Callback of an option in bytes, at least 1; None where it is not given."""
    size = None if text is None else parse_size(text)
    if text is not None and not size:
        raise click.BadParameter(f"{text!r} is not a size such as 256m, 1g or 1048576", ctx, param)
    return size


def time_option(ctx: click.Context, param: click.Parameter, text: str) -> int:
    """Callback of an option in milliseconds, 0 allowed."""
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise click.BadParameter(f"{text!r} is not a time such as 7d, 12h, 90s or 60000 (milliseconds)", ctx, param)
    return time_ms
