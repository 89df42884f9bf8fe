# SPDX-License-Identifier: Apache-2.0
"""Every shortcut that would make the garbage collector delete what is live (I12, RULES S9), or never delete.
``CollectorWorld`` finds each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bk_core.metadata.tree.store import TreeStore
from bookie_server.garbage import collector as gc
from bookie_server.garbage.collector import Collector, Forget, Hinted, Looked, LookFailed, SetTimer
from bookie_server.garbage.garbage_thread import StoreEvidence
from tests.sim.collector_schedule import LaggingStore
from tests.sim.mutants.mutant import Change, Mutants, changed

MUTANTS = Mutants()


@MUTANTS.instead(Collector, "step", "no grace", "S9")
def hurried(step: Any, self: Collector, event: gc.Event) -> list[gc.Effect]:
    return [SetTimer(e.timer, 0) if isinstance(e, SetTimer) and e.timer > 0 else e for e in step(self, event)]


@MUTANTS.instead(Collector, "_looked", "no second look", "S9")
def looked_once(looked: Any, self: Collector, event: Looked) -> None:
    if event.look in self._looks:
        self._looks[event.look].session = event.session
    looked(self, event)


_looked = Collector._looked


def _found_is_not_read(self: Collector, event: Looked) -> None:
    batch = self._looks.get(event.look)
    _looked(self, Looked(event.look, event.session, frozenset(batch.ledger_ids if batch else ()), {}))


def _delete_on_error(self: Collector, event: LookFailed) -> None:
    batch = self._looks.get(event.look)
    if batch:
        self._handlers[Looked](Looked(event.look, batch.session or 0, frozenset(batch.ledger_ids), {}))


def _never_again_after_an_error(self: Collector, event: LookFailed) -> None:
    self._answered(event.look)  # its candidates stay known, and no hint or comparison brings them back


def _list_trusted(self: Collector, event: gc.Compared) -> None:
    self._set_timer(gc.COMPARE_TIMER, self._config.interval_ms)
    if event.missing:
        self._effects.append(Forget(tuple(event.missing)))


def _hint_trusted(self: Collector, event: Hinted) -> None:
    self._effects.append(Forget(tuple(event.ledger_ids)))


def _handled(event: type, handler: Callable[[Any, Any], None]) -> Change:
    """Return the change by which a collector handles the event so."""

    def init(begin: Any, self: Collector, *args: Any) -> None:
        begin(self, *args)
        self._handlers[event] = partial(handler, self)

    return changed(Collector, "__init__", init)


MUTANTS.add("no sync", "S9", (LaggingStore, "sync", lambda _: None))
MUTANTS.add("an error counts as gone", "S9", _handled(LookFailed, _delete_on_error))
MUTANTS.add("the list is trusted, short or empty", "S9", _handled(gc.Compared, _list_trusted))
MUTANTS.add("a hint is trusted", "S9", _handled(Hinted, _hint_trusted))
MUTANTS.add("what was found is not read", "S9", _handled(Looked, _found_is_not_read))
MUTANTS.add("a root that is gone counts", "S9", (LaggingStore, "confirm_cluster", lambda _: None))
MUTANTS.add(
    "the cluster's id is remembered, not read", "S9",
    (TreeStore, "confirm_cluster", lambda self: self.instance_id() and None),
)  # fmt: skip
MUTANTS.add(
    "a store put back to before the start counts", "S9",
    (StoreEvidence, "_check_store", lambda self: self._store.confirm_cluster()),
)  # fmt: skip
MUTANTS.add("a look that failed is never made again", "S9", _handled(LookFailed, _never_again_after_an_error))
