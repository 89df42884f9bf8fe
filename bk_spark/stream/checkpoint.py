# SPDX-License-Identifier: Apache-2.0
"""Reads a query's checkpoint: which logs the query reads, by uuid, and which input a batch is made of. Only local
folders, given by option ``checkpointLocation``: Spark tells a sink nothing else about its query's sources."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bk_core.logs.machines.transactions import PLAN_BYTES

_HEADING = 2  # the version, and Spark's line about the batch, whose times differ in each plan


def source_logs(location: str) -> set[str]:
    """The uuids of the logs that the newest planned batch reads; empty if that is not known. Never raises."""
    try:
        folder = _folder(location) / "offsets"
        newest = _newest(folder)
        lines = [] if newest < 0 else _lines(folder / str(newest))
    except (OSError, ValueError):
        return set()
    return {uuid for line in lines for uuid in _logs_in(line)}


def plan_of(location: str, batch_id: int) -> bytes:
    """Which input a planned batch is made of: a digest of where it ends in each of its sources, the same in each run of
    the batch. The digests of the batches before it tell where it begins. Empty if it is not known."""
    try:
        lines = _lines(_folder(location) / "offsets" / str(batch_id))
    except (OSError, ValueError):
        return b""
    return hashlib.sha256("\n".join(lines[_HEADING:]).encode()).digest()[:PLAN_BYTES] if lines[_HEADING:] else b""


def is_batch_planned(location: str) -> bool:
    """Whether a batch is planned and not committed, as is the case while a micro-batch runs. True also if that is not
    known. A continuous trigger notes the end of an epoch only after it."""
    try:
        folder = _folder(location)
        if not (folder / "metadata").is_file():
            return True
        return _newest(folder / "offsets") > _newest(folder / "commits")
    except (OSError, ValueError):
        return True


def _folder(location: str) -> Path:
    """Raises ValueError if ``location`` is no local folder."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise ValueError(location)
    return Path(unquote(parts.path) if parts.scheme else location)


def _newest(folder: Path) -> int:
    """The highest number that is a file's name, -1 if there is none."""
    if not folder.is_dir():
        return -1
    return max((int(each.name) for each in folder.iterdir() if each.name.isdigit()), default=-1)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _logs_in(line: str) -> list[str]:
    """The uuids in a source's offset. An offset of ours has ``cluster`` and ``logs`` (RULES N7)."""
    try:
        offset = json.loads(line)
        logs = offset["logs"] if "cluster" in offset else {}
        return [str(log["uuid"]) for log in logs.values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
