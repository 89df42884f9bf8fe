# SPDX-License-Identifier: Apache-2.0
"""The protocol stays small enough for a reader to read it in an hour."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 2_900


def test_the_protocol_is_under_2900_lines() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "bk_core" / "protocol").glob("*.py")}

    assert len(lines) > 5
    assert sum(lines.values()) < LINES_MAX, lines
