# SPDX-License-Identifier: Apache-2.0
"""Every shortcut that would make the garbage collector delete what is live (I12, RULES S9), or never delete: put back
while a context lasts. ``CollectorWorld`` finds each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from bk_core.metadata.tree.store import TreeStore
from bookie_server.garbage import collector as gc
from bookie_server.garbage.collector import Collector, Forget, Hinted, Looked, LookFailed, SetTimer
from bookie_server.garbage.garbage_thread import StoreEvidence
from tests.sim.collector_schedule import LaggingStore

Patch = Callable[[Any, str, Any], None]
_looked, _look_failed = Collector._looked, Collector._look_failed


def _no_grace(patch: Patch) -> None:
    step = Collector.step

    def hurried(self: Collector, event: gc.Event) -> list[gc.Effect]:
        return [SetTimer(e.timer, 0) if isinstance(e, SetTimer) and e.timer > 0 else e for e in step(self, event)]

    patch(Collector, "step", hurried)


def _no_second_look(patch: Patch) -> None:
    def looked(self: Collector, event: Looked) -> None:
        if event.look in self._looks:
            self._looks[event.look].session = event.session
        _looked(self, event)

    patch(Collector, "_looked", looked)


def _no_sync(patch: Patch) -> None:
    patch(LaggingStore, "sync", lambda _: None)


def _delete_on_error(patch: Patch) -> None:
    def failed(self: Collector, event: LookFailed) -> None:
        batch = self._looks.get(event.look)
        if batch:
            self._handlers[Looked](Looked(event.look, batch.session or 0, frozenset(batch.ledger_ids), {}))

    _rewire(patch, LookFailed, failed)


def _list_trusted(patch: Patch) -> None:
    def compared(self: Collector, event: gc.Compared) -> None:
        self._set_timer(gc.COMPARE_TIMER, self._config.interval_ms)
        if event.missing:
            self._effects.append(Forget(tuple(event.missing)))

    _rewire(patch, gc.Compared, compared)


def _hint_trusted(patch: Patch) -> None:
    def hinted(self: Collector, event: Hinted) -> None:
        self._effects.append(Forget(tuple(event.ledger_ids)))

    _rewire(patch, Hinted, hinted)


def _found_is_not_read(patch: Patch) -> None:
    def looked(self: Collector, event: Looked) -> None:
        batch = self._looks.get(event.look)
        _looked(self, Looked(event.look, event.session, frozenset(batch.ledger_ids if batch else ()), {}))

    _rewire(patch, Looked, looked)


def _cluster_not_confirmed(patch: Patch) -> None:
    patch(LaggingStore, "confirm_cluster", lambda _: None)


def _cluster_remembered(patch: Patch) -> None:
    patch(TreeStore, "confirm_cluster", lambda self: self.instance_id() and None)


def _start_not_compared(patch: Patch) -> None:
    patch(StoreEvidence, "_check_store", lambda self: self._store.confirm_cluster())


def _never_looks_again_after_an_error(patch: Patch) -> None:
    def failed(self: Collector, event: LookFailed) -> None:
        self._answered(event.look)  # its candidates stay known, and no hint or comparison brings them back

    _rewire(patch, LookFailed, failed)


def _rewire(patch: Patch, event: type, handler: Callable[[Any, Any], None]) -> None:
    begin = Collector.__init__

    def init(self: Collector, config: gc.CollectorConfig | None = None) -> None:
        begin(self, config)
        self._handlers[event] = lambda one: handler(self, one)

    patch(Collector, "__init__", init)


@contextmanager
def _planted(plant: Callable[[Patch], None]) -> Iterator[None]:
    before: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    plant(patch)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


COLLECTOR_MUTANTS: list[tuple[str, str, Callable[[], AbstractContextManager[None]]]] = [
    ("no grace", "S9", partial(_planted, _no_grace)),
    ("no second look", "S9", partial(_planted, _no_second_look)),
    ("no sync", "S9", partial(_planted, _no_sync)),
    ("an error counts as gone", "S9", partial(_planted, _delete_on_error)),
    ("the list is trusted, short or empty", "S9", partial(_planted, _list_trusted)),
    ("a hint is trusted", "S9", partial(_planted, _hint_trusted)),
    ("what was found is not read", "S9", partial(_planted, _found_is_not_read)),
    ("a root that is gone counts", "S9", partial(_planted, _cluster_not_confirmed)),
    ("the cluster's id is remembered, not read", "S9", partial(_planted, _cluster_remembered)),
    ("a store put back to before the start counts", "S9", partial(_planted, _start_not_compared)),
    ("a look that failed is never made again", "S9", partial(_planted, _never_looks_again_after_an_error)),
]
"""Name, rule, context."""
