# SPDX-License-Identifier: Apache-2.0
"""The effects of a bookie's machine for drivers that handle the answers to reads one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bookie_server.machine import events as ev
from bookie_server.machine.entry_reads import as_parts


def parted(effects: Iterable[ev.Effect]) -> Iterator[ev.Effect]:
    """Yield the effects. Each answer of a SendEntries effect is yielded as a SendPart and a SendTrailer."""
    for effect in effects:
        if isinstance(effect, ev.SendEntries):
            for answer in as_parts(effect):
                yield from answer
        else:
            yield effect
