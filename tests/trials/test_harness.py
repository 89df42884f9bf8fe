# SPDX-License-Identifier: Apache-2.0
"""The harness of the long trials: its sums, its end, the files that it keeps, and how it resumes."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trials import harness
from tests.trials.__main__ import PROOFS, TRIALS, main
from tests.trials.harness import Figures, Trial


class Script(Trial):
    """Rounds that do what a test says. ``worlds`` has the rounds of each world."""

    name = "script"
    about = "Nothing."
    rounds = 3
    world_rounds = 2
    wanted = ("done",)
    worlds: list[list[int]]
    broken: dict[int, str | Exception | int]

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Script]:
        if "world" in self.broken:
            raise RuntimeError("no world")
        path.joinpath("data").touch()
        self.worlds.append([])
        yield self

    def round(self, number: int) -> Figures:
        self.worlds[-1].append(number)
        found = self.broken.get(number, "")
        if isinstance(found, Exception):
            raise found
        if isinstance(found, int):
            os.kill(os.getpid(), found)
        problems = [found] if isinstance(found, str) and found else []
        return Figures(
            1, counts=Counter(done=1), tables={"fault": Counter(cut=2)}, times_s={"call": [0.5]}, problems=problems
        )

    def finish(self) -> Figures:
        self.worlds[-1].append(-1)
        return Figures(counts=Counter(checked=1))


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Script.worlds, Script.broken = [], {}
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(path: Path, *words: str) -> int:
    return harness.run("scripts/trial", Script, ["--work", str(path / "work"), *words])


def test_worlds_run_their_rounds_and_the_last_checks_and_leave_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "--report", str(tmp_path / "page")) == 0
    assert Script.worlds == [[0, 1, -1], [2, -1]]
    assert list((tmp_path / "work").iterdir()) == []
    page = (tmp_path / "page").read_text()
    for line in (
        "| rounds | 3 |",
        "| done | 3 |",
        "| checked | 2 |",
        "| cut | 6 |",
        "| call | 3 | 0.50 | 0.50 | 0.50 |",
    ):
        assert line in page
    assert page.startswith("# Trial: script\n\n`scripts/trial script --rounds 3 --seed 1`")


def test_a_problem_ends_its_world_which_is_kept_and_the_next_round_has_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Script.broken = {0: "LOST: entry 1"}
    assert run(tmp_path, "--seed", "7") == 1
    assert Script.worlds == [[0], [1, 2, -1]]
    (kept,) = (tmp_path / "work").iterdir()
    assert (kept / "data").exists()
    said = capsys.readouterr()
    assert "- round 0: LOST: entry 1\n  again: scripts/trial script --seed 7 --only 0" in said.out
    assert str(kept) in said.err


def test_a_round_that_raises_is_a_problem_and_is_not_run_again(tmp_path: Path) -> None:
    Script.broken = {1: RuntimeError("nothing came")}
    assert run(tmp_path, "--resume", str(tmp_path / "state")) == 1
    assert Script.worlds == [[0, 1], [2, -1]]
    (problem,) = json.loads((tmp_path / "state").read_text())["problems"]
    assert problem.startswith("round 1: ENDED EARLY: RuntimeError: nothing came")


def test_a_run_goes_on_from_its_file_and_from_no_other(tmp_path: Path) -> None:
    state = ("--resume", str(tmp_path / "state"))
    assert run(tmp_path, "--rounds", "2", *state) == 0
    assert run(tmp_path, "--rounds", "4", *state) == 0
    assert Script.worlds == [[0, 1, -1], [2, 3, -1]]
    figures = Figures.load(tmp_path / "state", "scripts/trial script --seed 1")
    assert (figures.rounds, figures.counts["done"], figures.table("fault")["cut"]) == (4, 4, 8)
    assert run(tmp_path, "--seed", "2", *state) == 2
    assert run(tmp_path, "--only", "3", *state) == 2
    assert run(tmp_path, "--rounds", "4", *state) == 0, "no round is left"
    assert len(Script.worlds) == 2


def test_what_never_happened_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Figures(rounds=3).save(tmp_path / "state", "scripts/trial script --seed 1")
    assert run(tmp_path, "--resume", str(tmp_path / "state")) == 1
    assert "- NEVER: done" in capsys.readouterr().out
    assert run(tmp_path, "--rounds", "0") == 1, "no round ran"


@pytest.mark.parametrize("name", [*TRIALS, *PROOFS])
def test_every_name_of_the_commands_has_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = "trial" if name in TRIALS else "prove"
    with pytest.raises(SystemExit, match="0"):
        main([kind, *name.split(), "--help"])
    assert f"usage: scripts/{kind} {name} " in capsys.readouterr().out
