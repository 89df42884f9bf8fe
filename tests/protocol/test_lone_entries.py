# SPDX-License-Identifier: Apache-2.0
"""A writer in the table of lone entries does what its machine would do."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_one
from bk_core.entries.lone_frames import encode_lone_entries
from bk_core.errors import EntryTooLargeError
from bk_core.model import DigestType
from bk_core.protocol import events as ev
from bk_core.protocol.delivery import LaneState
from bk_core.protocol.lone_entries import LAG_ENTRIES_MAX, LoneEntries
from bk_core.protocol.writer import LedgerWrite, WriterState
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from tests.kit.without_events import OUT, Tabled
from tests.protocol.kit import append, metadata, of, writer
from tests.protocol.test_taken_without_events import Step, event_of, state_of

KINDS = ["one"] * 8 + ["ack"] * 16 + ["append", "excess", "stale", "break", "refuse", "retry", "bookies", "written"]
KINDS += ["out", "close"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(-1, 3)), min_size=30, max_size=90)
"""What happens, the ensemble index, and the number of frames that an ack covers."""


def next_event(machine: LedgerWrite, step: Step) -> Any:
    kind, index, _ = step
    if kind == "one":
        return event_of(machine, ("append", index, 0)) if machine.settled else None
    return ev.TimerFired(OUT) if kind == "out" else event_of(machine, step)


def numbers_of(machine: LedgerWrite) -> Any:
    """The state that the table has, beside that of :func:`state_of`."""
    return state_of(machine), machine.acked, machine._gone, machine._changes


def sends(effects: list[Any]) -> list[Any]:
    """The effects without timers, with frames as bytes, and with errors as texts."""
    timers = (ev.SetTimer, ev.CancelTimer)
    kept = [effect for effect in effects if not isinstance(effect, timers)]
    return [
        (each.index, each.session, bytes(each.frame)) if isinstance(each, ev.SendFrame) else str(each) for each in kept
    ]


@pytest.mark.rule("P1")
@pytest.mark.rule("P2")
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3), (2, 2, 1), (1, 1, 1), (4, 4, 2)], ids=str)
@given(steps=STEPS)
def test_a_writer_in_the_table_does_what_its_machine_would_do(quorums: tuple[int, int, int], steps: list[Step]) -> None:
    quick, slow = Tabled(writer(*quorums), sits_ms=5), writer(*quorums)
    for step in steps:
        event = next_event(quick.shown, step)
        if event is None:
            continue
        effects = quick.take(event, sits=True)
        if effects is None:
            effects = quick.leave()
            effects = [*effects, *(quick.machine.step(event) if event != ev.TimerFired(OUT) else ())]
        expected = slow.step(event) if event != ev.TimerFired(OUT) else []
        assert sends(effects) == sends(expected)
        assert numbers_of(quick.shown) == numbers_of(slow)


def sitting(*shape: int) -> tuple[LoneEntries, LedgerWrite, int]:
    machine = writer(*(shape or (3, 3, 2)))
    table = LoneEntries(machine.delivery.write_quorum, machine.delivery.ack_quorum)
    joined = table.join(machine, 0.0)
    assert joined is not None
    return table, machine, joined[0]


def send(table: LoneEntries, *slots: int, now: float = 0.0) -> None:
    table.append(np.array(slots), [b"x"] * len(slots), now)


def ack(table: LoneEntries, slot: int, index: int, frames: int) -> list[int]:
    places, counts = np.array([slot * table.write_quorum + index]), np.array([frames])
    assert not table.refused(places, counts).any()
    confirmed, _ = table.acked(places, counts)
    return [int(each) for each in confirmed]


def other(digest_type: DigestType = DigestType.CRC32C, **options: Any) -> LedgerWrite:
    """A writer that differs from that of :func:`writer` in these."""
    machine = LedgerWrite(
        7,
        metadata(),
        Digester(digest_type, b"", 7),
        config=writer().config,
        new_session=itertools.count(1).__next__,
        random=random.Random(0),
        **options,
    )
    machine.start()
    return machine


def test_only_a_calm_writer_sits() -> None:
    def suits(machine: LedgerWrite, *quorums: int) -> bool:
        return LoneEntries(*(quorums or (3, 2))).suits(machine)

    def sits(machine: LedgerWrite) -> bool:
        return LoneEntries(3, 2).join(machine, 0.0) is not None

    assert suits(writer())
    assert sits(writer())
    assert not suits(writer(), 2, 2)
    assert not suits(writer(4, 3, 2)), "each bookie gets other entries"
    assert not suits(other(deferred_sync=True)), "an ack is not a sync"
    assert writer().align() == []
    unconfirmed, batched, broken, closing = writer(), writer(), writer(), writer()
    append(unconfirmed, b"0")
    assert not sits(unconfirmed)
    append(batched, b"0", b"1")
    for index in range(2):
        batched.step(ev.FramesAcked(index, batched.delivery.lanes[index].session, 1))
    assert not sits(batched), "a bookie lacks a frame of two entries"
    broken.step(ev.SessionBroken(0, broken.delivery.lanes[0].session))
    assert not sits(broken)
    closing.step(ev.Close())
    assert closing.state is not WriterState.OPEN
    assert not sits(closing)


@pytest.mark.parametrize("digest_type", [each for each in DigestType if each is not DigestType.CRC32C])
def test_a_ledger_with_another_digest_does_not_sit(digest_type: DigestType) -> None:
    assert not LoneEntries(3, 2).suits(other(digest_type=digest_type))


def test_a_writer_that_stands_up_checks_the_add_deadline_and_owes_its_hint() -> None:
    table, machine, slot = sitting()
    send(table, slot)
    assert ack(table, slot, 0, 1) == []
    timers = table.leave(slot)
    assert [timer.name for timer in timers] == ["adds"]
    assert [lane.watermark for lane in machine.delivery.lanes] == [0, -1, -1]
    assert machine.step(ev.FramesAcked(1, machine.delivery.lanes[1].session, 1)) == [
        ev.Confirm(0),
        ev.SetTimer("lac", 5),
    ]
    again = table.join(machine, 0.0)
    assert again is not None
    slot, effects = again
    assert effects == [ev.CancelTimer("adds"), ev.CancelTimer("lac")]
    assert ack(table, slot, 2, 1) == []
    assert [timer.name for timer in table.leave(slot)] == ["lac"]


def test_what_a_bookie_lacks_is_sent_again_after_its_session_broke() -> None:
    table, machine, slot = sitting()
    for entry in range(3):
        send(table, slot)
        ack(table, slot, 0, entry + 1)
        assert ack(table, slot, 1, entry + 1) == [slot]
    table.leave(slot)
    machine.step(ev.SessionBroken(2, machine.delivery.lanes[2].session))
    assert machine.delivery.lanes[2].state is LaneState.WAITING
    resent = of(machine.step(ev.TimerFired("retry:2")), ev.SendFrame)
    assert len(resent) == 3


@pytest.mark.rule("P1")
def test_bookies_whose_sessions_broke_share_a_session_again_before_the_writer_sits() -> None:
    machine = writer()
    append(machine, b"0")
    for index in range(3):
        machine.step(ev.FramesAcked(index, machine.delivery.lanes[index].session, 1))
    assert machine.align() == [], "they share a session"
    machine.step(ev.SessionBroken(2, machine.delivery.lanes[2].session))
    append(machine, b"1")
    assert machine.align() == [], "two bookies owe acks"
    for index in range(3):
        lane = machine.delivery.lanes[index]
        machine.step(ev.FramesAcked(index, lane.session, lane.acked + 1))
    assert LoneEntries(3, 2).join(machine, 0.0) is None
    old = [lane.session for lane in machine.delivery.lanes]
    effects = machine.align()
    assert [each.session for each in of(effects, ev.DetachSession)] == old
    (new,) = {each.session for each in of(effects, ev.AttachSession)}
    assert len(effects) == 6
    assert new > max(old)
    assert machine.step(ev.FramesAcked(0, old[0], 3)) == [], "the old session is over"
    table = LoneEntries(3, 2)
    joined = table.join(machine, 0.0)
    assert joined is not None
    slot = joined[0]
    send(table, slot)
    assert [ack(table, slot, index, 1) for index in range(3)] == [[], [slot], []]
    table.leave(slot)
    assert (machine.lac, [lane.watermark for lane in machine.delivery.lanes]) == (2, [2, 2, 2])


@pytest.mark.rule("P9")
def test_a_hint_is_due_once_for_a_writer_that_stays_idle() -> None:
    table, _, slot = sitting()
    other = writer()
    joined = table.join(other, 0.0)
    assert joined is not None
    send(table, slot, joined[0])
    assert table.hints() == [], "the entries are not confirmed"
    for index in range(2):
        ack(table, slot, index, 1)
    assert table.hints() == [], "its caller may be about to append"
    send(table, slot)
    assert table.hints() == [], "the entry in flight carries the LAC"
    for index in range(2):
        ack(table, slot, index, 2)
    assert table.hints() == []
    assert table.hints() == [(slot, 1)]
    assert table.hints() == []
    assert table.leave(slot)[-1:] != [ev.SetTimer("lac", 5)], "the bookies have the LAC"


def test_overdue_are_the_writers_whose_bookies_owe_an_ack() -> None:
    table, _, slot = sitting()
    assert table.is_settled
    send(table, slot, now=7.0)
    assert not table.is_settled
    assert table.overdue(6.9) == []
    assert table.overdue(7.0) == [slot]
    ack(table, slot, 0, 1)
    ack(table, slot, 1, 1)
    assert table.overdue(7.0) == [slot]
    ack(table, slot, 2, 1)
    assert table.overdue(7.0) == []
    assert not table.is_settled, "the hint is not sent yet"


def test_a_writer_has_no_room_while_a_bookie_is_far_behind() -> None:
    table, _, slot = sitting()
    for entry in range(LAG_ENTRIES_MAX):
        assert table.has_room(slot)
        send(table, slot)
        ack(table, slot, 0, entry + 1)
        ack(table, slot, 1, entry + 1)
    assert not table.has_room(slot)
    kept = table.size(slot)
    _, freed = table.acked(np.array([slot * 3 + 2]), np.array([LAG_ENTRIES_MAX - 1]))
    assert freed == kept // LAG_ENTRIES_MAX * (LAG_ENTRIES_MAX - 1)
    assert table.has_room(slot)


def test_the_table_grows_and_uses_the_slots_of_those_who_left() -> None:
    table = LoneEntries(3, 2)
    machines = [writer() for _ in range(200)]
    slots = [joined[0] for machine in machines if (joined := table.join(machine, 0.0))]
    assert slots == list(range(200))
    send(table, *slots)
    for slot in slots[:100]:
        table.leave(slot)
    assert (len(table), {machine.lap for machine in machines[:100]}) == (100, {0})
    fresh = table.join(writer(), 0.0)
    assert fresh is not None
    assert fresh[0] < 100
    assert (table.lac[fresh[0]], table.watermarks(fresh[0]), table.size(fresh[0])) == (-1, [-1] * 3, 0)


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 1 << 62), st.integers(0, 1 << 62)), min_size=1),
    st.integers(0, (1 << 32) - 1),
)
def test_entries_that_are_encoded_together_have_the_frames_of_entries_encoded_alone(
    entries: list[tuple[bytes, int, int]], session: int
) -> None:
    payloads = [payload for payload, _, _ in entries]
    ledgers, ids = (np.array(column) for column in zip(*((ledger, first) for _, ledger, first in entries), strict=True))
    lengths, sessions = ids // 3, np.full(len(entries), session)
    together = encode_lone_entries(payloads, ledgers, ids, ids - 1, lengths, sessions)
    for k, (payload, ledger, first) in enumerate(entries):
        alone = encode_one(
            payload,
            digester=Digester(DigestType.CRC32C, b"", ledger),
            entry_id=first,
            lac=first - 1,
            length_before=first // 3,
            session=session,
        )
        assert together[k] == alone


def test_an_entry_over_the_limit_is_not_encoded() -> None:
    ones = np.ones(2, np.int64)
    with pytest.raises(EntryTooLargeError):
        encode_lone_entries([b"", bytes(ENTRY_BYTES_MAX + 1)], ones, ones, ones, ones, ones)
