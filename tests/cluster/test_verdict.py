# SPDX-License-Identifier: Apache-2.0
"""The one sentence about a cluster: what is wrong comes first, and what to do is said with it."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.cluster.verdict import unavailable, verdict

HEALS = {"enabled": True, "auditor": "h1", "lostBookieDelayS": 60, "underReplicated": 0, "underRepair": 0}


def four(**of_first: Any) -> list[dict[str, Any]]:
    """Four bookies that are well; ``of_first`` is another about the first."""
    rows = [{"bookieId": f"b{n}", "state": "writable", "totalBytes": 100, "freeBytes": 60} for n in range(1, 5)]
    return [{**rows[0], **of_first}, *rows[1:]]


def only(found: dict[str, Any]) -> dict[str, Any]:
    (problem,) = found["problems"]
    assert isinstance(problem, dict)
    assert not found["well"]
    return problem


def test_a_cluster_that_is_well_is_said_to_be_so() -> None:
    found = verdict(four(), HEALS)
    assert found == {
        "well": True,
        "sentence": "All is well: 4 bookies are up, and no ledger lacks a copy.",
        "problems": [],
    }


@pytest.mark.parametrize(
    ("of_first", "rank", "short", "do"),
    [
        ({"state": "away"}, "bad", "b1 is down", "bk bookie run"),
        ({"state": "away", "order": "drain"}, "warn", "b1 is down while it drains", "bk bookie remove b1"),
        ({"state": "gone"}, "warn", "b1 is gone", "made elsewhere"),
        ({"error": "no answer within 1 s"}, "bad", "b1 does not answer", "/ready"),
        ({"state": "read-only"}, "warn", "b1 is read-only", "bk ledger list --bookie b1"),
        ({"numbers": {"notReady": "it starts"}}, "bad", "b1 is not ready", "log"),
        (
            {"damagedLedgers": 2, "limboLedgers": 1},
            "warn",
            "b1 has incomplete copies",
            "Auto-recovery makes them whole",
        ),
        ({"numbers": {"limboLedgers": 1}}, "warn", "b1 has incomplete copies", "/lacking"),
        ({"numbers": {"damage": 2}}, "bad", "b1 has damage", "SMART"),
        ({"freeBytes": 10}, "warn", "b1 is nearly full", "room"),
    ],
)
def test_what_is_wrong_with_a_bookie_is_said_with_what_to_do(
    of_first: dict[str, Any], rank: str, short: str, do: str
) -> None:
    found = verdict(four(**of_first), HEALS)
    problem = only(found)
    assert (problem["rank"], problem["short"], problem["bookie"]) == (rank, short, "b1")
    assert do in problem["do"]
    assert found["sentence"] == f"Not well: {short}."


@pytest.mark.parametrize(
    "of_first",
    [
        {"state": "read-only", "order": "read-only"},
        {"state": "read-only", "order": "drain"},
        {"state": "away", "order": "removed"},
    ],
)
def test_what_an_operator_ordered_is_no_problem(of_first: dict[str, Any]) -> None:
    assert verdict(four(**of_first), HEALS)["well"]


@pytest.mark.parametrize(
    ("replication", "rank", "do"),
    [
        ({"auditor": None}, "bad", "bk autorecovery"),
        ({"enabled": False}, "bad", "bk replication resume"),
        ({"underRepair": 3}, "warn", "3 repairs are under way"),
        ({}, "warn", "no bookie to copy to"),
    ],
)
def test_ledgers_without_a_copy_are_worse_if_nobody_repairs_them(
    replication: dict[str, Any], rank: str, do: str
) -> None:
    problem = only(verdict(four(), {**HEALS, "underReplicated": 12, **replication}))
    assert (problem["rank"], problem["short"]) == (rank, "12 ledgers lack a copy")
    assert do in problem["do"]


def test_who_makes_the_copies_of_a_lost_bookie_is_said_with_it() -> None:
    for replication, words in ((HEALS, "for 60 s"), ({}, "start bk autorecovery"), ({"enabled": False}, "paused")):
        assert words in only(verdict(four(state="away"), replication))["do"]


def test_the_worst_comes_first_and_the_sentence_stays_short() -> None:
    rows = [*four(state="read-only"), *({"bookieId": f"c{n}", "state": "away"} for n in range(5))]
    found: dict[str, Any] = verdict(rows, HEALS)
    assert [problem["rank"] for problem in found["problems"]] == ["bad"] * 5 + ["warn"]
    assert found["sentence"] == "Not well: c0 is down, c1 is down, c2 is down and 3 things more."


def test_too_few_bookies_for_a_ledger_come_before_all_else() -> None:
    found: dict[str, Any] = verdict(four()[:2], HEALS)
    assert found["sentence"] == "Not well: only 2 bookies take entries."
    assert verdict(four()[:1], HEALS)["sentence"] == "Not well: only 1 bookie takes entries."
    assert verdict([], HEALS)["sentence"] == "Not well: only 0 bookies take entries."


def test_a_metadata_service_that_is_away_is_told_with_its_reason() -> None:
    found: dict[str, Any] = unavailable("no answer in 4 s")
    assert "no answer in 4 s" in only(found)["what"]
