# SPDX-License-Identifier: Apache-2.0
"""The checker of the Spark trial finds every kind of broken promise in forged histories, and none in correct ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trials.spark.checker import Broken, Listed, Outcome, Write, check_acked, check_listed, check_rows

DONE, FAILED, UNKNOWN = Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN


def rows(write: int, count: int = 4) -> list[bytes]:
    return [b"%d:%d" % (write, number) for number in range(count)]


HISTORY = [Write(rows(0)), Write(rows(1), FAILED), Write(rows(2), UNKNOWN), Write(rows(3), UNKNOWN), Write(rows(4))]
HELD = [*rows(0), *rows(2), *rows(4)]

FORGED: dict[str, tuple[Sequence[bytes], Broken]] = {
    "the first row is lost": (HELD[1:], Broken.LOST),
    "the last row is lost": (HELD[:-1], Broken.LOST),
    "a row in the middle is lost": ([*HELD[:1], *HELD[2:]], Broken.LOST),
    "a whole write is lost": ([*rows(0), *rows(2)], Broken.LOST),
    "everything is lost": ([], Broken.LOST),
    "a row is there twice, side by side": ([HELD[0], *HELD], Broken.DUPLICATE),
    "a row is there again at the end": ([*HELD, HELD[0]], Broken.DUPLICATE),
    "a whole write is there twice": ([*HELD, *rows(4)], Broken.DUPLICATE),
    "a write of unknown outcome is there twice": ([*rows(0), *rows(2), *rows(2), *rows(4)], Broken.DUPLICATE),
    "half of an attempt is there beside the other": ([*HELD, *rows(4)[:2]], Broken.DUPLICATE),
    "one row of a failed write is there": ([*rows(0), *rows(1)[:1], *HELD[4:]], Broken.FAILED_VISIBLE),
    "a failed write is there": ([*HELD, *rows(1)], Broken.FAILED_VISIBLE),
    "the beginning of a write of unknown outcome is there": ([*HELD, *rows(3)[:1]], Broken.TORN),
    "the end of a write of unknown outcome is there": ([*HELD, *rows(3)[1:]], Broken.TORN),
    "two rows have changed places": ([HELD[1], HELD[0], *HELD[2:]], Broken.ORDER),
    "two writes have changed places": ([*rows(4), *rows(2), *rows(0)], Broken.ORDER),
    "two partitions of a write have changed places": ([*HELD[:8], *HELD[10:], *HELD[8:10]], Broken.ORDER),
    "a row is another's": ([*HELD, b"9:9"], Broken.FOREIGN),
    "a row was changed": ([*HELD[:-1], HELD[-1] + b"x"], Broken.FOREIGN),
    "a row is empty": ([*HELD, b""], Broken.FOREIGN),
}


def test_the_true_history_passes() -> None:
    assert check_rows(HISTORY, HELD) == []
    assert check_rows(HISTORY, [*HELD[:8], *rows(3), *HELD[8:]]) == []
    assert check_rows(HISTORY, [*rows(0), *rows(4)]) == []
    assert check_rows([], []) == []


@pytest.mark.rule("N4")
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_log_is_found_out(name: str) -> None:
    found, broken = FORGED[name]
    assert broken in {violation.broken for violation in check_rows(HISTORY, found)}


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Outcome), st.booleans()), max_size=6), st.data())
def test_correct_histories_pass_and_any_one_change_of_them_is_found_out(
    shape: list[tuple[int, Outcome, bool]], data: st.DataObject
) -> None:
    writes = [Write(rows(number, count), outcome) for number, (count, outcome, _) in enumerate(shape)]
    there = [w for w, (_, o, applied) in zip(writes, shape, strict=True) if o is DONE or (o is UNKNOWN and applied)]
    found = [row for write in there for row in write.rows]
    assert check_rows(writes, found) == []
    if not found:
        return
    at = data.draw(st.integers(0, len(found) - 1))
    assert check_rows(writes, [*found[: at + 1], *found[at:]])
    written = next(write for write in writes if found[at] in write.rows)
    if written.outcome is DONE or len(written.rows) > 1:
        assert check_rows(writes, [*found[:at], *found[at + 1 :]])
    if len(found) > 1:
        other = (at + 1) % len(found)
        swapped = list(found)
        swapped[at], swapped[other] = swapped[other], swapped[at]
        assert check_rows(writes, swapped)


def ledger(ledger_id: int, partition: int, attempt: int = 0, publish: str = "job/1") -> Listed:
    return Listed(
        ledger_id=ledger_id,
        entries=5,
        log_uuid="u",
        publish_id=publish,
        task=(str(partition), str(attempt)),
        stored_entries=5,
    )


LISTED = [ledger(1, 0), ledger(2, 1, attempt=3), ledger(3, 0, publish="job/2")]


def test_a_true_list_passes() -> None:
    assert check_listed("u", LISTED) == []
    compacted = replace(ledger(9, 0), task=None)
    assert check_listed("u", [compacted, replace(compacted, ledger_id=10)]) == []


@pytest.mark.rule("N6")
@pytest.mark.parametrize(
    ("name", "listed", "broken"),
    [
        ("a ledger twice", [*LISTED, LISTED[0]], Broken.ORPHAN_VISIBLE),
        ("two attempts of a task", [*LISTED, ledger(4, 0, attempt=1)], Broken.ORPHAN_VISIBLE),
        ("another log's ledger", [*LISTED, replace(ledger(4, 2), log_uuid="v")], Broken.ORPHAN_VISIBLE),
        ("a deleted ledger", [*LISTED[:2], replace(LISTED[2], stored_entries=None)], Broken.LISTED_GONE),
        ("a ledger that ends earlier", [*LISTED[:2], replace(LISTED[2], stored_entries=4)], Broken.LISTED_GONE),
    ],
)
def test_a_forged_list_is_found_out(name: str, listed: list[Listed], broken: Broken) -> None:
    assert {violation.broken for violation in check_listed("u", listed)} == {broken}, name


def test_what_a_leader_was_told_is_compared_with_the_log() -> None:
    told = [b"a:%d" % number for number in range(5)]
    assert check_acked(told, told) == []
    assert check_acked(told, [*told, b"a:5"]) == [], "an entry of unknown outcome may be there"
    for forged, broken in (
        (told[:-1], Broken.LOST),
        (told[1:], Broken.LOST),
        ([*told, told[0]], Broken.DUPLICATE),
        ([told[1], told[0], *told[2:]], Broken.ORDER),
        ([*told, b"a:6"], Broken.ORDER),
    ):
        assert [violation.broken for violation in check_acked(told, forged)] == [broken]
