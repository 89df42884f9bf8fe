# SPDX-License-Identifier: Apache-2.0
"""Defects put into the publish into several logs; ``run_fan_out_schedule`` of tests/sim/log_fan_out.py finds each.

``MUTANTS`` lists (name, rule, context manager): the defect is there while the context lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.logs.machines import ask, publication
from bk_core.logs.machines import change as head_change
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import Facts, HeadChange
from bk_core.logs.machines.publication import Publish, PublishAmong
from bk_core.logs.model.head import LogHead, Published, PublishId
from tests.sim.mutants.logs import (
    _patched,
    checked_once,
    conflict_is_success,
    deletes_in_doubt,
    unknown_is_failed,
)

_SETTLED, _RULED_OUT, _WRITE = HeadChange._settled, HeadChange._is_ruled_out, HeadChange._write
_PUBLISH_SETTLED = Publish.settled


def _every_log_must_remember(self: HeadChange[Any]) -> tuple[dict[str, Any], Any, BookKeeperError | None]:
    found, pages, refused = _SETTLED(self)
    return found if len(found) == len(self._parts) else {}, pages, refused


def _first_log_tells(self: HeadChange[Any]) -> tuple[dict[str, Any], Any, BookKeeperError | None]:
    found, pages, refused = _SETTLED(self)
    first = next(iter(self._parts))
    return {log: published for log, published in found.items() if log == first}, pages, refused


def _version_is_enough(self: PublishAmong, head: LogHead, facts: Facts) -> Published | None:
    return _PUBLISH_SETTLED(self, head, facts)


def _any_version(publish_id: PublishId, rows: Mapping[str, int]) -> PublishId:
    return publish_id


def _ruled_out_by_standing_still(self: HeadChange[Any], doubt: Any, pages: Any) -> bool:
    standing = any(part.read.version == doubt.made[log].version for log, part in self._parts.items())
    return standing or _RULED_OUT(self, doubt, pages)


def _one_multi_a_log(self: HeadChange[Any]) -> Steps[None]:
    """The first log alone, as if the others were to follow."""
    steps = _WRITE(self)
    request = next(steps)
    assert isinstance(request, ask.WriteHeads)
    first = dict(list(request.writes.items())[:1])
    try:
        yield ask.WriteHeads(first)
    except BookKeeperError as error:
        yield from _thrown(steps, error)
    else:
        yield from steps


def _thrown(steps: Steps[None], error: BookKeeperError) -> Steps[None]:
    try:
        request = steps.throw(error)
    except StopIteration:
        return
    yield request
    yield from steps


MUTANTS = [
    ("every log must remember a fan-out", "K10", partial(_patched, HeadChange, "_settled", _every_log_must_remember)),
    ("only the first log is asked", "K10", partial(_patched, HeadChange, "_settled", _first_log_tells)),
    ("one log at a time", "K10", partial(_patched, HeadChange, "_write", _one_multi_a_log)),
    ("a version with other logs is a replay", "N5", partial(_patched, PublishAmong, "settled", _version_is_enough)),
    ("the id does not name the logs", "N4", partial(_patched, publication, "fan_out_id", _any_version)),
    ("a conflict of a fan-out is a success", "N4", partial(_patched, HeadChange, "_write", conflict_is_success)),
    ("a lost answer of a multi is a failure", "N4", partial(_patched, HeadChange, "_write", unknown_is_failed)),
    (
        "a multi is ruled out by a log that did not move",
        "N4",
        partial(_patched, HeadChange, "_is_ruled_out", _ruled_out_by_standing_still),
    ),
    ("ledgers of a fan-out checked once", "N6", partial(_patched, head_change._Part, "learn_head", checked_once)),
    ("a fan-out that fails in doubt deletes", "N4", partial(_patched, HeadChange, "run", deletes_in_doubt)),
]
