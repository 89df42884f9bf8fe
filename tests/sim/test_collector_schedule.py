# SPDX-License-Identifier: Apache-2.0
"""I12 under a store that fails, lags, is emptied and comes back; and every shortcut that would break it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bk_core.metadata.tree.store import TreeStore
from bookie_server.garbage import collector as gc
from bookie_server.garbage.collector import Collector, Forget, Hinted, Looked, LookFailed, SetTimer
from bookie_server.garbage.garbage_thread import StoreEvidence
from tests.sim.collector_schedule import CollectorWorld, LaggingStore

pytestmark = pytest.mark.sim

SEEDS = 60


@pytest.mark.rule("S9")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_ledger_that_the_store_assigns_is_ever_forgotten(seed: int) -> None:
    CollectorWorld(seed).run()


def test_the_schedules_reach_what_they_are_for() -> None:
    told = []
    for seed in range(20):
        world = CollectorWorld(seed)
        world.run()
        told += world.told
    text = "\n".join(told)
    for wanted in ("forgets", "MetadataUnavailableError", "MetadataCorruptError", "BookieIdentityError"):
        assert wanted in text


# --- known defects ---

Plant = Callable[[pytest.MonkeyPatch], None]
_looked, _look_failed = Collector._looked, Collector._look_failed


def _no_grace(patch: pytest.MonkeyPatch) -> None:
    step = Collector.step

    def hurried(self: Collector, event: gc.Event) -> list[gc.Effect]:
        return [SetTimer(e.timer, 0) if isinstance(e, SetTimer) and e.timer > 0 else e for e in step(self, event)]

    patch.setattr(Collector, "step", hurried)


def _no_second_look(patch: pytest.MonkeyPatch) -> None:
    def looked(self: Collector, event: Looked) -> None:
        if event.look in self._looks:
            self._looks[event.look].session = event.session
        _looked(self, event)

    patch.setattr(Collector, "_looked", looked)


def _no_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaggingStore, "sync", lambda _: None)


def _delete_on_error(patch: pytest.MonkeyPatch) -> None:
    def failed(self: Collector, event: LookFailed) -> None:
        batch = self._looks.get(event.look)
        if batch:
            self._handlers[Looked](Looked(event.look, batch.session or 0, frozenset(batch.ledger_ids), {}))

    _rewire(patch, LookFailed, failed)


def _list_trusted(patch: pytest.MonkeyPatch) -> None:
    def compared(self: Collector, event: gc.Compared) -> None:
        self._set_timer(gc.COMPARE_TIMER, self._config.interval_ms)
        if event.missing:
            self._effects.append(Forget(tuple(event.missing)))

    _rewire(patch, gc.Compared, compared)


def _hint_trusted(patch: pytest.MonkeyPatch) -> None:
    def hinted(self: Collector, event: Hinted) -> None:
        self._effects.append(Forget(tuple(event.ledger_ids)))

    _rewire(patch, Hinted, hinted)


def _found_is_not_read(patch: pytest.MonkeyPatch) -> None:
    def looked(self: Collector, event: Looked) -> None:
        batch = self._looks.get(event.look)
        _looked(self, Looked(event.look, event.session, frozenset(batch.ledger_ids if batch else ()), {}))

    _rewire(patch, Looked, looked)


def _cluster_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaggingStore, "confirm_cluster", lambda _: None)


def _cluster_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TreeStore, "confirm_cluster", lambda self: self.instance_id() and None)


def _start_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreEvidence, "_check_store", lambda self: self._store.confirm_cluster())


def _never_looks_again_after_an_error(patch: pytest.MonkeyPatch) -> None:
    def failed(self: Collector, event: LookFailed) -> None:
        self._answered(event.look)  # its candidates stay known, and no hint or comparison brings them back

    _rewire(patch, LookFailed, failed)


def _rewire(patch: pytest.MonkeyPatch, event: type, handler: Callable[[Any, Any], None]) -> None:
    begin = Collector.__init__

    def init(self: Collector, config: gc.CollectorConfig | None = None) -> None:
        begin(self, config)
        self._handlers[event] = lambda one: handler(self, one)

    patch.setattr(Collector, "__init__", init)


MUTANTS: dict[str, Plant] = {
    "no grace": _no_grace,
    "no second look": _no_second_look,
    "no sync": _no_sync,
    "an error counts as gone": _delete_on_error,
    "the list is trusted, short or empty": _list_trusted,
    "a hint is trusted": _hint_trusted,
    "what was found is not read": _found_is_not_read,
    "a root that is gone counts": _cluster_not_confirmed,
    "the cluster's id is remembered, not read": _cluster_remembered,
    "a store put back to before the start counts": _start_not_compared,
    "a look that failed is never made again": _never_looks_again_after_an_error,
}


@pytest.mark.rule("S9")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_that_is_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS):
        try:
            CollectorWorld(seed).run()
        except AssertionError:
            return
    pytest.fail("the defect was not found")
