# SPDX-License-Identifier: Apache-2.0
"""Known defects of a bookie with several data directories, put back while a context lasts."""

from __future__ import annotations

from typing import Any

from bookie_server.engine.several_directories import SpreadHoldings
from bookie_server.machine.core import Core
from bookie_server.machine.requests import Requests
from tests.sim.mutants.storage import Planted, _planted

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


SPREAD_MUTANTS: list[tuple[str, str, Planted]] = [
    ("a ledger moves after a restart", "S1", _planted((SpreadHoldings, "log_of", forgetful))),
    ("limbo of another directory is ignored", "S8", _planted((SpreadHoldings, "log_of", unheard_ignored))),
    ("fences go to the first log", "S1", _planted((Core, "fence", fence_to_the_first))),
    ("a fence waits for any log", "S1", _planted((Requests, "_waits_for_fence", any_log_is_durable))),
    ("a refused group moves its ledgers", "S1", _planted((Core, "_choose_anew", moved))),
]
"""Name, rule, context."""
