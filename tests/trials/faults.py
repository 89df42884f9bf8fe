# SPDX-License-Identifier: Apache-2.0
"""The faults of a trial: what each does, and how it ends."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.trials.nodes import Bookie, TrialCluster

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one moment. ``begin`` does it and returns what ends it."""

    kind: str
    after_s: float
    lasts_s: float
    begin: Callable[[], Undo]


def choose_faults(rng: random.Random, cluster: TrialCluster) -> list[Fault]:
    """Faults of one round: one to four on bookies, sometimes one on ZooKeeper, at random moments."""
    faults = []
    for bookie in rng.sample(cluster.bookies, rng.choice([1, 1, 2, 2, 3, 4])):
        kind = rng.choice([kind for kind in _BOOKIE_FAULTS if cluster.network or kind != "partition"])
        begin = _bookie_fault(kind, bookie, rng.random())
        faults.append(Fault(f"bookie {kind}", rng.uniform(0, 1.0), rng.uniform(0.1, 1.2), begin))
    if rng.random() < 0.4:
        kind = rng.choices(list(_ZOOKEEPER_FAULTS), [1 if kind == "SIGKILL" else 3 for kind in _ZOOKEEPER_FAULTS])[0]
        faults.append(
            Fault(f"zookeeper {kind}", rng.uniform(0, 1.0), rng.uniform(0.1, 1.0), _zookeeper_fault(kind, cluster))
        )
    return sorted(faults, key=lambda fault: fault.after_s)


# --- bookies ----------------------------------------------------------------------------------------------------------


def _bookie_fault(kind: str, bookie: Bookie, chance: float) -> Callable[[], Undo]:
    return lambda: _BOOKIE_FAULTS[kind](bookie, chance)


def _cut(bookie: Bookie, chance: float) -> Undo:
    bookie.proxy.cut()
    return bookie.proxy.heal


def _refuse(bookie: Bookie, chance: float) -> Undo:
    bookie.proxy.refuse()
    return bookie.proxy.heal


def _delay(bookie: Bookie, chance: float) -> Undo:
    bookie.proxy.delay(0.002 + chance * 0.2)
    return bookie.proxy.heal


def _stall(requests: bool, answers: bool) -> Callable[[Bookie, float], Undo]:
    """Half of them end like a partition that TCP survives, half with a reset."""

    def begin(bookie: Bookie, chance: float) -> Undo:
        bookie.proxy.stall(requests=requests, answers=answers)

        def undo() -> None:
            if chance < 0.5:
                bookie.proxy.cut()
            bookie.proxy.heal()

        return undo

    return begin


def _stop(bookie: Bookie, chance: float) -> Undo:
    bookie.stop()
    return bookie.resume


def _kill(bookie: Bookie, chance: float) -> Undo:
    bookie.kill()
    return bookie.start


def _partition(bookie: Bookie, chance: float) -> Undo:
    bookie.partition(away=True)
    return lambda: bookie.partition(away=False)


_BOOKIE_FAULTS: dict[str, Callable[[Bookie, float], Undo]] = {
    "cut": _cut,
    "refuse": _refuse,
    "delay": _delay,
    "requests stall": _stall(True, False),
    "answers stall": _stall(False, True),
    "hang": _stall(True, True),
    "SIGSTOP": _stop,
    "SIGKILL": _kill,
    "partition": _partition,  # only where each bookie has a network of its own
}


# --- ZooKeeper --------------------------------------------------------------------------------------------------------


def _zookeeper_fault(kind: str, cluster: TrialCluster) -> Callable[[], Undo]:
    return lambda: _ZOOKEEPER_FAULTS[kind](cluster)


def _cut_clients(cluster: TrialCluster) -> Undo:
    cluster.zookeeper_clients.cut()
    return cluster.zookeeper_clients.heal


def _hang_clients(cluster: TrialCluster) -> Undo:
    cluster.zookeeper_clients.stall(requests=True, answers=True)
    return cluster.zookeeper_clients.heal


def _mute_clients(cluster: TrialCluster) -> Undo:
    cluster.zookeeper_clients.stall(requests=False, answers=True)

    def undo() -> None:
        cluster.zookeeper_clients.cut()
        cluster.zookeeper_clients.heal()

    return undo


def _cut_bookies(cluster: TrialCluster) -> Undo:
    cluster.zookeeper_bookies.refuse()
    return cluster.zookeeper_bookies.heal


def _lose_answer(applied: bool) -> Callable[[TrialCluster], Undo]:
    def begin(cluster: TrialCluster) -> Undo:
        cluster.zookeeper_answers.lose_next_answer(applied=applied)
        return lambda: None

    return begin


def _stop_zookeeper(cluster: TrialCluster) -> Undo:
    cluster.signal_zookeeper(signal.SIGSTOP)
    return lambda: cluster.signal_zookeeper(signal.SIGCONT)


def _kill_zookeeper(cluster: TrialCluster) -> Undo:
    cluster.kill_zookeeper()
    return cluster.start_zookeeper


_ZOOKEEPER_FAULTS: dict[str, Callable[[TrialCluster], Undo]] = {
    "cut": _cut_clients,
    "hang": _hang_clients,
    "answers stall": _mute_clients,
    "cut from bookies": _cut_bookies,
    "answer lost": _lose_answer(True),
    "request lost": _lose_answer(False),
    "SIGSTOP": _stop_zookeeper,
    "SIGKILL": _kill_zookeeper,
}
