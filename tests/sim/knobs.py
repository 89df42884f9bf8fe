# SPDX-License-Identifier: Apache-2.0
"""The faults of one run and their rates: drawn for each run (swarm), fixed (uniform), or none (quiet)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

COMMON = ((3, 3, 2), (3, 3, 2), (2, 2, 2), (3, 2, 2))
RARE = ((3, 2, 1), (3, 3, 3), (4, 3, 2), (4, 2, 2), (5, 3, 2), (5, 3, 3), (5, 2, 2))
"""The shapes that are drawn in one run of three: ensemble size, write quorum, ack quorum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Probabilities are for each message or opportunity. Fields that end in ``_ms`` are means in milliseconds. Counts
    are for the whole run."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    spares: int = 1
    # messages
    latency_ms: float = 1.0
    request_lost: float = 0.02
    answer_lost: float = 0.02
    request_doubled: float = 0.02
    straggler: float = 0.02  # the share of requests that take `straggler_ms`
    straggler_ms: float = 300.0
    # disks
    sync_ms: float = 0.5
    torn_commit: float = 0.5  # the share of crashes during a commit that leave a part of the group on the disk
    # metadata store
    store_ms: float = 1.0
    store_answer_lost: float = 0.02
    store_stale_read: float = 0.1
    store_away: int = 0  # how often the store is away from one client
    # disturbances
    cuts: int = 1  # connections cut
    partitions: int = 0  # links held for a while, both ways or one way
    crashes: int = 1  # bookies killed, which come back after a while
    pauses: int = 0  # clients paused for a while
    writer_dies: float = 0.3
    recoverer_dies: float = 0.25  # at each event after it changed the ensemble, before this is stored
    read_only: int = 0
    wipes: int = 0  # bookies that come back empty, in limbo (RULES S8)
    no_space: int = 0
    bookie_bytes_max: int = 8192  # of frames that wait for a commit; frames far above this are refused
    deletes: float = 0.0
    flipped_bits: int = 0  # frames damaged at rest
    hostile: float = 0.0  # the share of answers whose LAC body or frame is changed
    endless: float = 0.05  # the share of repeated answers that go on for 9 MiB; each costs seconds
    apache: float = 0.0  # the share of bookies that answer as Apache's do
    busy: float = 0.0  # a bookie of Apache's is overloaded, or has an I/O error, for one entry
    # the work
    batches: int = 4
    entries_max: int = 3
    lone: int = 0  # entries that the writer appends one by one, each after the one before is confirmed
    entry_bytes: int = 0  # the least size; large groups cover several sectors and can be torn
    think_ms: float = 2.0
    second_recoverer: float = 0.4
    early_recovery: float = 0.5
    tails: int = 1
    delay_ensemble_change: bool = False
    allow_degraded_writes: bool = False
    deferred: float | None = None  # the share of appends that a force follows, if bookies may ack before they sync
    dead_at_the_end: bool = False  # Qa − 1 bookies stay dead in the liveness phase


def uniform(random: Random) -> Knobs:
    """Return moderate faults. Only the shape is drawn."""
    e, qw, qa = random.choice(COMMON if random.random() < 0.66 else RARE)
    return Knobs(
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        batches=random.choice((1, 2, 4)),
        lone=random.choice((0, 0, 4)),
        tails=random.choice((0, 0, 0, 1)),
        dead_at_the_end=qa > 1 and random.random() < 0.3,
    )


def swarm(random: Random) -> Knobs:
    """Return knobs in which every kind of fault is on or off for the whole run, at a strength of its own."""
    pick = random.choice
    knobs = uniform(random)
    return replace(
        knobs,
        spares=pick((0, 1, 1, 2)),
        latency_ms=pick((0.2, 1.0, 5.0)),
        request_lost=pick((0.0, 0.02, 0.1, 0.25)),
        answer_lost=pick((0.0, 0.02, 0.1, 0.25)),
        request_doubled=pick((0.0, 0.0, 0.05, 0.2)),
        straggler=pick((0.0, 0.05, 0.2)),
        straggler_ms=pick((20.0, 300.0, 3000.0)),
        sync_ms=pick((0.1, 0.5, 5.0, 40.0)),
        torn_commit=pick((0.0, 0.5, 1.0)),
        store_ms=pick((0.2, 1.0, 10.0)),
        store_answer_lost=pick((0.0, 0.05, 0.25)),
        store_stale_read=pick((0.0, 0.2)),
        store_away=pick((0, 0, 1, 2)),
        cuts=pick((0, 1, 4)),
        partitions=pick((0, 0, 1, 3)),
        crashes=pick((0, 1, 2, 4)),
        pauses=pick((0, 0, 1, 2)),
        writer_dies=pick((0.0, 0.3, 1.0)),
        read_only=pick((0, 0, 1)),
        wipes=pick((0, 0, 0, 1)) if knobs.ack_quorum > 1 else 0,
        no_space=pick((0, 0, 1)),
        deletes=pick((0.0, 0.0, 0.0, 0.5)),
        flipped_bits=pick((0, 0, 0, 1)) if knobs.ack_quorum > 1 else 0,
        hostile=pick((0.0, 0.0, 0.03, 0.1)),
        batches=pick((0, 1, 2, 6)),
        entries_max=pick((1, 3, 6)),
        lone=pick((0, 0, 10)),
        think_ms=pick((0.0, 2.0, 20.0)),
        second_recoverer=pick((0.0, 0.5, 1.0)),
        early_recovery=pick((0.0, 0.5, 1.0)),
        tails=pick((0, 0, 0, 1, 2)),
        delay_ensemble_change=pick((False, False, True)),
        allow_degraded_writes=pick((False, False, True)),
    )


def quiet(e: int = 3, qw: int = 3, qa: int = 2, **changes: object) -> Knobs:
    """Return knobs without faults, for scripts."""
    calm = Knobs(
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        request_lost=0,
        answer_lost=0,
        request_doubled=0,
        straggler=0,
        store_answer_lost=0,
        store_stale_read=0,
        cuts=0,
        crashes=0,
        writer_dies=0,
        recoverer_dies=0,
        tails=0,
        batches=0,
        second_recoverer=0,
        early_recovery=0,
    )
    return replace(calm, **changes)
