# SPDX-License-Identifier: Apache-2.0
"""``bk log explain``: what is made of a head and of its newest ledgers. Tables of a pure function."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from bk_cli import main
from bk_cli.explain.ledger_findings import CopyPart, CopySeen, LedgerSeen
from bk_cli.explain.log_findings import LogSeen, explain_log, readable_to
from bk_core import blocking
from bk_core.cluster.finding import Weight
from bk_core.logs.model.head import Extent, LogHead
from bk_core.metadata import open_store
from bk_core.model import ENTRY_ID_MAX, DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.wire.lane.reasons import EntryRange, Reason

NAMES = ("a", "b", "c")
FIVE = ("a", "b", "c", "d", "e")


def ledger(ledger_id: int, state: LedgerState, last: int, *, fenced: bool = False, lost: bool = False) -> LedgerSeen:
    record = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        fragments=(Fragment(0, NAMES),),
        state=state,
        last_entry_id=last if state is LedgerState.CLOSED else -1,
        digest_type=DigestType.CRC32C,
    )
    end = last if record.is_closed else ENTRY_ID_MAX
    gap = (EntryRange(last + 1, end),) if last < end else ()
    unknown = (EntryRange(0, end, Reason.LIMBO),)
    part = CopyPart(((0, end),), () if lost else gap, unknown if lost else ())
    copy = CopySeen("", True, fenced, last, None if lost else last - 1, {0: part})
    return LedgerSeen(ledger_id, record, 0, 0, 60_000, dict.fromkeys(NAMES, "writable"), dict.fromkeys(NAMES, copy))


def sealed(ledger_id: int, base: int, count: int) -> Extent:
    return Extent(ledger_id=ledger_id, base_offset=base, entry_count=count, ensemble_size=3)


def seen(*extents: Extent, ledgers: list[LedgerSeen], start: int = 0, writable: tuple[str, ...] = FIVE) -> LogSeen:
    closed = [extent for extent in extents if not extent.is_open]
    head = LogHead(uuid="u", tail=extents, start_offset=start, next_offset=closed[-1].next_offset if closed else start)
    found = {each.ledger_id: each for each in ledgers}
    return LogSeen("events", head, {extent.ledger_id: found.get(extent.ledger_id) for extent in extents}, writable)


CLOSED, OPEN, RECOVERING = LedgerState.CLOSED, LedgerState.OPEN, LedgerState.IN_RECOVERY
LEADER = Extent(ledger_id=8, base_offset=10, is_open=True)


@pytest.mark.parametrize(
    ("open_ledger", "weight", "word"),
    [
        (ledger(8, OPEN, 4), Weight.FINE, "a leader writes ledger 8, open since offset 10, confirmed to offset 13"),
        (ledger(8, OPEN, 4, fenced=True), Weight.NOTE, "next leader or publish with takeover"),
        (ledger(8, CLOSED, 4), Weight.NOTE, "its leader was fenced or ended"),
        (ledger(8, RECOVERING, 4), Weight.NOTE, "its leader was fenced or ended"),
        (ledger(8, RECOVERING, -1, lost=True), Weight.PROBLEM, "no takeover can succeed: ledger 8 cannot be recovered"),
    ],
)
def test_who_writes_a_log_and_what_keeps_others_from_it(open_ledger: LedgerSeen, weight: Weight, word: str) -> None:
    found = explain_log(seen(sealed(7, 0, 10), LEADER, ledgers=[ledger(7, CLOSED, 9), open_ledger]))
    [about] = [each for each in found if word in each.what]
    assert about.weight is weight
    assert all(each.remedy for each in found if each.weight is Weight.PROBLEM)


def test_readers_get_to_the_lac_of_the_open_ledger_and_to_the_end_of_a_closed_one() -> None:
    extents, first = (sealed(7, 0, 10), LEADER), ledger(7, CLOSED, 9)
    assert readable_to(seen(*extents, ledgers=[first, ledger(8, OPEN, 4)])) == 14
    assert readable_to(seen(*extents, ledgers=[first, ledger(8, CLOSED, 4)])) == 15
    assert readable_to(seen(extents[0], ledgers=[first])) == 10


def test_deleted_and_damaged_ledgers_block_reads_of_their_offsets() -> None:
    bad = ledger(6, CLOSED, 9, lost=True)
    found = explain_log(
        seen(sealed(5, 0, 10), sealed(6, 10, 10), sealed(7, 20, 5), ledgers=[bad, ledger(7, CLOSED, 4)])
    )
    problems = [each for each in found if each.weight is Weight.PROBLEM]
    assert [each.what.split(":")[0] for each in problems] == [
        "offsets 0 to 9 cannot be read",
        "offsets 10 to 19, ledger 6",
    ]
    assert problems[0].remedy.startswith("bk log trim events --before 10")


def test_too_few_writable_bookies_block_the_next_ledger() -> None:
    whole = seen(sealed(7, 0, 10), ledgers=[ledger(7, CLOSED, 9)], writable=("a", "b"))
    [first, *_] = explain_log(whole)
    assert first.weight is Weight.PROBLEM
    assert "its last one has 3 bookies, and 2 are writable (a, b)" in first.what
    assert all(each.weight is Weight.FINE for each in explain_log(replace(whole, writable=FIVE)))


def test_trimmed_offsets_and_what_was_not_looked_at_are_told() -> None:
    value = seen(sealed(6, 30, 10), sealed(7, 40, 10), start=35, ledgers=[ledger(6, CLOSED, 9), ledger(7, CLOSED, 9)])
    texts = [each.what for each in explain_log(value)]
    assert "offsets 35 to 49 can be read; those below 35 are trimmed" in texts
    only_newest = replace(value, ledgers={7: value.ledgers[7]})
    assert any("below offset 40 were not looked at" in each.what for each in explain_log(only_newest))


def test_command_on_a_log_without_bookies(capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    with blocking.connect(uri) as client:
        client.log("events").create()
        assert main.run(["log", "explain", "events", "--json", "--metadata-service-uri", uri]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["readableTo"], found["openLedgers"]) == (0, [])
        assert [each["weight"] for each in found["findings"]] == ["fine", "fine"]
        assert main.run(["log", "explain", "nothing", "--metadata-service-uri", uri]) == 3
    store.close()
