# SPDX-License-Identifier: Apache-2.0
"""``bk bookie check`` and ``bk bookie inspect``, as an operator sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bk_cli import main
from tests.kit.segment_world import Storage, entries, fence_record, key_record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    for first in (0, 10):
        storage = Storage(made, segment_bytes=64 << 10)
        storage.append(key_record(1), entries(1, range(first, first + 10), size=500), fence_record(2))
        storage.close()
    return made


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_check_ends_with_0_when_all_is_well(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bookie", "check", str(path)]) == 0
    said = capsys.readouterr().out
    assert "bookie-1:3181" in said
    assert "every frame" in said
    assert "Nothing is wrong." in said


def test_check_ends_with_1_and_names_what_is_damaged(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(path / "segments" / "0000000000000001.segment", 4096 + 2000)
    assert main.run(["bookie", "check", str(path)]) == 1
    said = capsys.readouterr().out
    assert "Damage\n  0000000000000001.segment: " in said
    assert "ledger 1: entries 0 to 9, in 0000000000000001.segment" in said
    assert "How to go on\n  The bookie can be started" in said


def test_repair_writes_a_bad_index_anew(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(path / "segments" / "0000000000000001.idx", 100)
    assert main.run(["bookie", "check", str(path)]) == 1
    assert "--repair" in capsys.readouterr().out
    assert main.run(["bookie", "check", "--repair", str(path)]) == 0
    assert "(written anew)" in capsys.readouterr().out
    assert main.run(["bookie", "check", str(path)]) == 0


def test_inspect_shows_segments_and_ledgers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bookie", "inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["1", "sealed"] for line in lines)
    assert any(line.split()[:4] == ["1", "0", "to", "19"] and "healthy" in line for line in lines)
    assert any(line.split()[:2] == ["2", "none"] and "fenced" in line for line in lines)


def test_json_has_a_line_for_each_segment_and_ledger(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bookie", "inspect", "--json", str(path)]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [line["kind"] for line in said]
    assert (kinds[0], set(kinds)) == ("directory", {"directory", "segment", "ledger"})
    assert [(line["ledgerId"], line["fenced"]) for line in said if line["kind"] == "ledger"] == [(1, False), (2, True)]


def test_directory_in_use_is_refused_with_what_to_do(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = Storage(path, segment_bytes=64 << 10)
    assert main.run(["bookie", "check", str(path)]) == 2
    assert "stop its bookie first" in capsys.readouterr().err
    storage.close()


def test_a_start_that_was_cut_off_after_it_found_damage_is_told_of(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path / "LIMBO").touch()
    assert main.run(["bookie", "check", str(path)]) == 1
    assert "every ledger at the next start: an earlier start found damage and was cut off" in capsys.readouterr().out
