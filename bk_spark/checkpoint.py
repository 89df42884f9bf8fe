# SPDX-License-Identifier: Apache-2.0
"""What a query's checkpoint says of its sources: the logs that it reads, by uuid. Local folders only."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit


def source_logs(location: str) -> set[str]:
    """The uuids of the logs that the newest planned batch reads; none where that cannot be told. Never raises."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return set()
    try:
        offsets = Path(unquote(parts.path) if parts.scheme else location) / "offsets"
        newest = max((int(each.name) for each in offsets.iterdir() if each.name.isdigit()), default=None)
        lines = [] if newest is None else (offsets / str(newest)).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return set()
    return {uuid for line in lines for uuid in _logs_in(line)}


def _logs_in(line: str) -> list[str]:
    """The uuids in a source's offset: ours has ``cluster`` and ``logs`` (RULES N7)."""
    try:
        offset = json.loads(line)
        logs = offset["logs"] if "cluster" in offset else {}
        return [str(log["uuid"]) for log in logs.values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
