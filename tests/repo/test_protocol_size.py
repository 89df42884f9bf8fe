# SPDX-License-Identifier: Apache-2.0
"""The protocol stays small enough for a reader to read it in an hour."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 2_620


def _own_files() -> list[Path]:
    """Return the files of the protocol that a reader needs. Left out are the list of events, replication, and the table
    of lone entries, which does only what writer.py does, for many ledgers together."""
    protocol = ROOT / "bk_core" / "protocol"
    left_out = {"events.py", "lone_entries.py"}
    return [path for path in protocol.rglob("*.py") if path.parent.name != "replication" and path.name not in left_out]


def test_the_protocol_is_under_its_number_of_lines() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in _own_files()}

    assert len(lines) > 5
    assert sum(lines.values()) < LINES_MAX, lines
