# SPDX-License-Identifier: Apache-2.0
"""The audit log of a bookie: one line an event, few lines in a flood, and none lost in silence."""

from __future__ import annotations

import json
import logging
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.observe import audit as core
from bk_core.observe.audit import AuditFile
from bk_core.wire.lane.reasons import Reason
from bookie_server import audit as module
from bookie_server.audit import AGAIN_S, BURST, KINDS_MAX, LINES_PER_S, AuditLog, outcome_of


class Told:
    """An audit log with a clock of the test."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now, self._caplog, self._taken = 1_800_000_000.0, caplog, 0
        self.log = AuditLog(lambda: self.now)
        self.log.bookie_id = "b1:3181"

    def lines(self) -> list[dict[str, Any]]:
        """What was told since the last call, without the time and the bookie."""
        records = [record for record in self._caplog.records if record.name == "bookie_server.audit"]
        new, self._taken = records[self._taken :], len(records)
        events = [json.loads(record.getMessage()) for record in new]
        assert all(event.pop("bookie") == "b1:3181" for event in events)
        return [{name: value for name, value in event.items() if name != "time"} for event in events]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_an_event_says_who_did_what_to_what_and_what_became_of_it(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    told.log.say("fence", identity="CN=a\n,O=b", proof="certificate", address="10.0.0.1:77", lane="direct", ledger=7)
    assert json.loads(caplog.records[-1].getMessage())["time"] == "2027-01-15T08:00:00.000+00:00"
    assert "\n" not in caplog.records[-1].getMessage(), "nobody forges a line by a name"
    assert told.lines() == [
        {
            "did": "fence",
            "outcome": "done",
            "identity": "CN=a\n,O=b",
            "proof": "certificate",
            "address": "10.0.0.1:77",
            "lane": "direct",
            "ledger": 7,
        }
    ]


def test_it_is_told_whatever_the_level_of_other_loggers_is(told: Told) -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        told.log.say("fence", ledger=7)
    finally:
        root.setLevel(before)
    assert len(told.lines()) == 1


def test_the_same_again_is_counted_and_told_after_a_minute(told: Told) -> None:
    for port in range(5):
        told.log.say("fence", address=f"10.0.0.1:{port}", ledger=7)
        told.now += 1
    told.log.say("fence", "refused", address="10.0.0.1:9", ledger=7)
    told.log.say("fence", address="10.0.0.2:9", ledger=7)
    assert [(line["address"], line["outcome"]) for line in told.lines()] == [
        ("10.0.0.1:0", "done"),
        ("10.0.0.1:9", "refused"),
        ("10.0.0.2:9", "done"),
    ]
    told.now += AGAIN_S
    told.log.flush()
    again = {"did": "fence", "outcome": "done", "address": "10.0.0.1", "ledger": 7, "again": 4}
    assert told.lines() == [{**again, "since": 1_800_000_001.0}]
    told.log.say("fence", address="10.0.0.1:3", ledger=7)
    assert len(told.lines()) == 1, "and then anew"
    told.log.say("fence", address="10.0.0.1:3", ledger=7)
    told.log.close()
    assert [line["again"] for line in told.lines()] == [1], "an end tells what it knows"


@pytest.mark.long
def test_a_flood_of_different_events_writes_few_lines_and_counts_them_all(told: Told) -> None:
    count, seconds = 50_000, 10
    for number in range(count):
        told.log.say("fence" if number % 2 else "connect", "refused", ledger=number, address=f"10.0.0.1:{number}")
        told.now += seconds / count
    assert len(told.log._kinds) <= KINDS_MAX + 2
    told.log.close()
    lines = told.lines()
    assert len(lines) <= BURST + LINES_PER_S * seconds + 2
    assert sum(line.get("again", 1) for line in lines) == count
    assert {line["did"] for line in lines if line.get("of") == "many"} == {"fence", "connect"}


@pytest.mark.long
def test_a_flood_of_refusals_hides_nothing_that_was_done(told: Told) -> None:
    for minute in range(3):
        for number in range(int(BURST + KINDS_MAX)):
            told.log.say("grant", "refused", ledger=number, address="10.0.0.1:7")
            told.now += 0.004
        told.log.say("fence", identity="CN=nobody", ledger=minute, address="10.0.0.1:8")
    fences = [line for line in told.lines() if line["did"] == "fence"]
    assert [(line.get("identity"), line.get("ledger")) for line in fences] == [("CN=nobody", n) for n in range(3)]


def test_no_more_kinds_are_remembered_than_fit(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KINDS_MAX", 100)
    told.log = AuditLog(lambda: told.now)
    told.log.bookie_id = "b1:3181"
    for ledger in range(500):
        told.log.say("fence", ledger=ledger)
    assert len(told.log._kinds) == 101
    told.log.close()
    lines = told.lines()
    assert (len(lines), lines[-1]["of"], lines[-1]["again"]) == (101, "many", 400)


def test_many_ledgers_of_one_event_are_counted(told: Told) -> None:
    told.log.ledgers("delete", list(range(1000)), why="garbage collection")
    (line,) = told.lines()
    assert (line["ledgers"], line["count"]) == (list(range(20)), 1000)


def test_long_texts_are_cut(told: Told) -> None:
    told.log.say("connect", "refused", why="x" * 10_000)
    assert len(told.lines()[0]["why"]) == 500


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(Reason.REASON_NONE, "done"), (Reason.UNAUTHORIZED, "refused"), (Reason.TIMEOUT, "unknown")],
)
def test_a_fence_that_may_hold_is_not_called_refused(reason: Reason, outcome: str) -> None:
    assert outcome_of(reason) == outcome


# --- the file ---


def test_the_file_has_every_line_is_private_and_begins_anew_when_it_is_long(told: Told, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    told.log.file = AuditFile(path, bytes_max=1000, files_max=2)
    for ledger in range(30):
        told.log.say("fence", ledger=ledger)
    told.log.close()
    files = [path, tmp_path / "audit.log.1", tmp_path / "audit.log.2"]
    assert sorted(tmp_path.iterdir()) == files
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert all(each.stat().st_size <= 1000 for each in files)
    kept = [json.loads(line)["ledger"] for each in reversed(files) for line in each.read_text().splitlines()]
    assert kept == list(range(30 - len(kept), 30))
    again = AuditFile(path, bytes_max=1000, files_max=2)
    again.put("one more")
    again.close()
    assert path.read_text().splitlines()[-1] == "one more", "a start goes on where the last one ended"


def test_a_file_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="audit_path="):
        AuditFile(tmp_path / "missing" / "audit.log", 1000, 1)


def test_a_disk_that_stands_still_holds_nobody_up_and_what_is_lost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_QUEUE_MAX", 5)
    path, goes_on = tmp_path / "audit.log", threading.Event()
    file = AuditFile(path, 1 << 20, 1)
    real = file._file.emit
    monkeypatch.setattr(file._file, "emit", lambda record: (goes_on.wait(10), real(record)))
    for number in range(50):
        file.put(json.dumps({"number": number}))
    goes_on.set()
    file.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lost = sum(line["again"] for line in lines if line.get("did") == "audit")
    assert lost >= 40
    assert sum("number" in line for line in lines) + lost == 50


def test_a_line_that_the_disk_refuses_is_in_the_log_of_the_bookie(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = AuditFile(tmp_path / "audit.log", 1 << 20, 1)
    file._file.stream.close()
    file._file.stream = open("/dev/full", "w")  # noqa: SIM115 - the handler closes it
    file.put("a line")
    file.close()
    records = [record for record in caplog.records if record.name == "bk_core.audit_file"]
    assert "a line" in records[0].getMessage()
