# SPDX-License-Identifier: Apache-2.0
"""Collects the ``.scenario`` files of this folder; ``pytest --rewrite`` (tests/conftest.py) rewrites their traces."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.story import NOTHING, parse, rewrite, written
from tests.scenarios.world import StoryError


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".scenario":
        made: pytest.Collector = ScenarioFile.from_parent(parent, path=file_path)
        return made
    return None


class ScenarioFile(pytest.File):
    """One file, one test."""

    def collect(self) -> Iterator[pytest.Item]:
        item: ScenarioItem = ScenarioItem.from_parent(self, name=self.path.stem)
        try:
            rules = parse(self.path.read_text(encoding="utf-8")).rules
        except StoryError:
            rules = []  # running it will say what is wrong
        item.add_marker(pytest.mark.rule(*rules))
        yield item


class ScenarioItem(pytest.Item):
    """Plays the story and compares the traces."""

    def runtest(self) -> None:
        if self.config.getoption("--rewrite"):
            rewrite(self.path)
            return
        text = self.path.read_text(encoding="utf-8")
        made = written(parse(text))
        if made != text:
            raise TraceDiffersError(text, made)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, TraceDiffersError):
            return str(excinfo.value)
        cause = excinfo.value
        while isinstance(cause, StoryError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, StoryError):
            return f"{self.path.name}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"scenario {self.name}"


class TraceDiffersError(Exception):
    """The machines left another trace than the story tells."""

    def __init__(self, told: str, made: str) -> None:
        lines = difflib.unified_diff(told.splitlines(), made.splitlines(), "the story", "the machines", lineterm="")
        super().__init__(
            "\n".join(lines)
            + f"\n('{NOTHING}' is an empty trace; if this is right, run pytest --rewrite and read the diff)"
        )
