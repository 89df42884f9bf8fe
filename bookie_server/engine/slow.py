# SPDX-License-Identifier: Apache-2.0
"""The texts of the log of slow operations for commits and reads. They are made only for lines that are written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from bk_core.entries.frame import FrameKind, parse_header
from bookie_server.machine.events import ReadFrames, ReadMemberships

SHOWN = 5
"""The maximum number of frames of a group that a line names."""


def slow_commit(path: str, frames: Sequence[bytes | memoryview], waited_s: float, took_s: float) -> str:
    """Return the text for a slow commit. Its session numbers are those in the clients' own log lines."""
    named = ", ".join(_frame(frame) for frame in islice(frames, SHOWN))
    more = f" and {len(frames) - SHOWN} more" if len(frames) > SHOWN else ""
    return (
        f"commit in {path} of {len(frames)} frames, {sum(map(len, frames)):,} bytes: {waited_s * 1000:,.0f} ms until "
        f"it began, {took_s * 1000:,.0f} ms to write and sync; {named}{more}"
    )


def _frame(frame: bytes | memoryview) -> str:
    header = parse_header(frame)
    if header.kind != FrameKind.ENTRIES:
        return f"{FrameKind(header.kind).name} of ledger {header.ledger_id}"
    return f"ledger {header.ledger_id} session {header.tag} {header.count} entries from {header.first_entry_id} on"


def slow_read(path: str, effect: ReadFrames | ReadMemberships, took_s: float) -> str:
    what = f"{len(effect.pieces)} pieces" if isinstance(effect, ReadFrames) else f"{len(effect.places)} memberships"
    stream, request = effect.request
    return f"read in {path} of {what}: {took_s * 1000:,.0f} ms; request {request} of stream {stream}"
