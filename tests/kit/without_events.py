# SPDX-License-Identifier: Apache-2.0
"""Events that a writer's machine takes without the event, as the client lets it."""

from __future__ import annotations

from typing import Any

from bk_core.protocol import events as ev
from bk_core.protocol.writer import LedgerWrite


def taken(machine: LedgerWrite, event: Any) -> list[Any] | None:
    """Let the machine take an ack or a single entry without the event. Return the effects, or None if it must get the
    event."""
    if isinstance(event, ev.FramesAcked):
        return machine.take_ack(event.index, event.session, event.frames)
    if isinstance(event, ev.Append) and event.batch.count == 1:
        return machine.take_entry(event.batch.payload)
    return None
