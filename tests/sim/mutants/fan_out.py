# SPDX-License-Identifier: Apache-2.0
"""Defects put into the publish into several logs; ``run_fan_out_schedule`` of tests/sim/log_fan_out.py finds each.

``MUTANTS`` lists (name, rule, context manager): the defect is there while the context lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from bk_core.errors import BookKeeperError
from bk_core.logs.head import LogHead, Published, PublishId
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines import fan_out
from bk_core.logs.machines.change import Effects, Facts
from bk_core.logs.machines.fan_out import FanOut
from bk_core.logs.machines.fan_out_parts import MultiDoubt, Part, PublishAmong
from bk_core.logs.machines.publication import Publish, ledgers_of
from tests.sim.mutants.logs import _patched

_SETTLED, _WRITE_ENDED, _ABORT, _LEARNED = FanOut._settled, FanOut._on_write_ended, FanOut._abort, fan_out.learned
_PUBLISH_SETTLED, _RULED_OUT, _STEP = Publish.settled, FanOut._is_ruled_out, FanOut._step


def _every_log_must_remember(self: FanOut) -> tuple[dict[str, Published], BookKeeperError | None]:
    found, error = _SETTLED(self)
    return (found if len(found) == len(self._parts) else {}), error


def _first_log_tells(self: FanOut) -> tuple[dict[str, Published], BookKeeperError | None]:
    found, error = _SETTLED(self)
    first = next(iter(self._parts))
    return {log: published for log, published in found.items() if log == first}, error


def _version_is_enough(self: PublishAmong, head: LogHead, facts: Facts) -> Published | None:
    return _PUBLISH_SETTLED(self, head, facts)


def _any_version(publish_id: PublishId, rows: Mapping[str, int]) -> PublishId:
    return publish_id


def _conflict_is_success(self: FanOut, event: ev.Event) -> Effects:
    return _WRITE_ENDED(self, ev.HeadWritten() if isinstance(event, ev.HeadConflicted) else event)


def _unknown_is_failed(self: FanOut, event: ev.Event) -> Effects:
    return _WRITE_ENDED(self, ev.RequestFailed(event.error) if isinstance(event, ev.HeadWriteUnknown) else event)


def _ruled_out_by_standing_still(self: FanOut, doubt: MultiDoubt) -> bool:
    standing = any(part.read.version == doubt.made[log].version for log, part in self._parts.items())
    return standing or _RULED_OUT(self, doubt)


def _checked_once(part: Part, answer: ev.Event) -> Part:
    after = _LEARNED(part, answer)
    return replace(after, facts=replace(after.facts, is_checked=after.facts.is_checked or part.facts.is_checked))


def _abort_deletes(self: FanOut) -> Effects:
    ledgers = ledgers_of([extent for part in self._parts.values() for extent in part.intent.extents])
    return [ev.DropLedgers(ledgers), *(effect for effect in _ABORT(self) if isinstance(effect, ev.Fail))]


def _one_multi_a_log(self: FanOut, event: ev.Event) -> Effects:
    """The first log alone, as if the others were to follow."""
    effects = _STEP(self, event)
    return [
        ev.WriteHeads(dict(list(effect.writes.items())[:1])) if isinstance(effect, ev.WriteHeads) else effect
        for effect in effects
    ]


MUTANTS = [
    ("every log must remember a fan-out", "K10", partial(_patched, FanOut, "_settled", _every_log_must_remember)),
    ("only the first log is asked", "K10", partial(_patched, FanOut, "_settled", _first_log_tells)),
    ("one log at a time", "K10", partial(_patched, FanOut, "_step", _one_multi_a_log)),
    ("a version with other logs is a replay", "N5", partial(_patched, PublishAmong, "settled", _version_is_enough)),
    ("the id does not name the logs", "N4", partial(_patched, fan_out, "fan_out_id", _any_version)),
    ("a conflict of a fan-out is a success", "N4", partial(_patched, FanOut, "_on_write_ended", _conflict_is_success)),
    ("a lost answer of a multi is a failure", "N4", partial(_patched, FanOut, "_on_write_ended", _unknown_is_failed)),
    (
        "a multi is ruled out by a log that did not move",
        "N4",
        partial(_patched, FanOut, "_is_ruled_out", _ruled_out_by_standing_still),
    ),
    ("ledgers of a fan-out checked once", "N6", partial(_patched, fan_out, "learned", _checked_once)),
    ("abort of a fan-out in doubt deletes", "N4", partial(_patched, FanOut, "_abort", _abort_deletes)),
]
