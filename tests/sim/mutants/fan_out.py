# SPDX-License-Identifier: Apache-2.0
"""Defects put into the publish into several logs; ``run_fan_out_schedule`` of tests/sim/log_fan_out.py finds each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.logs.machines import ask, publication
from bk_core.logs.machines import change as head_change
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import Facts, HeadChange
from bk_core.logs.machines.publication import Publish, PublishAmong
from bk_core.logs.model.head import LogHead, Published, PublishId
from tests.sim.mutants import logs
from tests.sim.mutants.mutant import Mutants, changed

MUTANTS = Mutants()

_PUBLISH_SETTLED = Publish.settled


@MUTANTS.instead(HeadChange, "_settled", "every log must remember a fan-out", "K10")
def every_log_must_remember(settled: Any, self: HeadChange[Any]) -> tuple[dict[str, Any], Any, BookKeeperError | None]:
    found, pages, refused = settled(self)
    return found if len(found) == len(self._parts) else {}, pages, refused


@MUTANTS.instead(HeadChange, "_settled", "only the first log is asked", "K10")
def first_log_tells(settled: Any, self: HeadChange[Any]) -> tuple[dict[str, Any], Any, BookKeeperError | None]:
    found, pages, refused = settled(self)
    first = next(iter(self._parts))
    return {log: published for log, published in found.items() if log == first}, pages, refused


@MUTANTS.instead(PublishAmong, "settled", "a version with other logs is a replay", "N5")
def version_is_enough(_: Any, self: PublishAmong, head: LogHead, facts: Facts) -> Published | None:
    return _PUBLISH_SETTLED(self, head, facts)


@MUTANTS.instead(publication, "fan_out_id", "the id does not name the logs", "N4")
def any_version(_: Any, publish_id: PublishId, rows: Mapping[str, int]) -> PublishId:
    return publish_id


@MUTANTS.instead(HeadChange, "_is_ruled_out", "a multi is ruled out by a log that did not move", "N4")
def ruled_out_by_standing_still(ruled_out: Any, self: HeadChange[Any], doubt: Any, pages: Any) -> bool:
    standing = any(part.read.version == doubt.made[log].version for log, part in self._parts.items())
    return standing or ruled_out(self, doubt, pages)


@MUTANTS.instead(HeadChange, "_write", "one log at a time", "K10")
def one_multi_a_log(write: Any, self: HeadChange[Any]) -> Steps[None]:
    """The first log alone, as if the others were to follow."""
    steps = write(self)
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


MUTANTS.add("a conflict of a fan-out is a success", "N4", changed(HeadChange, "_write", logs.conflict_is_success))
MUTANTS.add("a lost answer of a multi is a failure", "N4", changed(HeadChange, "_write", logs.unknown_is_failed))
MUTANTS.add("ledgers of a fan-out checked once", "N6", changed(head_change._Part, "learn_head", logs.checked_once))
MUTANTS.add("a fan-out that fails in doubt deletes", "N4", changed(HeadChange, "run", logs.deletes_in_doubt))
