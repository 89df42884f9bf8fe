# SPDX-License-Identifier: Apache-2.0
"""Records which tests execute which line: a plugin of pytest, and the map made from its records.

A generated mutant is run against the tests that execute its line, so that most mutants cost seconds. The map is a data
file of coverage.py with one context for each test. It is kept in ``.cache/mutants``; a run adds the tests of files that
are not in it yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

PACKAGES = ("bk_core", "bookie_server", "bk_spark", "bk_cli")
ROOT = Path(__file__).resolve().parent.parent.parent.parent
FOLDER = "PYSPARK_BOOKKEEPER_REACHED"
"""The environment variable with the folder in which the plugin writes its records."""


class Recorder:
    """Records the lines that each test executes in this process, the seconds it takes, and whether it passed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outcomes: dict[str, tuple[float, bool]] = {}
        self._coverage = coverage.Coverage(
            data_file=str(folder / "lines"),
            data_suffix=True,
            config_file=False,
            include=[f"{ROOT / package}/*" for package in PACKAGES],
        )
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        started = time.monotonic()
        self._outcomes[item.nodeid] = (0.0, True)
        done = yield
        self._outcomes[item.nodeid] = (time.monotonic() - started, self._outcomes[item.nodeid][1])
        self._coverage.switch_context("")
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid in self._outcomes:
            self._outcomes[report.nodeid] = (0.0, False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        (self._folder / f"outcomes.{os.getpid()}.json").write_text(json.dumps(self._outcomes), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if folder := os.environ.get(FOLDER):
        config.pluginmanager.register(Recorder(Path(folder)), "recorder of reached lines")


class Map:
    """The tests that execute a line, how long each takes, and those that fail or hang without any mutant."""

    def __init__(self, folder: Path = ROOT / ".cache" / "mutants") -> None:
        self._folder = folder
        self._lines, self._kept = folder / "lines", folder / "kept.json"
        kept = json.loads(self._kept.read_text(encoding="utf-8")) if self._kept.exists() else {}
        self._hashes: dict[str, str] = kept.get("hashes", {})
        self._outcomes: dict[str, tuple[float, bool]] = kept.get("outcomes", {})

    def refresh(self) -> None:
        """Run the tests of each file that is new or has changed since its tests were recorded."""
        now = {str(path.relative_to(ROOT)): _hash(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))}
        stale = [name for name, of_file in now.items() if self._hashes.get(name) != of_file]
        if stale:
            self._record(["tests"] if len(stale) == len(now) else stale)
            if lost := self._lost():
                self._record(lost)  # a worker died, for instance because a test took too long
            if not self._hashes:
                now |= {
                    str(p.relative_to(ROOT)): _hash(p) for package in PACKAGES for p in (ROOT / package).rglob("*.py")
                }
            self._hashes |= now
            kept = {"hashes": self._hashes, "outcomes": self._outcomes}
            self._kept.write_text(json.dumps(kept), encoding="utf-8")

    def _lost(self) -> list[str]:
        """Return the files of tests whose lines are recorded, but not their outcomes."""
        data = coverage.CoverageData(basename=str(self._lines))
        data.read()
        return sorted(
            {test.partition("::")[0] for test in data.measured_contexts() if test not in self._outcomes} - {""}
        )

    def _record(self, files: list[str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="reached-", dir=self._folder) as new:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "tests.mutants.generated.reached",
                "-p",
                "no:cacheprovider",
            ]
            command += ["-n", "4", "--dist", "worksteal", "--few", "-m", "not real and not long", *files]
            subprocess.run(command, cwd=ROOT, env={**os.environ, FOLDER: new}, check=False, stdout=subprocess.DEVNULL)
            self.add(Path(new))

    def add(self, records: Path) -> None:
        """Add the records that :class:`Recorder` wrote in this folder."""
        for outcomes in records.glob("outcomes.*.json"):
            self._outcomes |= json.loads(outcomes.read_text(encoding="utf-8"))
        parts = [str(part) for part in records.glob("lines.*")]
        if parts:
            new = self._lines.with_suffix(".new")  # combining a file into itself would empty it first
            data = coverage.Coverage(data_file=str(new), config_file=False)
            data.combine([*parts, *([str(self._lines)] if self._lines.exists() else [])], keep=True)
            data.save()
            new.replace(self._lines)

    def tests_of(self, path: str, line: int | None) -> dict[str, float]:
        """Return the tests that execute this line of the file, or any line of it for None, with their seconds. If the
        file has changed since, its lines are unknown, and the tests that execute any line of it are returned."""
        if _hash(ROOT / path) != self._hashes.get(path):
            line = None
        data = coverage.CoverageData(basename=str(self._lines))
        data.read()
        by_line = data.contexts_by_lineno(str(ROOT / path))
        found = by_line.get(line, []) if line else {test for tests in by_line.values() for test in tests}
        passed = {test: self._outcomes.get(test, (0.0, False)) for test in found}
        return {test: seconds for test, (seconds, is_sound) in passed.items() if is_sound}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
