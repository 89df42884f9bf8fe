# SPDX-License-Identifier: Apache-2.0
"""``docs/rules.md`` explains each number that code, tests or documents cite."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"\b[DEIKLMNPS]\d{1,2}\b|\bMUST ?\d+\b")
NO_RULES = {"I64", "I32"}  # numpy's names of integers
rules = runpy.run_path(str(ROOT / "scripts" / "rules.py"))


def test_every_number_that_is_cited_is_explained() -> None:
    explained = set(rules["defined"](ROOT)) | rules["invariants"](ROOT) | NO_RULES
    names = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            "*.py",
            "*.md",
            "*.scenario",
            "*.proto",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    unexplained = {
        f"{number} in {name}"
        for name in names
        if (ROOT / name).is_file()
        for number in CITED.findall((ROOT / name).read_text(encoding="utf-8"))
        if number.replace(" ", "") not in explained
    }
    assert unexplained == set(), "explain it in docs/rules.md, or in docs/proof.md for an invariant"


def test_the_page_explains_each_number_once() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    numbers = [number for number, _ in rules["RULE"].findall(text)]
    assert len(numbers) == len(set(numbers))
    assert len(numbers) > 90
