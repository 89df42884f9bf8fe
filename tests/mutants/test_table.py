# SPDX-License-Identifier: Apache-2.0
"""Every mutant of the table can be tried: its edit still fits its file, and its tests still exist."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parent.parent.parent


def test_each_edit_fits_its_file_in_one_place() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.path).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.name} in {mutant.path}"
        assert mutant.new != mutant.old


def test_names_are_unique_and_each_names_tests_that_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            assert name.split("::")[-1].split("[")[0] in text, f"{mutant.name}: {test}"
