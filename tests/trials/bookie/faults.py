# SPDX-License-Identifier: Apache-2.0
"""The faults of a trial: how each begins and how it ends."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tests.kit.zookeeper_ensemble import EnsembleServer
from tests.trials.kit.cluster import Bookie, TrialCluster
from tests.trials.kit.zookeepers import ZooKeeper, ZooKeepers, for_each

Undo = Callable[[], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one moment. ``begin`` causes the fault, and returns the function that ends it."""

    kind: str
    after_s: float
    lasts_s: float
    begin: Callable[[], Undo]


def choose_faults(rng: random.Random, cluster: TrialCluster) -> list[Fault]:
    """Choose the faults of one round: one to four on bookies, often one on ZooKeeper's servers, at random moments."""
    faults = []
    for bookie in rng.sample(cluster.bookies, rng.choice([1, 1, 2, 2, 3, 4])):
        kind = rng.choice([kind for kind in _BOOKIE_FAULTS if cluster.network or kind != "partition"])
        begin = _bookie_fault(kind, bookie, rng.random())
        faults.append(Fault(f"bookie {kind}", rng.uniform(0, 1.0), rng.uniform(0.1, 1.2), begin))
    if rng.random() < (0.4 if len(cluster.zookeepers.all) == 1 else 0.7):
        faults.append(_zookeeper_fault(rng, cluster.zookeepers))
    return sorted(faults, key=lambda fault: fault.after_s)


# --- bookies ----------------------------------------------------------------------------------------------------------


def _bookie_fault(kind: str, bookie: Bookie, chance: float) -> Callable[[], Undo]:
    return lambda: _BOOKIE_FAULTS[kind](bookie, chance)


def _fault(begin: Callable[[T, float], None], end: Callable[[T], None]) -> Callable[[T, float], Undo]:
    """Return a fault that these calls begin and end."""

    def begun(victim: T, chance: float) -> Undo:
        begin(victim, chance)
        return partial(end, victim)

    return begun


def _heal(bookie: Bookie) -> None:
    bookie.proxy.heal()


def _stall(requests: bool, answers: bool) -> Callable[[Bookie, float], Undo]:
    """Return a fault that stalls these directions. Half of these faults end like a partition that TCP survives, half
    with a reset."""

    def begin(bookie: Bookie, chance: float) -> Undo:
        bookie.proxy.stall(requests=requests, answers=answers)

        def undo() -> None:
            if chance < 0.5:
                bookie.proxy.cut()
            bookie.proxy.heal()

        return undo

    return begin


_BOOKIE_FAULTS: dict[str, Callable[[Bookie, float], Undo]] = {
    "cut": _fault(lambda bookie, _: bookie.proxy.cut(), _heal),
    "refuse": _fault(lambda bookie, _: bookie.proxy.refuse(), _heal),
    "delay": _fault(lambda bookie, chance: bookie.proxy.delay(0.002 + chance * 0.2), _heal),
    "requests stall": _stall(True, False),
    "answers stall": _stall(False, True),
    "hang": _stall(True, True),
    "SIGSTOP": _fault(lambda bookie, _: bookie.stop(), Bookie.resume),
    "SIGKILL": _fault(lambda bookie, _: bookie.kill(), Bookie.start),
    # chosen only if each bookie has a network of its own
    "partition": _fault(lambda bookie, _: bookie.partition(away=True), lambda bookie: bookie.partition(away=False)),
}


# --- ZooKeeper --------------------------------------------------------------------------------------------------------


def _zookeeper_fault(rng: random.Random, zookeepers: ZooKeepers) -> Fault:
    """Choose a fault of the lines to one server or to all, of one server, or of all servers."""
    kinds = _SERVER_FAULTS | (_ENSEMBLE_FAULTS if len(zookeepers.all) > 1 else {})
    kind = rng.choices([*_LINE_FAULTS, *kinds], [3] * len(_LINE_FAULTS) + [weight for weight, _ in kinds.values()])[0]
    after_s, lasts_s, chance = rng.uniform(0, 1.0), rng.uniform(0.1, 1.0), rng.random()
    if kind in kinds:
        lasts_s *= 2 if kind == "follower lags" else 1
        return Fault(f"zookeeper {kind}", after_s, lasts_s, partial(kinds[kind][1], zookeepers, chance))
    nodes = zookeepers.all if rng.random() < 0.3 else [rng.choice(zookeepers.all)]
    of = "" if len(zookeepers.all) == 1 else " of all" if len(nodes) > 1 else " of one"
    return Fault(
        f"zookeeper {kind}{of}",
        after_s,
        lasts_s,
        lambda: for_each(nodes, lambda node: _LINE_FAULTS[kind](node, chance)),
    )


def _reset_clients(node: ZooKeeper) -> None:
    node.clients.cut()
    node.clients.heal()


def _lose_answer(applied: bool) -> Callable[[ZooKeeper, float], Undo]:
    return _fault(lambda node, _: node.answers.lose_next_answer(applied=applied), lambda _: None)


_LINE_FAULTS: dict[str, Callable[[ZooKeeper, float], Undo]] = {
    "cut": _fault(lambda node, _: node.clients.cut(), lambda node: node.clients.heal()),
    "hang": _fault(lambda node, _: node.clients.stall(requests=True, answers=True), lambda node: node.clients.heal()),
    "answers stall": _fault(lambda node, _: node.clients.stall(requests=False, answers=True), _reset_clients),
    "cut from bookies": _fault(lambda node, _: node.bookies.refuse(), lambda node: node.bookies.heal()),
    "answer lost": _lose_answer(True),
    "request lost": _lose_answer(False),
}

_SERVER_FAULTS: dict[str, tuple[int, Callable[[ZooKeepers, float], Undo]]] = {
    "SIGSTOP": (3, _fault(lambda zookeepers, _: zookeepers.signal_all(signal.SIGSTOP), ZooKeepers.resume_all)),
    "SIGKILL": (1, _fault(lambda zookeepers, _: zookeepers.kill_all(), ZooKeepers.launch_all)),
}
"""The faults of all servers at once, with their weights."""


def _of_server(of_leader: bool, fault: Callable[[EnsembleServer, float], Undo]) -> Callable[[ZooKeepers, float], Undo]:
    """Return a fault of the leader or of a follower."""

    def begin(zookeepers: ZooKeepers, chance: float) -> Undo:
        return fault(zookeepers.leader_or_any() if of_leader else zookeepers.follower_or_any(chance), chance)

    return begin


_STOP: Callable[[EnsembleServer, float], Undo] = _fault(
    lambda server, _: server.signal(signal.SIGSTOP), lambda server: server.signal(signal.SIGCONT)
)
_KILL: Callable[[EnsembleServer, float], Undo] = _fault(lambda server, _: server.kill(), EnsembleServer.launch)


def _hold_back(zookeepers: ZooKeepers, chance: float) -> Undo:
    """Hold back all messages to a follower. It serves its old state, and then gets all messages at once."""
    follower = zookeepers.follower_or_any(chance)
    zookeepers.ensemble.hold_back(follower)
    return lambda: _heal_links(follower)


def _slow_links(zookeepers: ZooKeepers, chance: float) -> Undo:
    """Delay all messages to a follower, so that its state is always a little old."""
    follower = zookeepers.follower_or_any(chance)
    for link in follower.links.values():
        link.delay(0.01 + chance * 0.1)
    return lambda: _heal_links(follower)


def _cut_links(zookeepers: ZooKeepers, chance: float) -> Undo:
    """Cut the links of a server. It leaves the ensemble and comes back; if it leads, the others leave it."""
    server = zookeepers.all[int(chance * len(zookeepers.all))].server
    for link in (*server.links.values(), *(each.server.links.get(server.number) for each in zookeepers.all)):
        if link is not None:
            link.refuse()
    return zookeepers.ensemble.heal_links


def _heal_links(server: EnsembleServer) -> None:
    for link in server.links.values():
        link.heal()


_ENSEMBLE_FAULTS: dict[str, tuple[int, Callable[[ZooKeepers, float], Undo]]] = {
    "leader SIGSTOP": (3, _of_server(True, _STOP)),
    "leader SIGKILL": (3, _of_server(True, _KILL)),
    "follower SIGSTOP": (3, _of_server(False, _STOP)),
    "follower SIGKILL": (3, _of_server(False, _KILL)),
    "follower lags": (9, _hold_back),
    "follower a little behind": (6, _slow_links),
    "server cut off": (3, _cut_links),
}
"""The faults of one server of several, with their weights."""
