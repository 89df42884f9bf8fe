# SPDX-License-Identifier: Apache-2.0
"""``bk ledger``, ``bk log`` and ``bk doctor`` on both kinds of clusters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bk_cli import output
from bk_core import blocking
from bk_core.errors import LedgerFencedError
from bk_core.metadata.tree.store import TreeStore
from tests.kit.canaries import PASSWORD


@pytest.fixture
def bk(bk_served: Any) -> Any:
    return bk_served


NewLedger = Callable[..., int]


def test_lines_become_entries_and_come_back(bk: Any, new_ledger: NewLedger) -> None:
    ledger_id = new_ledger("first", "", "drittes Wört")
    assert bk.json("ledger", "read", str(ledger_id)) == [
        {"entryId": 0, "text": "first"},
        {"entryId": 1, "text": ""},
        {"entryId": 2, "text": "drittes Wört"},
    ]
    assert bk("ledger", "read", str(ledger_id), "--from", "1", "--to", "0") == 2
    assert bk("ledger", "read", str(ledger_id), "--from", "1", "--to", "1", "--raw") == 0
    assert bk.out == "\n"


def test_an_empty_input_is_an_empty_closed_ledger(bk: Any, new_ledger: NewLedger) -> None:
    ledger_id = new_ledger()
    assert bk.json("ledger", "read", str(ledger_id)) == []
    (shown,) = bk.json("ledger", "show", str(ledger_id))
    assert (shown["state"], shown["lastEntryId"]) == ("CLOSED", -1)


@pytest.mark.rule("E2")
def test_the_default_quorum_is_three_three_two(bk: Any, new_ledger: NewLedger) -> None:
    (shown,) = bk.json("ledger", "show", str(new_ledger("x")))
    assert (shown["ensembleSize"], shown["writeQuorumSize"], shown["ackQuorumSize"]) == (3, 3, 2)
    assert len(shown["fragments"][0]["ensemble"]) == 3


def test_list_shows_every_ledger_in_order(bk: Any, new_ledger: NewLedger) -> None:
    made = [new_ledger("a"), new_ledger("b", "c")]
    listed = [each["ledgerId"] for each in bk.json("ledger", "list")]
    assert listed == sorted(listed)
    assert set(made) <= set(listed)
    assert [each["ledgerId"] for each in bk.json("ledger", "list", "--ids")] == listed
    assert bk("ledger", "list") == 0
    assert bk.out.splitlines()[0].split() == ["ledger", "state", "E/Qw/Qa", "entries", "bytes", "digest", "created"]


def test_list_is_narrowed_by_state_bookie_and_number(bk: Any, served: Any, new_ledger: NewLedger) -> None:
    closed = [new_ledger("a", options=("--ensemble-size", "2", "--write-quorum-size", "2")) for _ in range(4)]
    with blocking.connect(served.uri) as bookkeeper:
        opened = bookkeeper.create_ledger(password=PASSWORD).ledger_id
    try:
        listed = {each["ledgerId"]: each for each in bk.json("ledger", "list")}
        assert {i for i, each in listed.items() if each["state"] == "OPEN"} >= {opened}
        assert opened in [each["ledgerId"] for each in bk.json("ledger", "list", "--state", "open")]
        assert not {each["ledgerId"] for each in bk.json("ledger", "list", "--state", "closed")} & {opened}
        name = listed[closed[0]]["fragments"][0]["ensemble"][0]
        of_it = [each["ledgerId"] for each in bk.json("ledger", "list", "--bookie", name, "--ids")]
        assert of_it == [i for i, each in listed.items() if name in each["fragments"][0]["ensemble"]]
        assert bk.json("ledger", "list", "--bookie", "nobody:1") == []
        assert [each["ledgerId"] for each in bk.json("ledger", "list", "--limit", "2")] == sorted(listed)[:2]
        assert [each["ledgerId"] for each in bk.json("ledger", "list", "--ids", "--limit", "2")] == sorted(listed)[:2]
    finally:
        bk.json("ledger", "recover", str(opened), "--ledger-password", PASSWORD.decode())


def test_list_reads_no_more_than_it_shows_and_shows_it_at_once(
    bk: Any, new_ledger: NewLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        new_ledger("a")
    read, shown = list[int](), list[int]()
    real_read, real_print = TreeStore.read_ledger, output.print_row

    def counted(self: TreeStore, ledger_id: int) -> Any:
        read.append(ledger_id)
        return real_read(self, ledger_id)

    def printed(columns: Any, row: Any) -> None:
        if row[0] != "ledger":
            shown.append(row[0])
        assert shown == read
        real_print(columns, row)

    monkeypatch.setattr(TreeStore, "read_ledger", counted)
    monkeypatch.setattr(output, "print_row", printed)
    assert bk("ledger", "list", "--limit", "2") == 0
    assert len(read) == len(shown) == 2


@pytest.mark.rule("E1")
def test_an_unknown_ledger_names_the_nearest(bk: Any, new_ledger: NewLedger) -> None:
    ledger_id = new_ledger("x")
    for command in (["show"], ["read"], ["recover"], ["delete", "--yes"]):
        assert bk("ledger", command[0], "987654", *command[1:]) == 3
        assert "[BK_NO_SUCH_LEDGER]" in bk.err
        assert "(not applied)" in bk.err
        assert bk.err.count("\n") == 1
    assert bk("ledger", "read", f"{ledger_id}0") == 3
    assert str(ledger_id) in bk.err


def test_a_password_is_taken_from_a_file_and_never_from_two_places(
    bk: Any, new_ledger: NewLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_bytes(PASSWORD + b"\n")
    ledger_id = str(new_ledger("x", options=("--ledger-password-file", str(file))))
    assert bk("ledger", "read", ledger_id) == 2
    assert bk("ledger", "read", ledger_id, "--ledger-password", PASSWORD.decode()) == 0
    assert bk("ledger", "read", ledger_id, "--ledger-password-file", str(file), "--ledger-password", "x") == 2
    assert "exclude each other" in bk.err
    assert bk("ledger", "read", ledger_id, "--ledger-password-file", str(tmp_path / "none")) == 2
    assert str(tmp_path / "none") in bk.err
    monkeypatch.setenv("BK_LEDGER_PASSWORD_FILE", str(file))
    assert bk("ledger", "read", ledger_id) == 0


def test_a_wrong_password_or_digest_type_is_refused(bk: Any, new_ledger: NewLedger) -> None:
    ledger_id = new_ledger("x", options=("--ledger-password", "right"))
    assert bk("ledger", "read", str(ledger_id), "--ledger-password", "wrong") == 2
    assert "[BK_WRONG_PASSWORD]" in bk.err
    assert bk("ledger", "read", str(ledger_id), "--ledger-password", "right", "--digest-type", "mac") == 2
    assert "[BK_WRONG_DIGEST_TYPE]" in bk.err
    assert bk("ledger", "read", str(ledger_id), "--ledger-password", "right") == 0


def test_impossible_quorums_are_refused_before_anything_is_made(bk: Any, new_ledger: NewLedger) -> None:
    before = bk.json("ledger", "list", "--ids")
    assert bk("ledger", "append", "/dev/null", "--ensemble-size", "2") == 2
    assert bk("ledger", "append", "/dev/null", "--ensemble-size", "9", "--write-quorum-size", "3") == 5
    assert "[BK_NOT_ENOUGH_BOOKIES]" in bk.err
    assert "4" in bk.err
    assert bk.json("ledger", "list", "--ids") == before


def test_reading_beyond_the_end_says_where_the_end_is(bk: Any, new_ledger: NewLedger) -> None:
    ledger_id = str(new_ledger("a", "b"))
    assert bk("ledger", "read", ledger_id, "--to", "2") == 2
    assert "to entry 1" in bk.err
    assert bk("ledger", "read", ledger_id, "--from", "3") == 2


def test_tail_follows_a_writer_until_it_closes_and_never_disturbs_it(served: Any, bk: Any) -> None:
    with blocking.connect(served.uri) as bookkeeper:
        ledger = bookkeeper.create_ledger()
        ledger.append(b"before")

        def write() -> None:
            for number in range(20):
                ledger.append(b"%d" % number)
            ledger.close()

        writer = threading.Timer(0.3, write)
        writer.start()
        entries = bk.json("ledger", "tail", str(ledger.ledger_id), "--from", "0")
        writer.join()
    assert [entry["text"] for entry in entries] == ["before", *map(str, range(20))]


def test_recover_takes_over_from_a_living_writer(served: Any, bk: Any) -> None:
    with blocking.connect(served.uri) as bookkeeper:
        ledger = bookkeeper.create_ledger()
        ledger.append(b"acknowledged")
        assert bk.json("ledger", "recover", str(ledger.ledger_id)) == [
            {"ledgerId": ledger.ledger_id, "state": "CLOSED", "lastEntryId": 0}
        ]
        with pytest.raises(LedgerFencedError):
            ledger.append(b"too late")


def test_delete_asks_for_yes_and_then_it_is_gone(bk: Any, new_ledger: NewLedger) -> None:
    ledger_id = str(new_ledger("a", "b"))
    assert bk("ledger", "delete", ledger_id) == 2
    assert "2 entries" in bk.err
    assert "--yes" in bk.err
    assert bk("ledger", "delete", ledger_id, "--yes") == 0
    assert bk("ledger", "show", ledger_id) == 3


def test_logs_are_listed_shown_and_read_and_their_ledgers_are_not_deleted_by_mistake(served: Any, bk: Any) -> None:
    with (
        blocking.connect(served.uri) as bookkeeper,
        bookkeeper.log("events", password=PASSWORD).lead(roll_bytes=1 << 20) as leader,
    ):
        for number in range(5):
            leader.append(b"event %d" % number)
    (listed,) = [each for each in bk.json("log", "list") if each["log"] == "events"]
    assert listed["startOffset"] == 0
    read = bk.json("log", "read", "events", "--ledger-password", PASSWORD.decode())
    assert read == [{"offset": n, "text": f"event {n}"} for n in range(5)]
    assert bk.json("log", "read", "events", "--password", PASSWORD.decode(), "--from", "3", "--limit", "1") == read[3:4]
    (shown,) = bk.json("log", "show", "events")
    assert shown["extents"][0]["baseOffset"] == 0
    assert bk("ledger", "delete", str(shown["extents"][0]["ledgerId"]), "--yes") == 2
    assert "named log" in bk.err
    assert bk("log", "read", "events", "--ledger-password", "other") == 2
    assert bk("log", "show", "event") == 3
    assert "events" in bk.err  # the nearest name


def test_tables_for_people_are_aligned(bk: Any, new_ledger: NewLedger) -> None:
    ledger_id = new_ledger("a")
    assert bk("ledger", "show", str(ledger_id)) == 0
    assert bk.out.splitlines()[0].split() == ["ledger", str(ledger_id)]
    assert bk("ledger", "read", str(ledger_id)) == 0
    assert bk.out == "0\ta\n"
