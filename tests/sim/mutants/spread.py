# SPDX-License-Identifier: Apache-2.0
"""Known defects of a bookie with several data directories."""

from __future__ import annotations

from typing import Any

from bookie_server.engine.several_directories import SpreadHoldings
from bookie_server.machine.core import Core
from bookie_server.machine.requests import Requests
from tests.sim.mutants.mutant import Mutants

MUTANTS = Mutants()


@MUTANTS.instead(SpreadHoldings, "log_of", "a ledger moves after a restart", "S1")
def forgetful(_: Any, self: SpreadHoldings, ledger_id: int) -> int:
    """Where a ledger is is asked of the policy alone, which may say another one after a restart."""
    return self._found.get(ledger_id, self._choose(ledger_id))


@MUTANTS.instead(SpreadHoldings, "log_of", "limbo of another directory is ignored", "S8")
def unheard_ignored(_: Any, self: SpreadHoldings, ledger_id: int) -> int:
    found = next((k for k, part in enumerate(self._parts) if part.knows(ledger_id)), None)
    return self._choose(ledger_id) if found is None else found


@MUTANTS.instead(Core, "fence", "fences go to the first log", "S1")
def fence_to_the_first(fence: Any, self: Core, ledger_id: int, key: bytes) -> Any:
    """Fence records go to the first log, wherever the ledger is."""
    ledger = self.ledger(ledger_id)
    log, ledger.log = ledger.log, self.logs[0]
    answer = fence(self, ledger_id, key)
    ledger.log = log
    return answer


@MUTANTS.instead(Requests, "_waits_for_fence", "a fence waits for any log", "S1")
def any_log_is_durable(_: Any, self: Requests, request: Any) -> bool:
    """A fence waits for its number in whichever log is ahead."""
    ledger = self._core.ledgers.get(request.ledger_id) if request.fencing else None
    if ledger is None or ledger.fence_sequence is None:
        return False
    if ledger.fence_sequence <= max(log.durable for log in self._core.logs):
        return False
    ledger.log.park(request.request_id, ledger.fence_sequence)
    return True


@MUTANTS.instead(Core, "_choose_anew", "a refused group moves its ledgers", "S1")
def moved(_: Any, self: Core, ledger: Any) -> None:
    """A refused group moves its ledgers, though something of them is durable."""
    ledger.log = self.logs[(ledger.log.number + 1) % len(self.logs)]
