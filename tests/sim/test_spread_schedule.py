# SPDX-License-Identifier: Apache-2.0
"""Random schedules of a bookie with several data directories hold every promise; defects put back are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bookie_server.engine.spread import SpreadHoldings
from bookie_server.machine.core import Core
from bookie_server.machine.requests import Requests
from tests.sim.spread_schedule import run_spread_schedule


@pytest.mark.sim
@pytest.mark.rule("S1")
@pytest.mark.rule("S8")
def test_promises_hold_with_several_directories() -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        counts += run_spread_schedule(seed).counts
    wanted = ("crash in a commit", "crash in a restart", "no space", "damaged", "groups of log 0", "groups of log 1")
    assert all(counts[what] > 3 for what in wanted), counts


FENCE = Core.fence


def forgetful(self: SpreadHoldings, ledger_id: int) -> int:
    """Where a ledger is is asked of the policy alone, which may say another one after a restart."""
    return self._found.get(ledger_id, self._choose(ledger_id))


def unheard_ignored(self: SpreadHoldings, ledger_id: int) -> int:
    found = next((k for k, part in enumerate(self._parts) if part.knows(ledger_id)), None)
    return self._choose(ledger_id) if found is None else found


def fence_to_the_first(self: Core, ledger_id: int, key: bytes) -> Any:
    """Fence records go to the first log, wherever the ledger is."""
    ledger = self.ledger(ledger_id)
    log, ledger.log = ledger.log, self.logs[0]
    answer = FENCE(self, ledger_id, key)
    ledger.log = log
    return answer


def any_log_is_durable(self: Requests, request: Any) -> bool:
    """A fence waits for its number in whichever log is ahead."""
    ledger = self._core.ledgers.get(request.ledger_id) if request.fencing else None
    if ledger is None or ledger.fence_sequence is None:
        return False
    if ledger.fence_sequence <= max(log.durable for log in self._core.logs):
        return False
    ledger.log.park(request.request_id, ledger.fence_sequence)
    return True


def moved(self: Core, ledger: Any) -> None:
    """A refused group moves its ledgers, though something of them is durable."""
    ledger.log = self.logs[(ledger.log.number + 1) % len(self.logs)]


DEFECTS: list[tuple[str, object, str, Any]] = [
    ("a ledger moves after a restart", SpreadHoldings, "log_of", forgetful),
    ("limbo of another directory is ignored", SpreadHoldings, "log_of", unheard_ignored),
    ("fences go to the first log", Core, "fence", fence_to_the_first),
    ("a fence waits for any log", Requests, "_waits_for_fence", any_log_is_durable),
    ("a refused group moves its ledgers", Core, "_choose_anew", moved),
]


@pytest.mark.sim
@pytest.mark.parametrize(("name", "owner", "attribute", "defect"), DEFECTS, ids=[name for name, *_ in DEFECTS])
def test_a_defect_put_back_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: object, attribute: str, defect: Any
) -> None:
    monkeypatch.setattr(owner, attribute, defect)
    for seed in range(60):
        try:
            run_spread_schedule(seed)
        except Exception as found:
            print(seed, found)
            return
    raise AssertionError(f"{name}: not found")
