# SPDX-License-Identifier: Apache-2.0
"""The writer machine, event by event."""

from __future__ import annotations

import pytest

from bk_core.entries.frame import decode_frame
from bk_core.model import Fragment, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.writer import LedgerWrite
from bk_core.wire.lane.reasons import Reason
from tests.protocol.kit import acked, append, digester, of, writer


def test_each_frame_carries_the_lac_and_length_of_its_moment() -> None:
    machine = writer()
    append(machine, b"aa", b"bbb")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    second = decode_frame(append(machine, b"c")[0].frame, digester=digester(), verify_digests=True)
    assert (second.first_entry_id, second.lac, second.length_before) == (2, 1, 5)


def fail_bookie(machine: LedgerWrite, index: int) -> list[object]:
    session = machine.delivery.lanes[index].session
    return list(machine.step(ev.SessionEnded(index, session, 0, Reason.READ_ONLY)))


def hinted(machine: LedgerWrite) -> list[str]:
    return [hint.bookie for hint in of(machine.step(ev.TimerFired("lac")), ev.SendLac)]


@pytest.mark.rule("P9")
def test_the_lac_of_a_striped_ledger_is_told_to_the_write_set_of_the_entry_that_it_names() -> None:
    machine = writer(5, 3, 2)
    append(machine, b"0")
    for index in (0, 1):
        acked(machine, index, 1)
    assert hinted(machine) == ["b0", "b1", "b2"]
    append(machine, b"1", b"2", b"3")
    for index in (0, 1, 2, 3, 4):
        acked(machine, index, 2 if index < 3 else 1)
    assert machine.lac == 3
    assert hinted(machine) == ["b0", "b3", "b4"]


@pytest.mark.rule("P9")
def test_the_lac_of_a_new_fragment_is_told_to_its_new_bookie_too() -> None:
    machine = writer(3, 3, 2)
    append(machine, b"0")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    append(machine, b"1")
    fail_bookie(machine, 1)
    written = of(machine.step(ev.BookiesRead(("b0", "b1", "b2", "b3"))), ev.WriteMetadata)[0]
    assert written.metadata.fragments == (Fragment(0, ("b0", "b1", "b2")), Fragment(1, ("b0", "b3", "b2")))
    machine.step(ev.MetadataWritten(Versioned(written.metadata, 1)))
    assert hinted(machine) == []  # entry 1 is in flight
    acked(machine, 1, 1)
    acked(machine, 2, 2)
    assert machine.lac == 1
    assert hinted(machine) == ["b0", "b3", "b2"]


@pytest.mark.rule("P9")
def test_after_an_ensemble_change_an_earlier_lac_is_told_to_the_bookies_that_stayed() -> None:
    machine = writer(3, 3, 2)
    append(machine, b"0")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    session = machine.delivery.lanes[2].session
    machine.step(ev.SessionBroken(2, session))
    machine.step(ev.TimerFired("budget:2"))
    written = of(machine.step(ev.BookiesRead(("b0", "b1", "b2", "b3"))), ev.WriteMetadata)[0]
    assert written.metadata.fragments == (Fragment(0, ("b0", "b1", "b2")), Fragment(1, ("b0", "b1", "b3")))
    machine.step(ev.MetadataWritten(Versioned(written.metadata, 1)))
    assert hinted(machine) == ["b0", "b1"]


def test_an_idle_broken_session_costs_nothing_until_the_next_append() -> None:
    machine = writer()
    session = machine.delivery.lanes[0].session
    assert machine.step(ev.SessionBroken(0, session)) == []
    frames = append(machine, b"0")
    assert [frame.index for frame in frames] == [0, 1, 2]


@pytest.mark.rule("P9")
def test_an_idle_writer_hints_its_lac_once() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 0, 1)
    assert ev.SetTimer("lac", 5) in acked(machine, 1, 1)
    assert [hint.bookie for hint in of(machine.step(ev.TimerFired("lac")), ev.SendLac)] == ["b0", "b1", "b2"]
    assert machine.step(ev.TimerFired("lac")) == []
