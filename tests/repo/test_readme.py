# SPDX-License-Identifier: Apache-2.0
"""CI runs the commands of the README, and the README's figures and counts of lines are right."""

from __future__ import annotations

import re
from pathlib import Path

from tests.repo.test_tidy import files_of, relative

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_is_run_by_ci() -> None:
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    commands = [line[2:].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8") + (ROOT / ".ci" / "smoke.py").read_text(encoding="utf-8")
    assert commands, "the first screen shows what to type"
    assert [command for command in commands if command not in ci] == []


def test_nothing_says_that_the_package_is_on_an_index() -> None:
    """The package is on no index. A command that names it, and neither a checkout nor a wheel, would fail for a user
    who types it."""
    wrong = re.compile(r"(pip install|uv add|uv tool install|uvx)( -\S+)* ['\"]?pyspark[-_]bookkeeper")
    texts = files_of("*.md", "*.py", "*.yml", "*.toml", "Dockerfile", "deploy/*", "scripts/*", "examples/*")
    said = [
        f"{relative(path)}: {line.strip()}"
        for path in texts
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if wrong.search(line)
    ]
    assert said == [], "say pip install . (bk_core/installing.py)"


def test_every_snippet_of_the_first_screen_is_run_by_ci() -> None:
    python = README.count("```python")
    assert python == len(re.findall(r"<!-- run: (?:spark|python) -->\s*```python", README)) == 2


def test_the_snippets_are_as_short_as_promised() -> None:
    spark, python = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(spark.splitlines()) <= 5
    assert len(python.splitlines()) <= 5


def test_line_counts_are_about_right() -> None:
    counts = re.findall(r"\]\((\S+\.py)\) \((\d+) lines\)", README)
    assert len(counts) == 5
    for path, count in counts:
        real = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        assert abs(real - int(count)) <= 0.2 * real, f"{path} has {real} lines"


FIGURES = {
    "append entries of 100 B": ("append_100b", "M entries/s"),
    "read them": ("read_100b", "M entries/s"),
    "append one entry at a time, median": ("append_single_p50", "ms"),
}
"""The figure and unit of ``docs/performance.md`` that each row of the README's table shows."""


def test_the_figures_are_those_of_the_page_of_performance() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+ \S+ \| [\d.]+ \S+) \|$", README, re.MULTILINE))
    assert rows.keys() == FIGURES.keys()
    for row, (figure, unit) in FIGURES.items():
        measured = re.findall(rf"^\| {figure} \| {unit} \| (\S+) \| \S+ \| apache \| (\S+) \|", page, re.MULTILINE)[0]
        for shown, value in zip(rows[row].split(" | "), measured, strict=True):
            number, shown_unit = shown.split()
            assert shown_unit == unit.replace(" entries", "")
            digits = len(number.partition(".")[2])
            assert number == f"{float(value):.{digits}f}", f"{row}: the page has {value}"
