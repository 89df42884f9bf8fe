# SPDX-License-Identifier: Apache-2.0
"""``docs/rules.md`` explains each number that code, tests or documents cite."""

from __future__ import annotations

import re
import runpy

from tests.repo.test_tidy import ROOT, files_of, relative

CITED = re.compile(r"\b[DEIKLMNPS]\d{1,2}\b|\bMUST ?\d+\b")
NO_RULES = {"I64", "I32"}  # numpy's names of integers
rules = runpy.run_path(str(ROOT / "scripts" / "rules.py"))


def test_every_number_that_is_cited_is_explained() -> None:
    explained = set(rules["defined"](ROOT)) | rules["invariants"](ROOT) | NO_RULES
    unexplained = {
        f"{number} in {relative(path)}"
        for path in files_of("*.py", "*.md", "*.scenario", "*.proto")
        for number in CITED.findall(path.read_text(encoding="utf-8"))
        if number.replace(" ", "") not in explained
    }
    assert unexplained == set(), "explain it in docs/rules.md, or in docs/proof.md for an invariant"


def test_the_page_explains_each_number_once() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    numbers = [number for number, _ in rules["RULE"].findall(text)]
    assert len(numbers) == len(set(numbers))
    assert len(numbers) > 90
