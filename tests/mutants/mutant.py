# SPDX-License-Identifier: Apache-2.0
"""A known defect of the glue, as an edit of one source file, and the tests that must find it.

Machines have mutants of their own (``tests/sim/mutants``), which replace functions while the simulator runs. Glue is
adapters, drivers, threads and second tries. Its tests start threads and processes, so its mutants are edits of the
files that these load.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant. ``old``, which occurs exactly once in ``path``, is replaced by ``new``. One of ``tests`` (pytest's node
    ids, the cheapest that suffice) must then fail or hang. ``breaks`` says in plain words what a user would lose."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    breaks: str
