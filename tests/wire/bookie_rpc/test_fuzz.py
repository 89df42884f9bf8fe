# SPDX-License-Identifier: Apache-2.0
"""A few rounds of ``scripts/fuzz``, and that it would notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_core.wire.bookie_rpc import layouts
from tests.kit.amount import some
from tests.wire.bookie_rpc import fuzz_cli
from tests.wire.bookie_rpc.fuzz import run_rounds


@pytest.mark.rule("L5")
def test_mutated_frames_are_read_as_they_would_be_by_themselves() -> None:
    tally = run_rounds(range(some(40, 10)))
    assert tally.problems == []
    assert tally.faults > 50
    assert tally.frames > 2 * tally.faults, "readers went on behind the bad frames"


def test_it_notices_a_reader_that_trusts_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts._Part, "differs", lambda self, rows: None)
    assert run_rounds(range(12)).problems != []


def test_it_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_cli, "ROUNDS_A_CHUNK", 1)
    kept = tmp_path / "fuzz.json"
    assert fuzz_cli.main(["--frames", "10", "--resume", str(kept), "--jobs", "1"]) == 0
    first = kept.read_text(encoding="utf-8")
    assert fuzz_cli.main(["--frames", "10", "--resume", str(kept), "--jobs", "1"]) == 0
    assert kept.read_text(encoding="utf-8") == first
    assert "0 problems" in capsys.readouterr().out
