# SPDX-License-Identifier: Apache-2.0
"""The machine's deletion: a record in the log behind all that was taken, then nothing is left to answer with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bk_core.entries.apache import lac_body
from bk_core.entries.frame import FrameKind
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from tests.bookie_server.machine.machine_bench import ADDS, CONTROL, READS, Bench, acks, ended, entries
from tests.kit.lanes import KEY, digester

DELETED = Reason.DELETED


@pytest.fixture
def bench() -> Bench:
    """Ledger 7 with entries 0 and 1, its writer attached as session 1."""
    made = Bench()
    made.attach(1)
    made.send(entries(0, b"a"), entries(1, b"b", lac=0))
    made.commit()
    return made


def delete(bench: Bench, *ledger_ids: int) -> list[ev.Effect]:
    return bench.step(ev.LedgersDeleted(ledger_ids or (7,)))


def reasons(effects: Sequence[ev.Effect]) -> list[Reason]:
    return [e.reason for e in effects if isinstance(e, ev.SendTrailer | ev.SendReply)]


@pytest.mark.rule("S4")
def test_deletion_is_one_record_and_ends_the_sessions(bench: Bench) -> None:
    assert ended(delete(bench)) == [(1, 2, DELETED)]
    assert bench.kinds() == [FrameKind.DELETED]
    assert bench.step(ev.LedgersDeleted((7,))) == []
    assert bench.kinds() == [FrameKind.DELETED], "once is enough"


@pytest.mark.rule("P1")
def test_pending_adds_end_and_what_is_durable_is_counted(bench: Bench) -> None:
    bench.send(entries(2, b"c"), entries(3, b"d"))
    assert delete(bench) == []
    assert bench.send(entries(4, b"e")) == [], "the end was not told yet, and the frame is dropped"
    assert bench.kinds() == [FrameKind.ENTRIES, FrameKind.ENTRIES, FrameKind.DELETED]
    assert bench.commit(1) == []
    assert ended(bench.commit()) == [(1, 4, DELETED)]
    assert bench.store.facts(7).deleted


@pytest.mark.rule("S9")
def test_from_the_event_on_nothing_is_added(bench: Bench) -> None:
    delete(bench)
    assert ended(bench.attach(2, stream=9)) == [(2, 0, DELETED)]
    assert ended(bench.attach(3, stream=9, mode=AttachMode.RECOVER)) == [(3, 0, DELETED)]
    assert reasons(bench.ask(ev.FenceRequested, 7, KEY)) == [DELETED]
    assert reasons(bench.read(0, 1, fence_key=KEY)) == [DELETED]
    assert reasons(bench.ask(ev.WriteLacRequested, 7, KEY, lac_body(1, digester(7)))) == [DELETED]
    assert bench.kinds() == [FrameKind.DELETED]


def test_reads_are_served_until_the_record_is_durable(bench: Bench) -> None:
    delete(bench)
    assert any(isinstance(effect, ev.SendPart) for effect in (*bench.read(0, 1), *bench.disk()))
    bench.commit()
    assert reasons(bench.read(0, 1)) == [DELETED]
    assert reasons(bench.ask(ev.ReadLacRequested, 7)) == [DELETED]
    assert reasons(bench.ask(ev.WatchLacRequested, 7, -1, 1000)) == [DELETED]


def test_a_read_under_way_ends_with_the_deletion(bench: Bench) -> None:
    bench.read(0, 5)
    delete(bench)
    bench.commit()
    effects = bench.disk()
    assert reasons(effects) == [DELETED]


def test_watches_end(bench: Bench) -> None:
    assert bench.ask(ev.WatchLacRequested, 7, 50, 1000) == [ev.SetTimer((READS, 1), 1000)]
    delete(bench)
    effects = bench.commit()
    assert ev.SendReply((READS, 1), DELETED, "ledger 7 is deleted") in effects
    assert ev.CancelTimer((READS, 1)) in effects
    assert bench.step(ev.TimerFired((READS, 1))) == []


def test_a_hinted_lac_is_not_made_durable_any_more(bench: Bench) -> None:
    bench.ask(ev.WriteLacRequested, 7, KEY, lac_body(1, digester(7)))
    delete(bench)
    bench.commit()
    bench.step(ev.TimerFired(None))
    assert bench.log == []


@pytest.mark.rule("S9")
def test_other_ledgers_go_on(bench: Bench) -> None:
    bench.attach(2, ledger=8)
    delete(bench)
    assert bench.send(entries(0, b"x", session=2, ledger=8)) == []
    assert acks(2, 1)[0] in bench.commit()


def test_what_is_not_held_is_not_deleted(bench: Bench) -> None:
    assert delete(bench, 99, -1, 2**63 - 1) == []
    assert bench.log == []


def test_a_ledger_of_which_nothing_is_durable_yet_is_deleted_too() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    delete(bench)
    assert ended(bench.commit()) == [(1, 1, DELETED)]
    assert bench.store.facts(7).deleted


@pytest.mark.rule("S4")
def test_a_deletion_that_found_no_space_is_looked_for_again(bench: Bench) -> None:
    delete(bench)
    effects = bench.fail(final=False, reason=Reason.NO_SPACE)
    assert ev.LookForDeletion((7,)) in effects
    assert not bench.store.facts(7).deleted
    assert ended(bench.attach(2, stream=9)) == [], "nothing was promised"
    delete(bench)
    bench.commit()
    assert bench.store.facts(7).deleted


@pytest.mark.rule("S6")
def test_after_a_failed_sync_nothing_is_deleted(bench: Bench) -> None:
    bench.fail(final=True)
    assert delete(bench) == []
    assert bench.log == []
    assert reasons(bench.ask(ev.DeleteHintRequested, (7,), stream=CONTROL)) == [Reason.STORAGE_FAILED]


@pytest.mark.rule("S4")
def test_an_old_writer_cannot_bring_a_ledger_back(bench: Bench) -> None:
    delete(bench)
    bench.commit()
    bench.step(ev.StreamClosed(ADDS))
    bench.machine = BookieMachine(bench.store)  # a restart
    assert ended(bench.attach(1)) == [(1, 0, DELETED)]
    assert bench.send(entries(2, b"c")) == []
    assert reasons(bench.read(0, 5)) == [DELETED]
    assert bench.log == []


@pytest.mark.rule("S9")
def test_a_hint_deletes_nothing_and_names_what_is_held_to_be_looked_up(bench: Bench) -> None:
    effects = bench.ask(ev.DeleteHintRequested, (7, 99, 7, -1, 2**63 - 1), stream=CONTROL)
    assert effects == [ev.LookForDeletion((7,)), ev.SendReply((CONTROL, 1))]
    assert bench.log == []
    assert reasons(bench.ask(ev.DeleteHintRequested, (99,), stream=CONTROL)) == [Reason.REASON_NONE]
    assert reasons(bench.ask(ev.DeleteHintRequested, range(10_001), stream=CONTROL)) == [Reason.TOO_LARGE]
    delete(bench)
    bench.commit()
    effects = bench.ask(ev.DeleteHintRequested, (7,), stream=CONTROL)
    assert not any(isinstance(effect, ev.LookForDeletion) for effect in effects), "it is deleted already"


# --- copies that are given up ---


def give_up(bench: Bench, *ledger_ids: int) -> list[ev.Effect]:
    return bench.step(ev.CopiesUnwanted(ledger_ids or (7,)))


@pytest.mark.rule("S4")
def test_copy_that_is_not_wanted_any_more_goes_by_one_record_and_its_fence_stays(bench: Bench) -> None:
    bench.ask(ev.FenceRequested, 7, KEY)
    bench.commit()
    bench.step(ev.StreamClosed(ADDS))
    assert give_up(bench) == []
    assert bench.kinds() == [FrameKind.COPY_DROPPED]
    bench.commit()
    facts = bench.store.facts(7)
    assert (facts.known, facts.fenced, facts.deleted, facts.trouble) == (True, True, False, Reason.COPY_DROPPED)
    assert give_up(bench, 7, 99, -1) == []
    assert bench.kinds() == [], "nothing is left of it, and the others are not held"
    bench.attach(1, mode=AttachMode.RECOVER)
    bench.send(entries(0, b"a"))
    assert bench.kinds() == [FrameKind.ENTRIES], "it may be copied here again"


@pytest.mark.rule("S4")
def test_copy_that_somebody_writes_is_not_given_up(bench: Bench) -> None:
    give_up(bench)
    assert bench.kinds() == [], "a session is attached"
    bench.step(ev.StreamClosed(ADDS))
    bench.attach(1, stream=9, mode=AttachMode.RECOVER)
    bench.step(ev.FramesArrived(9, memoryview(entries(2, b"c"))))
    bench.step(ev.StreamClosed(9))
    give_up(bench)
    assert bench.kinds() == [FrameKind.ENTRIES], "what came last is on its way to the log"
