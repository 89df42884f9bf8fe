# SPDX-License-Identifier: Apache-2.0
"""``bk log delete`` on both kinds of clusters."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from bk_core import blocking
from tests.cli.data.test_log_upkeep import SECRET, fill
from tests.kit.canaries import PASSWORD


@pytest.fixture
def bk(bk_served: Any) -> Any:
    return bk_served


@pytest.fixture
def name() -> str:
    """A log of the test's own."""
    return f"log-{uuid4()}"


def ledgers_of(served: Any) -> set[int]:
    with blocking.connect(served.uri) as bookkeeper:
        return set(bookkeeper.list_ledgers())


@pytest.mark.rule("N6")
def test_a_log_is_deleted_only_when_asked_twice_and_its_ledgers_wait(bk: Any, served: Any, name: str) -> None:
    made = set(fill(served, name, 3))
    assert bk("log", "delete", name, *SECRET) == 2
    assert "would delete log" in bk.err
    assert "offsets 0 to 14, 3 extents" in bk.err
    assert "--yes" in bk.err
    (found,) = bk.json("log", "delete", name, "--yes", *SECRET)
    assert (found["log"], found["deleted"], found["ledgers"]) == (name, True, [])
    assert made <= ledgers_of(served)
    assert name not in [each["log"] for each in bk.json("log", "list")]
    waiting = [each for each in bk.json("log", "list", "--deleted") if each["log"] == name]
    assert [each["uuid"] for each in waiting] == [found["uuid"]]
    for command in (("show",), ("read",), ("explain",), ("delete", "--yes")):
        assert bk("log", *command, name) == 3, command
        assert "it was deleted at 20" in bk.err
    (nothing,) = bk.json("log", "vacuum", name, *SECRET)
    assert nothing["ledgers"] == []
    (planned,) = bk.json("log", "vacuum", name, "--delete-delay-ms", "0", "--force", "--dry-run", *SECRET)
    assert set(planned["ledgers"]) == made <= ledgers_of(served)
    plan = bk.json("upkeep", "--dry-run", *SECRET)
    assert [each["why"] for each in plan if each.get("log") == name and "deleted less than 7 days ago" in each["why"]]
    (done,) = bk.json("log", "vacuum", name, "--delete-delay-ms", "0", "--force", *SECRET)
    assert set(done["ledgers"]) == made
    assert not made & ledgers_of(served)
    assert bk("log", "vacuum", name, *SECRET) == 3


def test_at_once_deletes_the_ledgers_too_unless_somebody_writes(bk: Any, served: Any, name: str) -> None:
    made = set(fill(served, name, 2))
    with blocking.connect(served.uri) as bookkeeper:
        leader = bookkeeper.log(name, password=PASSWORD).lead()
        assert bk("log", "delete", name, "--yes", *SECRET) == 4
        assert "BK_LOG_HAS_LEADER" in bk.err
        assert bk("log", "delete", name, "--yes", "--now", *SECRET) == 4
        assert "BK_LOG_IN_USE" in bk.err
        leader.append(b"last")
        leader.close()
    (found,) = bk.json("log", "delete", name, "--yes", "--now", *SECRET)
    assert made < set(found["ledgers"])
    assert not made & ledgers_of(served)


def test_a_wrong_password_deletes_nothing(bk: Any, served: Any, name: str) -> None:
    fill(served, name, 1)
    assert bk("log", "delete", name, "--yes") == 2
    assert "BK_WRONG_PASSWORD" in bk.err
    assert name in [each["log"] for each in bk.json("log", "list")]
