# SPDX-License-Identifier: Apache-2.0
"""Defects put into the machines and sequences of named logs; ``run_log_schedule`` of tests/sim/logs.py finds each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

from bk_core.errors import BookKeeperError, Outcome, PublishConflictError
from bk_core.logs.machines import ask, publication, upkeep
from bk_core.logs.machines import change as head_change
from bk_core.logs.machines import leadership_events as le
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import Facts, HeadChange
from bk_core.logs.machines.compaction import Compaction
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.machines.leadership import State as Leading
from bk_core.logs.machines.publication import Publish, PublishAmong
from bk_core.logs.machines.upkeep import Condemn, FencePages, Vacuum
from bk_core.logs.model import compaction, paging, schemas, unlinking
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import Extent, LogHead, Published, PublishId, Unlinked
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.model.paging import Change, Pages, last_ledgers
from bk_core.logs.model.schemas import Registered
from bk_core.model import LedgerId
from tests.sim.logs import UUID, LogWorld
from tests.sim.mutants.mutant import Mutants, changed

MUTANTS = Mutants()
FAN_OUT = Mutants()
"""Those of a publish into several logs, which ``run_fan_out_schedule`` of tests/sim/log_fan_out.py finds."""

_PUBLISH_SETTLED = Publish.settled


# --- publishing -------------------------------------------------------------------------------------------------------


_PART = head_change._Part
_WRITE, _DROP_PAGES = HeadChange._write, HeadChange._drop_pages
_PUBLISH, _CHECK = commit.publish, commit.check_unpublished


def ledgers_deleted(change: HeadChange[Any]) -> Steps[None]:
    """Those of a job that thinks that nobody else has them."""
    published = {log: part.intent.extents for log, part in change._parts.items() if isinstance(part.intent, Publish)}
    ledgers = {log: tuple(new.ledger_id for new in extents) for log, extents in published.items() if extents}
    if ledgers:
        yield ask.ForLogs({log: ask.DeleteLedgers(each, UUID) for log, each in ledgers.items()})


@MUTANTS.instead(HeadChange, "run", "delete on own duplicate", "N4")
def deletes_duplicates(run: Any, self: HeadChange[Any]) -> Steps[dict[str, Any]]:
    was_there = True

    def write(self: HeadChange[Any]) -> Steps[None]:
        nonlocal was_there
        yield from _WRITE(self)
        was_there = False

    self._write = MethodType(write, self)
    results = yield from run(self)
    if was_there:
        yield from ledgers_deleted(self)
    return results


@MUTANTS.instead(HeadChange, "run", "a job that fails in doubt deletes", "N4")
def deletes_in_doubt(run: Any, self: HeadChange[Any]) -> Steps[dict[str, Any]]:
    try:
        return (yield from run(self))
    except BookKeeperError:
        yield from ledgers_deleted(self)
        raise


@MUTANTS.instead(Publish, "settled", "publish without looking for its id", "N4")
def looks_only_at_its_own_head(settled: Any, self: Publish, head: LogHead, facts: Facts) -> Published | None:
    return settled(self, head, facts) if facts.is_written else None


def _unfenced(head: LogHead) -> LogHead:
    return replace(head, tail=head.sealed_tail)


def _unpublished_without_a_leader(check: Any, head: LogHead, extents: Any) -> None:
    check(_unfenced(head), extents)


@MUTANTS.instead(
    commit, "publish", "publish under an open leader", "N2",
    changed(commit, "check_unpublished", _unpublished_without_a_leader),
)  # fmt: skip
def publish_before_open(publish: Any, head: LogHead, *args: Any, **more: Any) -> Change:
    change = publish(_unfenced(head), *args, **more)
    opened = [replace(e, base_offset=0) for e in head.open_extents]
    if opened:
        opened[0] = replace(opened[0], base_offset=change.head.next_offset)
    return replace(change, head=replace(change.head, tail=(*change.head.tail, *opened)))


@MUTANTS.instead(_PART, "learn_head", "ledgers checked before the head was read", "N6")
def checked_once(learn_head: Any, self: Any, answer: ask.HeadRead) -> None:
    was_checked = self.facts.is_checked
    learn_head(self, answer)
    self.facts = replace(self.facts, is_checked=was_checked)


@MUTANTS.instead(HeadChange, "_create_pages", "page created after the head", "N3")
def pages_after_head(_: Any, self: HeadChange[Any]) -> Steps[None]:
    yield from ()


def unknown_is_failed(write: Any, self: HeadChange[Any]) -> Steps[None]:
    """Nothing is in doubt: neither is it looked at again, nor does the error say so."""
    doubts = list(self._doubts)
    try:
        yield from write(self)
    finally:
        self._doubts = doubts


@MUTANTS.instead(HeadChange, "_write", "a lost answer is a failure", "N4")
def unknown_is_final(write: Any, self: HeadChange[Any]) -> Steps[None]:
    try:
        yield from unknown_is_failed(write, self)
    except head_change._Again as again:
        if again.error is not None and again.error.outcome is Outcome.UNKNOWN:
            raise again.error from None
        raise


@MUTANTS.instead(HeadChange, "_write", "a conflict is a success", "N4")
def conflict_is_success(write: Any, self: HeadChange[Any]) -> Steps[None]:
    try:
        yield from write(self)
    except head_change._Again as again:
        if again.error is not None:
            raise


@MUTANTS.instead(HeadChange, "_write", "pages of a write in doubt deleted", "N3")
def unknown_drops_pages(write: Any, self: HeadChange[Any]) -> Steps[None]:
    doubts = len(self._doubts)
    try:
        yield from write(self)
    except (head_change._Again, BookKeeperError):
        if len(self._doubts) > doubts:
            yield from _DROP_PAGES(self)
        raise


@MUTANTS.instead(HeadChange, "_judge_doubts", "a doubt ends though the head is the same", "N4")
def doubts_end_early(_: Any, self: HeadChange[Any]) -> dict[str, Any]:
    self._doubts = []
    return {}


@MUTANTS.instead(schemas, "registered", "the newest schema taken for one's own", "K8")
def renumbered(registered: Any, head: LogHead, wanted: bytes, merge: bool, **more: Any) -> Registered:
    """Looks at its own newest number only, without reading what it stands for."""
    if head.schemas:
        return Registered(head, head.schemas[-1].number)
    return registered(head, wanted, merge, **more)


@MUTANTS.instead(schemas, "registered", "an equal schema registered again", "K8")
def registered_again(
    _: Any, head: LogHead, wanted: bytes, merge: bool, *, nonce: Any, pages: Pages, named: Any = None
) -> Registered:
    last = schemas.newest(head)
    if last is not None and schemas.merged(schemas.schema_in(pages, last), wanted, merge) != wanted:
        raise PublishConflictError("not the next one")
    return schemas._appended(head, wanted, 1 if last is None else last.number + 1, nonce)


@MUTANTS.instead(Publish, "_put", "a schema named before its page is there", "K8")
def schema_page_forgotten(put: Any, self: Publish, head: LogHead, facts: Facts) -> Change:
    made = put(self, head, facts)
    return replace(made, new_pages=tuple(new for new in made.new_pages if not new.page.schema))


@MUTANTS.instead(commit, "overwrite", "an overwrite forgets old schemas", "K8")
def schemas_unlinked(overwrite: Any, head: LogHead, *args: Any, **more: Any) -> Change:
    return overwrite(replace(head, schemas=head.schemas[-1:]), *args, **more)


@MUTANTS.instead(unlinking, "page_names", "pages of schemas are vacuumed", "K8")
def pages_without_schemas(page_names: Any, head: LogHead, pages: Pages) -> set[str]:
    return page_names(head, pages) - {schema.page for schema in head.schemas}


@MUTANTS.instead(commit, "overwrite", "offsets reused after an overwrite", "N7")
def overwrite_from_zero(_: Any, head: LogHead, extents: Any, publish_id: Any, **more: Any) -> Change:
    _CHECK(head, extents)
    emptied = replace(head, epoch=head.epoch + 1, start_offset=0, next_offset=0, pages=(), tail=())
    return _PUBLISH(emptied, extents, publish_id, **more)


# --- upkeep -----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(unlinking, "ledgers_listed", "condemned though a page lists it", "N6")
def only_tail(_: Any, head: LogHead, pages: Pages) -> set[LedgerId]:
    paging.ledgers_listed(head, pages)  # asks for the pages all the same: only what they list is passed over
    return {extent.ledger_id for extent in head.tail}


@MUTANTS.instead(Condemn, "settled", "deleted without being condemned", "N6")
def no_condemning(_: Any, self: Condemn, head: LogHead, facts: Facts) -> tuple[LedgerId, ...]:
    listed = paging.ledgers_listed(head, facts.pages)
    return tuple(ledger for ledger in self.candidates if ledger not in listed)


@MUTANTS.instead(FencePages, "settled", "pages deleted under a change", "N3")
def no_fence(settled: Any, self: FencePages, head: LogHead, facts: Facts) -> upkeep.Unneeded | None:
    return None if facts.unlinked is None else settled(self, head, replace(facts, is_written=True))


@MUTANTS.instead(_PART, "learn_head", "records are not read again", "N6")
def records_read_once(learn_head: Any, self: Any, answer: ask.HeadRead) -> None:
    known = self.facts.unlinked
    learn_head(self, answer)
    if self.facts.unlinked is None:
        self.facts = replace(self.facts, unlinked=known)


@MUTANTS.instead(head_change, "unlinked_by", "no page is on record", "N6")
def records_only_of_the_tail(unlinked_by: Any, before: LogHead, change: Change, pages: Pages) -> Unlinked:
    return replace(unlinked_by(before, change, pages), pages=(), names=())


@MUTANTS.instead(head_change, "unlinked_by", "what a page held is not on record", "N6")
def pages_alone(unlinked_by: Any, before: LogHead, change: Change, pages: Pages) -> Unlinked:
    found = unlinked_by(before, change, pages)
    return replace(found, pages=(), names=(*found.names, *(ref.name for ref in found.pages)))


@MUTANTS.instead(Vacuum, "_delete_pages", "a record outlives its pages", "N6")
def records_outlive_their_pages(_: Any, self: Vacuum) -> Steps[None]:
    """A crash between the two leaves a record of pages that are gone."""
    names = yield ask.ListPages(self.before_ms)
    unneeded = yield from self._change(FencePages(names, self.before_ms))
    if unneeded.pages:
        yield ask.DeletePages(unneeded.pages)
    if unneeded.records:
        yield ask.DeleteUnlinked(unneeded.records)


@MUTANTS.instead(commit, "replace_extents", "compaction of what was replaced", "N7")
def compact_blindly(_: Any, head: LogHead, run: Any, new: Any, *, nonce: Any, pages: Any = None) -> Change:
    start = run[0].base_offset
    cut = paging.sealed_extents(head, pages or {}, start, start + 1)[:1]
    end = cut[0].next_offset if cut else start
    return paging.splice(head, start, end, [commit._sealed(new, start)], nonce=nonce, pages=pages)


@MUTANTS.instead(Compaction, "_read_back", "a copy is listed unverified", "N7")
def unverified(_: Any, self: Compaction, copied: ask.RunCopied) -> Steps[Any]:
    yield ask.ReadCopy(copied.new)
    return copied.content


@MUTANTS.instead(Compaction, "_list", "a copy is deleted though it may be listed", "N4")
def copies_dropped_in_doubt(listed: Any, self: Compaction, run: Any, copied: ask.RunCopied) -> Steps[Extent]:
    try:
        return (yield from listed(self, run, copied))
    except BookKeeperError as error:
        if error.outcome is Outcome.UNKNOWN:
            yield ask.DropCopy(copied.new.ledger_id)
        raise


@MUTANTS.instead(compaction._Group, "takes", "compaction mixes schemas", "K8")
def any_schema(takes: Any, self: Any, extent: Extent) -> bool:
    return takes(self, replace(extent, schema_number=self.extents[-1].schema_number) if self.extents else extent)


@MUTANTS.instead(paging._Splice, "covers", "trim unlinks what it cuts", "N7")
def touches(_: Any, self: Any, part: Any) -> bool:
    return bool(self.start < part.next_offset and part.base_offset < self.end)


# --- leading ----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(LogWorld, "recover", "takeover fences only the last ledger", "MUST15")
def recover_only_last(recover: Any, self: LogWorld, ledger_id: LedgerId) -> LedgerEnd:
    if ledger_id in last_ledgers(self.head.value, self.pages, 1):
        return recover(self, ledger_id)
    values = self.ledgers[ledger_id].values
    return LedgerEnd(entry_count=len(values), size_bytes=len(values))


@MUTANTS.instead(LogLeadership, "_fail", "a leader deletes a ledger in doubt", "N4")
def always_delete_spare(_: Any, self: LogLeadership, error: Any) -> Any:
    drop = [le.DeleteLedger(self._spare.ledger_id)] if self._spare is not None else []
    return self._to(Leading.LOST, *drop, le.LoseLeadership(error))


MUTANTS.add("condemned ledger published", "N6", (commit, "_check_listable", lambda head, new: None))
MUTANTS.add("transactions in use are vacuumed", "N5", (Vacuum, "_is_unused", lambda self, record: True))
MUTANTS.add("transactions vacuumed unseen", "N5", (LogWorld, "compares", lambda *args: True))
MUTANTS.add("transactions not looked up", "N5", (publication, "replayed", lambda *args: None))
MUTANTS.add("age counts from the making", "N6", (upkeep, "young", lambda facts, before_ms: []))


# --- publishing into several logs -------------------------------------------------------------------------------------


@FAN_OUT.instead(HeadChange, "_settled", "every log must remember a fan-out", "K10")
def every_log_must_remember(settled: Any, self: HeadChange[Any]) -> tuple[dict[str, Any], Any, BookKeeperError | None]:
    found, pages, refused = settled(self)
    return found if len(found) == len(self._parts) else {}, pages, refused


@FAN_OUT.instead(HeadChange, "_settled", "only the first log is asked", "K10")
def first_log_tells(settled: Any, self: HeadChange[Any]) -> tuple[dict[str, Any], Any, BookKeeperError | None]:
    found, pages, refused = settled(self)
    first = next(iter(self._parts))
    return {log: published for log, published in found.items() if log == first}, pages, refused


@FAN_OUT.instead(PublishAmong, "settled", "a version with other logs is a replay", "N5")
def version_is_enough(_: Any, self: PublishAmong, head: LogHead, facts: Facts) -> Published | None:
    return _PUBLISH_SETTLED(self, head, facts)


@FAN_OUT.instead(publication, "fan_out_id", "the id does not name the logs", "N4")
def any_version(_: Any, publish_id: PublishId, rows: Mapping[str, int]) -> PublishId:
    return publish_id


@FAN_OUT.instead(HeadChange, "_is_ruled_out", "a multi is ruled out by a log that did not move", "N4")
def ruled_out_by_standing_still(ruled_out: Any, self: HeadChange[Any], doubt: Any, pages: Any) -> bool:
    standing = any(part.read.version == doubt.made[log].version for log, part in self._parts.items())
    return standing or ruled_out(self, doubt, pages)


@FAN_OUT.instead(HeadChange, "_write", "one log at a time", "K10")
def one_multi_a_log(write: Any, self: HeadChange[Any]) -> Steps[None]:
    """Publish to the first log alone, as if the publishes to the other logs came later."""
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


FAN_OUT.add("a conflict of a fan-out is a success", "N4", changed(HeadChange, "_write", conflict_is_success))
FAN_OUT.add("a lost answer of a multi is a failure", "N4", changed(HeadChange, "_write", unknown_is_failed))
FAN_OUT.add("ledgers of a fan-out checked once", "N6", changed(_PART, "learn_head", checked_once))
FAN_OUT.add("a fan-out that fails in doubt deletes", "N4", changed(HeadChange, "run", deletes_in_doubt))
