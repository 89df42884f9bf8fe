# SPDX-License-Identifier: Apache-2.0
"""What to read or write: exactly one of ``ledgerId``, ``log`` and a path (facts: spark.md §6.2). Pure.

Later selections (several ledgers, several logs, a pattern) become further classes here; planning matches on them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_spark.errors import bad_value, not_built

LOG_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
LEDGER_PREFIX = "ledger:"
LEDGER_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LedgerSelection:
    """One bare ledger."""

    ledger_id: int

    def __str__(self) -> str:
        return f"ledger {self.ledger_id}"

    @property
    def key(self) -> str:
        """The key that names it in offsets."""
        return str(self.ledger_id)


@dataclass(frozen=True, slots=True)
class LogSelection:
    """One named log."""

    name: str

    def __str__(self) -> str:
        return f"log {self.name}"

    @property
    def key(self) -> str:
        """The key that names it in offsets."""
        return self.name


Selection: TypeAlias = LedgerSelection | LogSelection


def select(ledger_id: str | None, log: str | None, path: str | None, paths: str | None) -> Selection:
    """The one selection that the options make.

    Raises InvalidArgumentError for none, more than one, or a malformed one.
    """
    given = [
        (n, v) for n, v in (("ledgerId", ledger_id), ("log", log), ("path", path), ("paths", paths)) if v is not None
    ]
    if not given:
        raise InvalidArgumentError(
            "nothing is selected",
            remedy='give ledgerId or log, or a path: .load("events") or .save("events") for a log, '
            '.load("ledger:17") for a ledger',
        )
    if len(given) > 1:
        shown = ", ".join(f"{name}={value}" for name, value in given)
        raise InvalidArgumentError("more than one thing is selected", value=shown, remedy="keep exactly one of them")
    name, value = given[0]
    if name == "ledgerId":
        return LedgerSelection(parse_ledger_id(name, value))
    if name == "log":
        return LogSelection(parse_log_name(value))
    return _from_path(value) if name == "path" else _from_paths(value)


def parse_ledger_id(option: str, text: str) -> int:
    """A ledger id, 0 to 2^63 − 1."""
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) > LEDGER_ID_MAX:
        raise bad_value(option, text, "a ledger id, for instance 17")
    return int(text)


def parse_log_name(text: str) -> str:
    """A log's name (RULES N8)."""
    if text.isdigit():
        raise InvalidArgumentError(
            "a log's name cannot be of digits only",
            value=f"{text!r}",
            remedy=f'to read a ledger write .load("{LEDGER_PREFIX}{text}"); name a log otherwise, such as log-{text}',
        )
    if not LOG_NAME.fullmatch(text):
        raise InvalidArgumentError(
            "not a log's name", value=f"{text!r}", remedy="use 1 to 200 of A-Z a-z 0-9 . _ - and no dot in front"
        )
    return text


def _from_path(path: str) -> Selection:
    if path.startswith(LEDGER_PREFIX):
        ledger_id = path.removeprefix(LEDGER_PREFIX)
        if not ledger_id.strip().isdigit():
            raise bad_value("path", path, f"a ledger id after {LEDGER_PREFIX}, for instance {LEDGER_PREFIX}17")
        return LedgerSelection(parse_ledger_id("path", ledger_id))
    return LogSelection(parse_log_name(path))


def _from_paths(text: str) -> Selection:
    """Spark hands ``load(["a", "b"])`` over as a JSON array."""
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(p, str) for p in paths) or not paths:
        raise bad_value("paths", text, "a path")
    if len(paths) > 1:
        raise not_built(
            "reading several logs or ledgers at once", f"paths={text}", "load them one by one and union them"
        )
    return _from_path(paths[0])
