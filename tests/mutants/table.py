# SPDX-License-Identifier: Apache-2.0
"""Collects all mutants of the glue: ``MUTANTS`` of each file of this folder, so that a new file needs no line here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.mutants.mutant import Mutant

ROOMS = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path.stem not in ("mutant", "table", "__main__") and not path.stem.startswith("test_")
)

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant for room in ROOMS for mutant in import_module(f"tests.mutants.{room}").MUTANTS
)
