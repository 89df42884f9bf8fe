# SPDX-License-Identifier: Apache-2.0
"""``bk ledger explain``: what is made of what bookies say. Tables of a pure function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_cli.explain.findings import spans
from bk_cli.explain.ledger_findings import CopyPart, CopySeen, LedgerSeen, explain, recovery_verdict
from bk_core.cluster.finding import Finding, Weight
from bk_core.metadata.records import UnderreplicationMark
from bk_core.model import ENTRY_ID_MAX, DigestType, EntryId, Fragment, LedgerMetadata, LedgerState
from bk_core.wire.lane.reasons import EntryRange, Reason

END = ENTRY_ID_MAX


def record(*fragments: tuple[int, str], state: LedgerState, last: int = -1, qw: int = 3) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=qw,
        ack_quorum_size=2,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        state=state,
        last_entry_id=last,
        digest_type=DigestType.CRC32C,
    )


def holds(
    last: EntryId, end: EntryId = END, *, first: EntryId = 0, lac: EntryId | None = None, **more: Any
) -> CopySeen:
    """A healthy copy of the fragment at ``first``, which ends with ``last``."""
    absent = (EntryRange(last + 1, end),) if last < end else ()
    return CopySeen("", True, lac=lac, parts={first: CopyPart(((first, end),), absent)}, **more)


def limbo(last: EntryId, end: EntryId = END, *, first: EntryId = 0) -> CopySeen:
    """A copy in limbo, which has the entries up to ``last``."""
    return CopySeen(
        "", True, fenced=True, parts={first: CopyPart(((first, end),), (), (EntryRange(last + 1, end, Reason.LIMBO),))}
    )


def seen(value: LedgerMetadata, copies: dict[str, CopySeen], **more: Any) -> LedgerSeen:
    states = {name: "writable" if name in copies else "away" for f in value.fragments for name in f.ensemble}
    return LedgerSeen(12, value, 1_000, 2_000, 482_000, states, copies, **more)


ABSENT_10, DAMAGED_9 = (EntryRange(10, END),), (EntryRange(9, 9, Reason.DAMAGED),)
OPEN, RECOVERING, CLOSED = LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED


@pytest.mark.parametrize(
    ("copies", "stuck", "words"),
    [
        # all answer: two of three deny the entry behind the last one
        ({"a": holds(9, lac=8), "b": holds(9, lac=8), "c": holds(9)}, False, ["its last entry would be 9"]),
        # one copy is enough, though nobody else has it
        ({"a": holds(11, lac=8), "b": holds(9), "c": holds(9)}, False, ["its last entry would be 11"]),
        # one denies, one is in limbo, one is away: two would have to deny
        (
            {"a": holds(811, lac=810), "c": limbo(400)},
            True,
            ["entry 812 is unknown on b (away), c (limbo)", "denied by a", "2 have to deny it"],
        ),
        # two deny and one is away: that is enough
        ({"a": holds(9, lac=8), "c": holds(9)}, False, ["its last entry would be 9"]),
        # nobody can fence
        ({"a": holds(9, lac=8)}, True, ["too few bookies of the last ensemble", "b (away), c (away)"]),
        # an answer that was cut says nothing about the rest
        (
            {"a": replace(holds(9), lac=8, parts={0: CopyPart(((0, 20),))}), "b": holds(9), "c": holds(9)},
            False,
            ["entries to 20", "its last entry would be 20"],
        ),
        # damage is no denial
        (
            {
                "a": CopySeen("", True, lac=8, parts={0: CopyPart(((0, END),), ABSENT_10, DAMAGED_9)}),
                "b": holds(8),
            },
            True,
            ["entry 9 is unknown on a (damaged), c (away)", "denied by b"],
        ),
    ],
)  # fmt: skip
def test_what_a_recovery_would_decide(copies: dict[str, CopySeen], stuck: bool, words: list[str]) -> None:
    verdict = recovery_verdict(seen(record((0, "abc"), state=RECOVERING), copies))
    assert verdict.stuck is stuck
    assert any(word in verdict.why for word in words), verdict
    if stuck:
        assert all(word in verdict.why for word in words), verdict
    assert "bk ledger recover 12" in verdict.remedy


def test_remedy_names_the_bookies_that_are_down_and_no_others() -> None:
    value = record((0, "abc"), state=RECOVERING)
    away = recovery_verdict(seen(value, {"a": holds(9, lac=8), "c": limbo(4)}))
    assert away.remedy == "start b (bk bookie run on its host), then: bk ledger recover 12"
    assert away.entry == 10
    lost = recovery_verdict(seen(value, {"a": holds(9, lac=8), "b": limbo(4), "c": limbo(4)}))
    assert "restore a data directory" in lost.remedy
    silent = {"a": holds(9, lac=8), "b": CopySeen("silent for 0.5 s"), "c": limbo(4)}
    told = recovery_verdict(seen(value, silent))
    assert "b (silent for 0.5 s)" in told.why
    assert told.remedy.startswith("look at b, which is registered and does not answer, and restart it, then: ")


def test_who_is_refused_is_told_so_and_not_to_restart_bookies() -> None:
    refused = CopySeen("BK_UNAUTHENTICATED: b does not let this client in: it has expired", remedy="renew the file")
    value = record((0, "abc"), state=LedgerState.OPEN)
    some = explain(seen(value, {"a": CopySeen("silent for 0.4 s"), "b": refused, "c": refused}))
    (mine,) = [each for each in some if "refuse this client" in each.what]
    assert mine.weight is Weight.PROBLEM
    assert "b (BK_UNAUTHENTICATED: b does not let this client in: it has expired), c (" in mine.what
    assert mine.remedy == "renew the file"
    (others,) = [each for each in some if "do not answer" in each.what]
    assert "a (silent" in others.what
    assert "b (" not in others.what
    every = explain(seen(value, dict.fromkeys("abc", refused)))
    assert not any("restart" in each.remedy or "do not answer" in each.what for each in every)


def test_a_bookie_that_refuses_is_not_to_be_restarted_but_its_log_read() -> None:
    value = record((0, "abc"), state=RECOVERING)
    refuses = CopySeen("refuses: IO_ERROR", refuses=True)
    told = recovery_verdict(seen(value, {"a": holds(9, lac=8), "b": refuses, "c": CopySeen("silent for 0.4 s")}))
    assert "look into the log of b, which says why it refuses" in told.remedy
    assert "look at c, which is registered and does not answer, and restart it" in told.remedy


def test_recovery_begins_behind_the_greatest_lac_and_asks_the_fragment_of_each_entry() -> None:
    value = record((0, "abc"), (10, "abd"), state=RECOVERING)
    parts = {0: CopyPart(((0, 9),)), 10: CopyPart(((10, END),), (EntryRange(14, END),))}
    copies = {name: CopySeen("", True, lac=12, parts=parts) for name in "abd"}
    assert recovery_verdict(seen(value, copies)).why == "its last entry would be 13"
    copies["d"] = CopySeen("", True, lac=-1, parts={10: CopyPart(((10, END),), (EntryRange(10, END),))})
    assert recovery_verdict(seen(value, copies)).why == "its last entry would be 13"


def test_striped_ledger_is_judged_by_write_sets() -> None:
    """E 3, Qw 2, Qa 2: entry 4 is on places 1 and 2; one denial is enough."""
    value = record((0, "abc"), state=RECOVERING, qw=2)
    copies = {
        "a": CopySeen("", True, lac=2, parts={0: CopyPart(((0, END),), (EntryRange(1, 1), EntryRange(4, END)))}),
        "b": CopySeen("", True, lac=2, parts={0: CopyPart(((0, END),), (EntryRange(2, 2), EntryRange(4, END)))}),
    }
    assert recovery_verdict(seen(value, copies)).why == "its last entry would be 3"


def weights(found: list[Finding]) -> list[Weight]:
    return [each.weight for each in found]


def test_ledger_stuck_in_recovery_is_a_problem_with_its_age_and_comes_first() -> None:
    [first, *others] = explain(seen(record((0, "abc"), state=RECOVERING), {"a": holds(811, lac=810), "c": limbo(400)}))
    assert first.weight is Weight.PROBLEM
    assert first.what.startswith("in recovery for 8 min: entry 812 is unknown on b (away), c (limbo)")
    assert first.remedy.startswith("start b ")
    assert others[0].what == "these of its bookies do not answer: b (away)"


@pytest.mark.parametrize(
    ("fenced", "weight", "word"),
    [(False, Weight.FINE, "a writer may be at work"), (True, Weight.PROBLEM, "its writer cannot go on")],
)
def test_open_ledger_is_fine_until_somebody_has_fenced_it(fenced: bool, weight: Weight, word: str) -> None:
    copies = {name: holds(9, lac=8, fenced=fenced and name == "b") for name in "abc"}
    [first] = explain(seen(record((0, "abc"), state=OPEN), copies))
    assert (first.weight, word in first.what) == (weight, True)


def test_closed_ledger_that_is_whole_has_nothing_to_say() -> None:
    copies = {name: holds(9, 9) for name in "abc"}
    assert weights(explain(seen(record((0, "abc"), state=CLOSED, last=9), copies))) == [Weight.FINE]


def test_entries_that_no_bookie_has_are_a_problem_and_missing_copies_a_note() -> None:
    value = record((0, "abc"), state=CLOSED, last=99)
    damaged = CopySeen("", True, parts={0: CopyPart(((0, 99),), (), (EntryRange(40, 49, Reason.DAMAGED),))})
    copies = {"a": damaged, "c": holds(44, 99)}
    found = explain(seen(value, copies, mark=UnderreplicationMark(("c",), 422_000), auditor="x"))
    assert weights(found) == [Weight.PROBLEM, *[Weight.NOTE] * 4, Weight.FINE]
    assert "no bookie that answers has entries 45 to 49: a (damaged), b (away), c (absent)" in found[0].what
    assert found[0].remedy.startswith("start b ")
    texts = {each.what: each.remedy for each in found}
    assert texts["c lacks entries 45 to 99 of the fragment at 0 (absent)"] == ""
    assert texts["a lacks entries 40 to 49 of the fragment at 0 (damaged)"].startswith("it is not marked")
    assert "marked as lacking copies of c for 60 s; no worker repairs it now" in texts


@pytest.mark.parametrize(
    ("more", "weight", "remedy"),
    [
        ({"auditor": "x"}, Weight.NOTE, "the log of bk autorecovery"),
        ({"auditor": None}, Weight.PROBLEM, "bk autorecovery"),
        ({"auditor": "x", "repaired_by": "y"}, Weight.NOTE, ""),
        ({"auditor": "x", "replication_enabled": False}, Weight.PROBLEM, "bk replication resume"),
    ],
)
def test_mark_says_who_is_at_work_or_what_is_in_the_way(more: dict[str, Any], weight: Weight, remedy: str) -> None:
    copies = {name: holds(9, 9) for name in "abc"}
    found = explain(seen(record((0, "abc"), state=CLOSED, last=9), copies, mark=UnderreplicationMark(("a",)), **more))
    [about] = [each for each in found if "marked" in each.what]
    assert about.weight is weight
    assert about.remedy.startswith(remedy)


def test_ids_of_other_write_sets_are_not_lacking() -> None:
    value = record((0, "abc"), state=CLOSED, last=5, qw=2)
    copies = {
        "a": CopySeen("", True, parts={0: CopyPart(((0, 5),), (EntryRange(1, 1), EntryRange(4, 4)))}),
        "b": CopySeen("", True, parts={0: CopyPart(((0, 5),), (EntryRange(2, 2), EntryRange(5, 5)))}),
        "c": CopySeen("", True, parts={0: CopyPart(((0, 5),), (EntryRange(0, 0), EntryRange(3, 3)))}),
    }
    assert weights(explain(seen(value, copies))) == [Weight.FINE]


def test_ranges_in_words() -> None:
    assert spans([(5, 5), (6, 8), (10, 10)]) == "5 to 8, 10"
    assert spans([(7, END)]) == "7 on"
    assert spans([(k, k) for k in range(0, 40, 2)]).endswith("14 …")
