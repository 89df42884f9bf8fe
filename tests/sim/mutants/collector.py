# SPDX-License-Identifier: Apache-2.0
"""Every shortcut that would make the garbage collector delete what is live (I12, RULES S9), or never delete: put back
while a context lasts. ``CollectorWorld`` finds each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bk_core.metadata.tree.store import TreeStore
from bookie_server.garbage import collector as gc
from bookie_server.garbage.collector import Collector, Forget, Hinted, Looked, LookFailed, SetTimer
from bookie_server.garbage.garbage_thread import StoreEvidence
from tests.sim.collector_schedule import LaggingStore
from tests.sim.mutants.storage import Planted, _planted

_begin, _step, _looked = Collector.__init__, Collector.step, Collector._looked


def _hurried(self: Collector, event: gc.Event) -> list[gc.Effect]:
    return [SetTimer(e.timer, 0) if isinstance(e, SetTimer) and e.timer > 0 else e for e in _step(self, event)]


def _looked_once(self: Collector, event: Looked) -> None:
    if event.look in self._looks:
        self._looks[event.look].session = event.session
    _looked(self, event)


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


def _handled(event: type, handler: Callable[[Any, Any], None]) -> tuple[Any, str, Any]:
    """A collector that handles the event so."""

    def init(self: Collector, config: gc.CollectorConfig | None = None) -> None:
        _begin(self, config)
        self._handlers[event] = lambda one: handler(self, one)

    return Collector, "__init__", init


COLLECTOR_MUTANTS: list[tuple[str, str, Planted]] = [
    ("no grace", "S9", _planted((Collector, "step", _hurried))),
    ("no second look", "S9", _planted((Collector, "_looked", _looked_once))),
    ("no sync", "S9", _planted((LaggingStore, "sync", lambda _: None))),
    ("an error counts as gone", "S9", _planted(_handled(LookFailed, _delete_on_error))),
    ("the list is trusted, short or empty", "S9", _planted(_handled(gc.Compared, _list_trusted))),
    ("a hint is trusted", "S9", _planted(_handled(Hinted, _hint_trusted))),
    ("what was found is not read", "S9", _planted(_handled(Looked, _found_is_not_read))),
    ("a root that is gone counts", "S9", _planted((LaggingStore, "confirm_cluster", lambda _: None))),
    (
        "the cluster's id is remembered, not read", "S9",
        _planted((TreeStore, "confirm_cluster", lambda self: self.instance_id() and None)),
    ),
    (
        "a store put back to before the start counts", "S9",
        _planted((StoreEvidence, "_check_store", lambda self: self._store.confirm_cluster())),
    ),
    ("a look that failed is never made again", "S9", _planted(_handled(LookFailed, _never_again_after_an_error))),
]  # fmt: skip
"""Name, rule, context."""
