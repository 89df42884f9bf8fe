# SPDX-License-Identifier: Apache-2.0
"""The scopes that are searched, with the number of worlds of each. Scopes without a number have not been exhausted."""

from __future__ import annotations

from typing import Any

from tests.sim.exhaustive.scope import Scope

_PAIR: dict[str, Any] = {"bookies": 2, "ensemble": 2, "write_quorum": 2, "ack_quorum": 2}
_ONE: dict[str, Any] = {"bookies": 1, "ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
_SLOW_STORE: dict[str, Any] = {"acks_at_once": False, "store_at_once": False}

SCOPES: tuple[Scope, ...] = (
    Scope(name="pair", says="2/2/2, one entry, one recovery", **_PAIR, states=994),
    Scope(name="one-recovery", says="3/3/2, one entry, one recovery", states=53_527),
    Scope(
        name="pair-crash",
        says="2/2/2, one entry, one recovery, one crash",
        **_PAIR,
        crashes=1,
        crashable=(0,),
        states=10_510,
    ),
    Scope(name="timeout", says="3/3/2, one entry, one recovery, one silent bookie", timeouts=1, states=206_387),
    Scope(name="crash", says="3/3/2, one entry, one recovery, one crash", crashes=1, states=568_764, seconds=300),
    Scope(name="two-entries", says="3/3/2, two entries, one recovery", entries=2, seconds=900),
    Scope(
        name="change",
        says="3/3/2 and a spare bookie, two entries, one ensemble change, the store is slow",
        bookies=4,
        entries=2,
        recoverers=0,
        suspects=1,
        **_SLOW_STORE,
        states=3_506,
    ),
    Scope(
        name="change-lost",
        says="2/2/2 and a spare bookie, two entries, one ensemble change, one lost answer of the store",
        **{**_PAIR, "bookies": 3},
        entries=2,
        recoverers=0,
        suspects=1,
        lost_answers=1,
        **_SLOW_STORE,
        states=1_197,
    ),
    Scope(
        name="change-and-recovery",
        says="2/2/2 and a spare bookie, one entry, one ensemble change against one recovery",
        **{**_PAIR, "bookies": 3},
        suspects=1,
        **_SLOW_STORE,
        states=42_488,
    ),
    Scope(
        name="close-and-recovery",
        says="2/2/2, one entry, the writer closes while a recovery goes on",
        **_PAIR,
        closes=1,
        **_SLOW_STORE,
        states=12_410,
    ),
    Scope(
        name="change-lost-and-recovery",
        says="the same with one lost answer of the store",
        **{**_PAIR, "bookies": 3},
        suspects=1,
        lost_answers=1,
        **_SLOW_STORE,
        states=167_293,
    ),
    Scope(
        name="two-changes",
        says="3/3/2 and a spare bookie, two entries, two bookies given up",
        bookies=4,
        entries=2,
        recoverers=0,
        suspects=2,
        suspectable=(0, 1),
        **_SLOW_STORE,
        states=53_668,
    ),
    Scope(
        name="delayed-change",
        says="3/3/2 and a spare bookie, three entries, changes only when an ack quorum needs them",
        bookies=4,
        entries=3,
        recoverers=0,
        suspects=2,
        suspectable=(0, 1),
        delayed=True,
        **_SLOW_STORE,
        states=43_175,
    ),
    Scope(
        name="degraded",
        says="3/3/2 without a spare, two entries, two bookies given up, the writer goes on while it can and closes",
        entries=2,
        recoverers=0,
        suspects=2,
        suspectable=(0, 1),
        degraded=True,
        closes=1,
        **_SLOW_STORE,
        states=6_574,
    ),
    Scope(
        name="striped",
        says="3/2/2, two entries, one recovery",
        write_quorum=2,
        entries=2,
        states=78_929,
    ),
    Scope(
        name="striped-change",
        says="3/2/1 and a spare bookie, three entries, one ensemble change, the writer closes",
        bookies=4,
        write_quorum=2,
        ack_quorum=1,
        entries=3,
        recoverers=0,
        suspects=1,
        suspectable=(0, 1, 2),
        closes=1,
        **_SLOW_STORE,
        states=75_300,
    ),
    Scope(
        name="cut",
        says="3/3/2, two entries, one session breaks and is opened again",
        entries=2,
        recoverers=0,
        cuts=1,
        timers=1,
        acks_at_once=False,
        states=13_545,
    ),
    Scope(
        name="two-recoveries-one-copy",
        says="1/1/1, one entry, two recoveries",
        **_ONE,
        recoverers=2,
        store_at_once=False,
        states=6_396,
    ),
    Scope(
        name="two-recoveries-empty",
        says="2/2/2, no entry, two recoveries",
        **_PAIR,
        entries=0,
        recoverers=2,
        store_at_once=False,
        states=358_011,
        seconds=120,
    ),
    Scope(
        name="two-recoveries",
        says="2/2/2, one entry, two recoveries",
        **_PAIR,
        recoverers=2,
        store_at_once=False,
        seconds=900,
    ),
)


def scope(name: str) -> Scope:
    return next(found for found in SCOPES if found.name == name)
