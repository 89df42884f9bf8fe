# SPDX-License-Identifier: Apache-2.0
"""Lies of a broken or hostile bookie: flipped bits, answers to requests that were never sent, acks of frames that were
never sent.

None of them may lead to wrong data. Each counts as UNKNOWN from that bookie, or ends its session.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from bk_core.entries.frame import FrameKind, encode_record, parse_header
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.machine import events as ev
from tests.sim.scheduler import Scheduler


def part(effect: ev.SendPart, random: Random, scheduler: Scheduler, endless: float) -> ev.SendPart:
    """Return a part with a flipped bit, a record among the entries, or the same frame again and again."""
    whole = b"".join(effect.frames)
    kind = random.choice(("bit", "bit", "record", "much"))
    scheduler.reached(f"a lie: {kind}")
    if kind == "record":
        whole = bytes(encode_record(FrameKind.FENCE, parse_header(whole).ledger_id)) + whole
    elif kind == "much":
        whole *= 1 + (9 << 20) // len(whole) if random.random() < endless else 3
    else:
        scheduler.reached("an answer with a flipped bit")
        whole = _flipped(whole, random)
    return ev.SendPart(effect.request, [whole])


def trailer(effect: ev.SendTrailer, random: Random, scheduler: Scheduler) -> ev.SendTrailer:
    """Return a trailer that answers beyond the request, or calls one id both ABSENT and UNKNOWN."""
    said = effect.trailer
    kind = random.choice(("beyond", "both"))
    scheduler.reached(f"a lie: {kind}")
    if kind == "beyond":
        return replace(effect, trailer=replace(said, answered_through=said.answered_through + 1000))
    gap = EntryRange(0, 1 << 40)
    return replace(effect, trailer=replace(said, absent=(gap,), unknown=(replace(gap, reason=Reason.DAMAGED),)))


def evidence(effect: ev.SendLac, random: Random, scheduler: Scheduler) -> ev.SendLac:
    """Return evidence of the LAC with a flipped bit."""
    said = effect.evidence
    names = [name for name in ("lac_body", "last_entry_frame", "lac_frame") if len(getattr(said, name))]
    if not names:
        return effect
    scheduler.reached("an answer with a flipped bit")
    name = random.choice(names)
    changed: dict[str, Any] = {name: _flipped(getattr(said, name), random)}
    return replace(effect, evidence=replace(said, **changed))


def acks(effect: ev.SendAcks, scheduler: Scheduler) -> ev.SendAcks:
    """Return an ack of more frames than were ever sent."""
    scheduler.reached("a lie: acks")
    return effect._replace(frames=[frames + 1000 for frames in effect.frames])


def _flipped(data: Any, random: Random) -> bytes:
    changed = bytearray(data)
    bit = random.randrange(len(changed) * 8)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
