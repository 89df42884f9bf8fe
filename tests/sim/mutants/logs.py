# SPDX-License-Identifier: Apache-2.0
"""Defects put into the machines and sequences of named logs; ``run_log_schedule`` of tests/sim/logs.py finds each.

``MUTANTS`` lists (name, rule, context manager): the defect is there while the context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
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
from bk_core.logs.machines.publication import Publish
from bk_core.logs.machines.upkeep import Condemn, FencePages, Vacuum
from bk_core.logs.model import compaction, paging, schemas, unlinking
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import Extent, LogHead, Published, Unlinked
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.model.paging import Change, Pages, last_ledgers
from bk_core.logs.model.schemas import Registered
from bk_core.model import LedgerId
from tests.sim.logs import UUID, LogWorld


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# --- publishing -------------------------------------------------------------------------------------------------------

_PART = head_change._Part
_RUN, _WRITE, _DROP_PAGES = HeadChange.run, HeadChange._write, HeadChange._drop_pages
_LEARN_HEAD, _SETTLED = _PART.learn_head, Publish.settled
_PUBLISH, _CHECK, _RECOVER = commit.publish, commit.check_unpublished, LogWorld.recover
_OVERWRITE, _PUT, _REGISTERED, _PAGE_NAMES = commit.overwrite, Publish._put, schemas.registered, paging.page_names


def ledgers_deleted(change: HeadChange[Any]) -> Steps[None]:
    """Those of a job that thinks that nobody else has them."""
    published = {log: part.intent.extents for log, part in change._parts.items() if isinstance(part.intent, Publish)}
    ledgers = {log: tuple(new.ledger_id for new in extents) for log, extents in published.items() if extents}
    if ledgers:
        yield ask.ForLogs({log: ask.DeleteLedgers(each, UUID) for log, each in ledgers.items()})


def _deletes_duplicates(self: HeadChange[Any]) -> Steps[dict[str, Any]]:
    was_there = True

    def write(self: HeadChange[Any]) -> Steps[None]:
        nonlocal was_there
        yield from _WRITE(self)
        was_there = False

    self._write = MethodType(write, self)
    results = yield from _RUN(self)
    if was_there:
        yield from ledgers_deleted(self)
    return results


def deletes_in_doubt(self: HeadChange[Any]) -> Steps[dict[str, Any]]:
    try:
        return (yield from _RUN(self))
    except BookKeeperError:
        yield from ledgers_deleted(self)
        raise


def _looks_only_at_its_own_head(self: Publish, head: LogHead, facts: Facts) -> Published | None:
    return _SETTLED(self, head, facts) if facts.is_written else None


def _unfenced(head: LogHead) -> LogHead:
    return replace(head, tail=head.sealed_tail)


def _publish_before_open(head: LogHead, *args: Any, **more: Any) -> Change:
    change = _PUBLISH(_unfenced(head), *args, **more)
    opened = [replace(e, base_offset=0) for e in head.open_extents]
    if opened:
        opened[0] = replace(opened[0], base_offset=change.head.next_offset)
    return replace(change, head=replace(change.head, tail=(*change.head.tail, *opened)))


@contextmanager
def _publish_under_a_leader() -> Iterator[None]:
    with (
        _patched(commit, "check_unpublished", lambda head, extents: _CHECK(_unfenced(head), extents)),
        _patched(commit, "publish", _publish_before_open),
    ):
        yield


def checked_once(self: Any, answer: ask.HeadRead) -> None:
    was_checked = self.facts.is_checked
    _LEARN_HEAD(self, answer)
    self.facts = replace(self.facts, is_checked=was_checked)


def _pages_after_head(self: HeadChange[Any]) -> Steps[None]:
    yield from ()


def unknown_is_failed(self: HeadChange[Any]) -> Steps[None]:
    """Nothing is in doubt: neither is it looked at again, nor does the error say so."""
    doubts = list(self._doubts)
    try:
        yield from _WRITE(self)
    finally:
        self._doubts = doubts


def _unknown_is_final(self: HeadChange[Any]) -> Steps[None]:
    try:
        yield from unknown_is_failed(self)
    except head_change._Again as again:
        if again.error is not None and again.error.outcome is Outcome.UNKNOWN:
            raise again.error from None
        raise


def conflict_is_success(self: HeadChange[Any]) -> Steps[None]:
    try:
        yield from _WRITE(self)
    except head_change._Again as again:
        if again.error is not None:
            raise


def _unknown_drops_pages(self: HeadChange[Any]) -> Steps[None]:
    doubts = len(self._doubts)
    try:
        yield from _WRITE(self)
    except (head_change._Again, BookKeeperError):
        if len(self._doubts) > doubts:
            yield from _DROP_PAGES(self)
        raise


def _doubts_end_early(self: HeadChange[Any]) -> dict[str, Any]:
    self._doubts = []
    return {}


def _renumbered(head: LogHead, wanted: bytes, merge: bool, **more: Any) -> Registered:
    """Looks at its own newest number only, without reading what it stands for."""
    if head.schemas:
        return Registered(head, head.schemas[-1].number)
    return _REGISTERED(head, wanted, merge, **more)


def _registered_again(
    head: LogHead, wanted: bytes, merge: bool, *, nonce: Any, pages: Pages, named: Any = None
) -> Registered:
    last = schemas.newest(head)
    if last is not None and schemas.merged(schemas.schema_in(pages, last), wanted, merge) != wanted:
        raise PublishConflictError("not the next one")
    return schemas._appended(head, wanted, 1 if last is None else last.number + 1, nonce)


def _schema_page_forgotten(self: Publish, head: LogHead, facts: Facts) -> Change:
    made = _PUT(self, head, facts)
    return replace(made, new_pages=tuple(new for new in made.new_pages if not new.page.schema))


def _schemas_unlinked(head: LogHead, *args: Any, **more: Any) -> Change:
    return _OVERWRITE(replace(head, schemas=head.schemas[-1:]), *args, **more)


def _pages_without_schemas(head: LogHead, pages: Pages) -> set[str]:
    return _PAGE_NAMES(head, pages) - {schema.page for schema in head.schemas}


def _overwrite_from_zero(head: LogHead, extents: Any, publish_id: Any, **more: Any) -> Change:
    _CHECK(head, extents)
    emptied = replace(head, epoch=head.epoch + 1, start_offset=0, next_offset=0, pages=(), tail=())
    return _PUBLISH(emptied, extents, publish_id, **more)


# --- upkeep -----------------------------------------------------------------------------------------------------------


def _only_tail(head: LogHead, pages: Pages) -> set[LedgerId]:
    paging.ledgers_listed(head, pages)  # asks for the pages all the same: only what they list is passed over
    return {extent.ledger_id for extent in head.tail}


def _no_condemning(self: Condemn, head: LogHead, facts: Facts) -> tuple[LedgerId, ...]:
    listed = paging.ledgers_listed(head, facts.pages)
    return tuple(ledger for ledger in self.candidates if ledger not in listed)


def _no_fence(self: FencePages, head: LogHead, facts: Facts) -> upkeep.Unneeded | None:
    return None if facts.unlinked is None else _FENCE_SETTLED(self, head, replace(facts, is_written=True))


_FENCE_SETTLED, _UNLINKED_BY = FencePages.settled, head_change.unlinked_by
_LISTED = Compaction._list


def _records_read_once(self: Any, answer: ask.HeadRead) -> None:
    known = self.facts.unlinked
    _LEARN_HEAD(self, answer)
    if self.facts.unlinked is None:
        self.facts = replace(self.facts, unlinked=known)


def _records_only_of_the_tail(before: LogHead, change: Change, pages: Pages) -> Unlinked:
    return replace(_UNLINKED_BY(before, change, pages), pages=(), names=())


def _pages_alone(before: LogHead, change: Change, pages: Pages) -> Unlinked:
    found = _UNLINKED_BY(before, change, pages)
    return replace(found, pages=(), names=(*found.names, *(ref.name for ref in found.pages)))


def _records_outlive_their_pages(self: Vacuum) -> Steps[None]:
    """A crash between the two leaves a record of pages that are gone."""
    names = yield ask.ListPages(self.before_ms)
    unneeded = yield from self._change(FencePages(names, self.before_ms))
    if unneeded.pages:
        yield ask.DeletePages(unneeded.pages)
    if unneeded.records:
        yield ask.DeleteUnlinked(unneeded.records)


def _compact_blindly(head: LogHead, run: Any, new: Any, *, nonce: Any, pages: Any = None) -> Change:
    start = run[0].base_offset
    cut = paging.sealed_extents(head, pages or {}, start, start + 1)[:1]
    end = cut[0].next_offset if cut else start
    return paging.splice(head, start, end, [commit._sealed(new, start)], nonce=nonce, pages=pages)


def _unverified(self: Compaction, copied: ask.RunCopied) -> Steps[Any]:
    yield ask.ReadCopy(copied.new)
    return copied.content


def _copies_dropped_in_doubt(self: Compaction, run: Any, copied: ask.RunCopied) -> Steps[Extent]:
    try:
        return (yield from _LISTED(self, run, copied))
    except BookKeeperError as error:
        if error.outcome is Outcome.UNKNOWN:
            yield ask.DropCopy(copied.new.ledger_id)
        raise


def _any_schema(self: Any, extent: Extent) -> bool:
    return _TAKES(self, replace(extent, schema_number=self.extents[-1].schema_number) if self.extents else extent)


_TAKES = compaction._Group.takes


def _touches(self: Any, part: Any) -> bool:
    return bool(self.start < part.next_offset and part.base_offset < self.end)


# --- leading ----------------------------------------------------------------------------------------------------------


def _recover_only_last(self: LogWorld, ledger_id: LedgerId) -> LedgerEnd:
    if ledger_id in last_ledgers(self.head.value, self.pages, 1):
        return _RECOVER(self, ledger_id)
    values = self.ledgers[ledger_id].values
    return LedgerEnd(entry_count=len(values), size_bytes=len(values))


def _always_delete_spare(self: LogLeadership, error: Any) -> Any:
    drop = [le.DeleteLedger(self._spare.ledger_id)] if self._spare is not None else []
    from bk_core.logs.machines.leadership import State as Leading

    return self._to(Leading.LOST, *drop, le.LoseLeadership(error))


Planted = Callable[[], AbstractContextManager[None]]
MUTANTS: list[tuple[str, str, Planted]] = [
    ("delete on own duplicate", "N4", partial(_patched, HeadChange, "run", _deletes_duplicates)),
    ("a job that fails in doubt deletes", "N4", partial(_patched, HeadChange, "run", deletes_in_doubt)),
    ("publish without looking for its id", "N4", partial(_patched, Publish, "settled", _looks_only_at_its_own_head)),
    ("a lost answer is a failure", "N4", partial(_patched, HeadChange, "_write", _unknown_is_final)),
    (
        "a doubt ends though the head is the same",
        "N4",
        partial(_patched, HeadChange, "_judge_doubts", _doubts_end_early),
    ),
    ("a conflict is a success", "N4", partial(_patched, HeadChange, "_write", conflict_is_success)),
    ("publish under an open leader", "N2", _publish_under_a_leader),
    ("takeover fences only the last ledger", "MUST15", partial(_patched, LogWorld, "recover", _recover_only_last)),
    ("a leader deletes a ledger in doubt", "N4", partial(_patched, LogLeadership, "_fail", _always_delete_spare)),
    ("condemned ledger published", "N6", partial(_patched, commit, "_check_listable", lambda head, new: None)),
    ("ledgers checked before the head was read", "N6", partial(_patched, _PART, "learn_head", checked_once)),
    ("deleted without being condemned", "N6", partial(_patched, Condemn, "settled", _no_condemning)),
    ("condemned though a page lists it", "N6", partial(_patched, unlinking, "ledgers_listed", _only_tail)),
    ("pages deleted under a change", "N3", partial(_patched, FencePages, "settled", _no_fence)),
    ("page created after the head", "N3", partial(_patched, HeadChange, "_create_pages", _pages_after_head)),
    ("pages of a write in doubt deleted", "N3", partial(_patched, HeadChange, "_write", _unknown_drops_pages)),
    ("transactions in use are vacuumed", "N5", partial(_patched, Vacuum, "_is_unused", lambda self, record: True)),
    ("transactions vacuumed unseen", "N5", partial(_patched, LogWorld, "compares", lambda *args: True)),
    ("transactions not looked up", "N5", partial(_patched, publication, "replayed", lambda *args: None)),
    ("offsets reused after an overwrite", "N7", partial(_patched, commit, "overwrite", _overwrite_from_zero)),
    ("compaction of what was replaced", "N7", partial(_patched, commit, "replace_extents", _compact_blindly)),
    ("a copy is listed unverified", "N7", partial(_patched, Compaction, "_read_back", _unverified)),
    (
        "a copy is deleted though it may be listed",
        "N4",
        partial(_patched, Compaction, "_list", _copies_dropped_in_doubt),
    ),
    ("compaction mixes schemas", "K8", partial(_patched, compaction._Group, "takes", _any_schema)),
    ("trim unlinks what it cuts", "N7", partial(_patched, paging._Splice, "covers", _touches)),
    ("the newest schema taken for one's own", "K8", partial(_patched, schemas, "registered", _renumbered)),
    ("an equal schema registered again", "K8", partial(_patched, schemas, "registered", _registered_again)),
    ("a schema named before its page is there", "K8", partial(_patched, Publish, "_put", _schema_page_forgotten)),
    ("an overwrite forgets old schemas", "K8", partial(_patched, commit, "overwrite", _schemas_unlinked)),
    ("pages of schemas are vacuumed", "K8", partial(_patched, unlinking, "page_names", _pages_without_schemas)),
    ("age counts from the making", "N6", partial(_patched, upkeep, "young", lambda facts, before_ms: [])),
    ("records are not read again", "N6", partial(_patched, _PART, "learn_head", _records_read_once)),
    ("no page is on record", "N6", partial(_patched, head_change, "unlinked_by", _records_only_of_the_tail)),
    ("what a page held is not on record", "N6", partial(_patched, head_change, "unlinked_by", _pages_alone)),
    ("a record outlives its pages", "N6", partial(_patched, Vacuum, "_delete_pages", _records_outlive_their_pages)),
]
