# SPDX-License-Identifier: Apache-2.0
"""Plans of moves: what they may never do, and that they end where the disks are alike."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bk_core.model import Fragment, LedgerMetadata, LedgerState
from bk_core.placement import FLAT, Landscape
from bk_core.protocol.replication.balance import Assigned, Disk, MovePlan, moved_fragment, plan_moves, shares
from bk_core.protocol.replication.copies import size_of
from tests.kit.amount import some

MIB = 1 << 20


def a_ledger(length: int, *ensembles: tuple[str, ...], quorum: int = 0, closed: bool = True) -> LedgerMetadata:
    size = len(ensembles[0])
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum_size=quorum or size,
        ack_quorum_size=1,
        fragments=tuple(Fragment(100 * number, ensemble) for number, ensemble in enumerate(ensembles)),
        state=LedgerState.CLOSED if closed else LedgerState.OPEN,
        last_entry_id=100 * len(ensembles) - 1,
        length=length,
    )


def assigned(*values: LedgerMetadata) -> Assigned:
    made = Assigned()
    for number, value in enumerate(values):
        made.add(number, value)
    return made


def disks(count: int, total: int = 1_000 * MIB) -> list[Disk]:
    return [Disk(f"b{number}", total) for number in range(1, count + 1)]


def applied(values: dict[int, LedgerMetadata], plan: MovePlan) -> dict[int, LedgerMetadata]:
    """The records after the moves, each of which is checked."""
    after = dict(values)
    for move in plan.moves:
        value = after[move.ledger_id]
        assert value.is_closed
        assert move.size == size_of(value, move.source)
        assert move.fragments == tuple(f.first_entry_id for f in value.fragments if move.source in f.ensemble)
        assert not any(move.source in f.ensemble and move.target in f.ensemble for f in value.fragments)
        fragments = tuple(moved_fragment(each, move.source, move.target) for each in value.fragments)
        after[move.ledger_id] = replace(value, fragments=fragments)
        assert after[move.ledger_id].problem() is None
    return after


def test_new_bookie_gets_its_part_and_the_second_plan_is_empty() -> None:
    values = {number: a_ledger(10 * MIB, ("b1", "b2", "b3")) for number in range(40)}
    plan = plan_moves(disks(4), assigned(*values.values()), tolerance=0.02)
    assert plan.is_even
    assert {move.target for move in plan.moves} == {"b4"}
    assert len({move.ledger_id for move in plan.moves}) == len(plan.moves), "no ledger twice: its record has changed"
    found = shares(plan.after, disks(4))
    assert max(found.values()) - min(found.values()) <= 0.02
    again = plan_moves(disks(4), assigned(*applied(values, plan).values()), tolerance=0.02)
    assert (again.moves, again.before) == ([], plan.after)


def test_largest_move_that_helps_goes_first_and_none_turns_two_bookies_about() -> None:
    lengths = (600, 300, 80, 40, 5)
    made = assigned(*(a_ledger(length * MIB, ("b1",)) for length in lengths))
    plan = plan_moves(disks(2), made, tolerance=0.0)
    assert [move.size // MIB for move in plan.moves] == [300, 80, 40, 5]
    assert plan.after == {"b1": 600 * MIB, "b2": 425 * MIB}
    assert plan_moves(disks(2), assigned(a_ledger(600 * MIB, ("b1",))), tolerance=0.0).moves == []


def test_share_counts_and_not_bytes() -> None:
    made = assigned(*(a_ledger(MIB, ("b1",)) for _ in range(100)))
    plan = plan_moves([Disk("b1", 100 * MIB), Disk("b2", 300 * MIB)], made, tolerance=0.02)
    assert plan.after["b2"] == pytest.approx(75 * MIB, abs=2 * MIB)


def test_bounds_hold() -> None:
    made = assigned(*(a_ledger(MIB, ("b1",)) for _ in range(100)))
    assert len(plan_moves(disks(2), made, tolerance=0, moves_max=7).moves) == 7
    assert plan_moves(disks(2), made, tolerance=0, bytes_max=5 * MIB).size == 5 * MIB
    few = Assigned(ledgers_max=3)
    for number in range(10):
        few.add(number, a_ledger((number + 1) * MIB, ("b1",)))
    assert (few.left_out, sorted(number for number, _ in few.ledgers())) == (7, [7, 8, 9])
    assert few.used["b1"] == 55 * MIB, "all count"


def test_what_is_open_or_marked_or_alone_stays() -> None:
    made = Assigned()
    made.add(1, a_ledger(50 * MIB, ("b1",), closed=False))
    made.add(2, a_ledger(50 * MIB, ("b1",)), may_move=False)
    made.add(3, a_ledger(50 * MIB, ("b1", "b2")))
    assert plan_moves(disks(2), made, tolerance=0).moves == []


def test_target_takes_no_second_copy_of_any_fragment() -> None:
    two = assigned(a_ledger(80 * MIB, ("b1", "b2"), ("b1", "b3")))
    two.add(9, a_ledger(200 * MIB, ("b1",)), may_move=False)
    assert {move.target for move in plan_moves(disks(4), two, tolerance=0.05).moves} == {"b4"}
    assert plan_moves(disks(3), two, tolerance=0.05).moves == []


def test_read_only_bookie_gives_and_takes_nothing() -> None:
    world = [Disk("b1", 1_000 * MIB, takes=False), Disk("b2", 1_000 * MIB), Disk("b3", 1_000 * MIB, takes=False)]
    made = assigned(*(a_ledger(10 * MIB, ("b1",)) for _ in range(20)))
    plan = plan_moves(world, made, tolerance=0.02)
    assert {(move.source, move.target) for move in plan.moves} == {("b1", "b2")}
    assert plan_moves([replace(disk, takes=False) for disk in world], made).moves == []


def test_racks_are_not_given_up_for_space() -> None:
    racks = {"b1": "/r1", "b2": "/r2", "b3": "/r2", "b4": "/r2", "b5": "/r1"}
    made = assigned(*(a_ledger(10 * MIB, ("b1", "b2")) for _ in range(40)))
    plan = plan_moves(disks(5), made, landscape=Landscape(racks), tolerance=0.02)
    moves = {(move.source, move.target) for move in plan.moves}
    assert {source for source, _ in moves} == {"b1", "b2"}
    assert moves <= {("b1", "b5"), ("b2", "b3"), ("b2", "b4")}
    flat = plan_moves(disks(5), made, landscape=FLAT, tolerance=0.02)
    assert ("b1", "b3") in {(move.source, move.target) for move in flat.moves}, "without racks they would"


@pytest.mark.parametrize("seed", range(some(60, few=15)))
def test_whatever_the_cluster_a_plan_keeps_the_rules_and_makes_it_no_worse(seed: int) -> None:
    draw = Random(seed)
    names = [f"b{number}" for number in range(1, draw.randint(3, 9))]
    world = [Disk(name, draw.randint(100, 2_000) * MIB, takes=draw.random() < 0.8) for name in names]
    racks = {name: f"/r{draw.randint(1, 3)}" for name in names}
    landscape = draw.choice((FLAT, Landscape(racks), Landscape(racks, enforced=True)))
    values = {}
    for number in range(draw.randint(1, 150)):
        size = draw.randint(1, min(4, len(names)))
        quorum = draw.randint(1, size)
        ensembles = [tuple(draw.sample(names, size)) for _ in range(draw.randint(1, 3))]
        values[number] = a_ledger(draw.randint(0, 5 * MIB), *ensembles, quorum=quorum, closed=draw.random() < 0.9)
    plan = plan_moves(world, assigned(*values.values()), landscape=landscape, tolerance=draw.choice((0.0, 0.01, 0.1)))
    after = applied(values, plan)
    for number, value in after.items():
        for was, now in zip(values[number].fragments, value.fragments, strict=True):
            fewest = [landscape.fewest_racks(each.ensemble, value.write_quorum_size) for each in (was, now)]
            assert now == was or landscape.is_flat or fewest[1] >= min(fewest[0], 2, value.write_quorum_size)
    takes = {disk.bookie for disk in world if disk.takes}
    assert {move.target for move in plan.moves} <= takes
    before, end = shares(plan.before, world), shares(plan.after, world)
    assert max(end.values()) <= max(before.values())
    counted = assigned(*after.values()).used
    assert plan.after == pytest.approx({disk.bookie: counted[disk.bookie] for disk in world}, abs=len(plan.moves) + 1)
