# SPDX-License-Identifier: Apache-2.0
"""The protocol stays small enough for a reader to read it in an hour."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 2_550


def _own_files() -> list[Path]:
    """Return the files of the protocol without the list of events, and without replication, which a reader of the
    protocol may leave out."""
    protocol = ROOT / "bk_core" / "protocol"
    return [path for path in protocol.rglob("*.py") if path.parent.name != "replication" and path.name != "events.py"]


def test_the_protocol_is_under_its_number_of_lines() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in _own_files()}

    assert len(lines) > 5
    assert sum(lines.values()) < LINES_MAX, lines
