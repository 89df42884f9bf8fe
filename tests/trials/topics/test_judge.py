# SPDX-License-Identifier: Apache-2.0
"""The judge of the trial of topics finds each way in which a reader may be wrong."""

from __future__ import annotations

from tests.trials.topics.judge import Content, Id, Row, Seen, differing


def row(entry: int, number: int, *, key: str = "k", partition: int = 0, index: int = -1, session: int = 1) -> Row:
    return Row(partition, Id(7, entry, index), key, Content(session, number))


ACKED = {Content(1, 0): (0, Id(7, 0, -1)), Content(1, 1): None}


def seen(*rows: Row) -> Seen:
    made = Seen("a reader")
    made.add(rows)
    return made


def test_all_messages_once_and_in_order_are_right() -> None:
    found = seen(row(0, 0), row(1, 1), row(0, 0, partition=1, session=2), row(2, 2, index=0), row(2, 3, index=1))
    found.check(ACKED)
    assert found.take_problems() == []
    assert (len(found), found.last[0], found.missing(ACKED)) == (5, Id(7, 2, 1), [])


def test_a_missing_message_is_found() -> None:
    found = seen(row(0, 0))
    assert found.missing(ACKED) == [Content(1, 1)]
    found.check(ACKED)
    assert "1 acknowledged messages are missing" in found.take_problems()[0]
    assert found.take_problems() == [], "take_problems returns each problem once"


def test_a_message_that_comes_again_is_found() -> None:
    (again, behind) = seen(row(0, 0), row(1, 1), row(1, 1)).take_problems()
    assert "came again" in again
    assert "behind number 1" in behind


def test_a_content_at_two_places_is_found() -> None:
    problems = seen(row(0, 0), row(1, 0)).take_problems()
    assert any("came twice" in problem for problem in problems)


def test_messages_out_of_order_are_found() -> None:
    assert "came too late" in seen(row(1, 0), row(0, 1)).take_problems()[0]
    assert "behind number 1" in seen(row(0, 1), row(1, 0)).take_problems()[0]
    assert seen(row(0, 1), row(1, 0, key="another")).take_problems() == []


def test_another_id_than_the_acknowledged_one_is_found() -> None:
    found = seen(row(3, 0), row(4, 1))
    found.check(ACKED)
    assert "was acknowledged as" in found.take_problems()[0]


def test_readers_that_differ_are_found() -> None:
    assert differing(seen(row(0, 0)), seen(row(0, 0))) == []
    assert differing(seen(row(0, 0)), seen(row(0, 0), row(0, 1, partition=2))) == [
        "a reader and a reader saw partition 2 differently"
    ]
