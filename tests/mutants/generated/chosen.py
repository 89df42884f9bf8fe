# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: runs only the tests that a file lists, in the order of the file, and records which one failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CHOSEN = "PYSPARK_BOOKKEEPER_CHOSEN"
"""The environment variable with the path of the list. Beside the list are files ``.begun`` and ``.failed``, each with a
test's id."""


class Chooser:
    """Keeps the listed tests. If the list is empty, it keeps all tests that pytest found."""

    def __init__(self, listed: Path) -> None:
        self._path = listed
        self._turns = {name: turn for turn, name in enumerate(listed.read_text(encoding="utf-8").splitlines())}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._turns:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._turns])
            items[:] = [item for item in items if item.nodeid in self._turns]
            items.sort(key=lambda item: self._turns[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.with_suffix(".begun").write_text(nodeid, encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._path.with_suffix(".failed").write_text(report.nodeid, encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if listed := os.environ.get(CHOSEN):
        config.pluginmanager.register(Chooser(Path(listed)), "chooser of tests")
