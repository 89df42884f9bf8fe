# SPDX-License-Identifier: Apache-2.0
"""Parses what to read or write: exactly one of ``ledgerId(s)``, ``log(s)``, ``logPattern`` and a path.

A *source* is one ledger or one log, and has a key in offsets. A *selection* is what the options name: some sources, a
pattern that only the driver can resolve, or, for a write, the column that names the log of each row. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_spark.errors import bad_value, see, shown

LOG_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
LEDGER_PREFIX = "ledger:"
LEDGER_ID_MAX = 2**63 - 1
LEDGERS_MAX = 100_000
"""The maximum number of ledgers in one selection."""
LOG_COLUMN = "log"
"""The column that names the log of a row if neither option nor path does (RULES K10)."""


@dataclass(frozen=True, slots=True, order=True)
class LedgerSource:
    ledger_id: int

    def __str__(self) -> str:
        return f"ledger {self.ledger_id}"

    @property
    def key(self) -> str:
        """The source's key in offsets."""
        return str(self.ledger_id)


@dataclass(frozen=True, slots=True, order=True)
class LogSource:
    name: str

    def __str__(self) -> str:
        return f"log {self.name}"

    @property
    def key(self) -> str:
        """The source's key in offsets."""
        return self.name


Source: TypeAlias = LedgerSource | LogSource


@dataclass(frozen=True, slots=True)
class LedgerSelection:
    """Bare ledgers, sorted by id, each once."""

    ledger_ids: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'ledger' if len(self.ledger_ids) == 1 else 'ledgers'} {shown(map(str, self.ledger_ids))}"

    @property
    def sources(self) -> tuple[LedgerSource, ...]:
        """The ledgers, in reading order."""
        return tuple(map(LedgerSource, self.ledger_ids))


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Named logs, sorted by name, each once."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'log' if len(self.names) == 1 else 'logs'} {shown(self.names)}"

    @property
    def sources(self) -> tuple[LogSource, ...]:
        """The logs, in reading order."""
        return tuple(map(LogSource, self.names))


@dataclass(frozen=True, slots=True)
class PatternSelection:
    """Every named log whose whole name matches ``pattern``. The driver looks up which these are."""

    pattern: str

    def __str__(self) -> str:
        return f"logs matching {self.pattern}"

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The log that column ``log`` of each row names. Writes only (RULES K10)."""

    def __str__(self) -> str:
        return f"the log in column {LOG_COLUMN}"


Selection: TypeAlias = LedgerSelection | LogSelection | PatternSelection | ColumnSelection
SELECTORS = ("ledgerId", "ledgerIds", "log", "logs", "logPattern", "path", "paths")
"""The options that select, of which exactly one must be given. Spark makes the last two from ``load(…)``."""


def select(given: Mapping[str, str], *, by_column: bool = False) -> Selection:
    """Return the selection that the options name. ``given`` has them by the names in SELECTORS. With ``by_column``, no
    option means the column ``log``. Raises InvalidArgumentError for no option, several options or a malformed one."""
    found = [(name, given[name]) for name in SELECTORS if name in given]
    if not found and by_column:
        return ColumnSelection()
    if not found:
        raise InvalidArgumentError(
            "nothing is selected",
            remedy='give ledgerId, ledgerIds, log, logs or logPattern, or a path: .load("events") or .save("events") '
            f'for a log, .load("ledger:17") for a ledger; {see("selecting")}',
        )
    if len(found) > 1:
        both = ", ".join(f"{name}={value}" for name, value in found)
        raise InvalidArgumentError("more than one thing is selected", value=both, remedy="keep exactly one of them")
    name, value = found[0]
    return _PARSERS[name](value)


def parse_ledger_id(option: str, text: str) -> int:
    """Parse a ledger id, 0 to 2^63 − 1."""
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) > LEDGER_ID_MAX:
        raise bad_value(option, text, "a ledger id, for instance 17")
    return int(text)


def parse_ledger_ids(option: str, text: str) -> tuple[int, ...]:
    """Parse ids and ranges such as ``3,5,9-12``, both ends included, into sorted ids without duplicates. Raises
    InvalidArgumentError for anything else, for a range that runs backwards and for more than LEDGERS_MAX ledgers."""
    ids: set[int] = set()
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        begin = _id_in_list(option, text, first)
        end = _id_in_list(option, text, last) if dash else begin
        if end < begin:
            raise bad_value(option, text, f"ranges that run upwards, such as 9-12, not {part.strip()}")
        if end - begin >= LEDGERS_MAX:
            raise _too_many(option, text)
        ids.update(range(begin, end + 1))
        if len(ids) > LEDGERS_MAX:
            raise _too_many(option, text)
    return tuple(sorted(ids))


def parse_log_name(text: str) -> str:
    """Return ``text`` if it is a log's name (RULES N8). Raises InvalidArgumentError."""
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


def parse_pattern(text: str) -> PatternSelection:
    """Parse ``logPattern``, a regular expression of Python's ``re`` for the whole name. Raises InvalidArgumentError."""
    try:
        re.compile(text)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise bad_value("logPattern", text, f"a regular expression such as ev.*: {error.msg}{where}") from None
    if not text:
        raise bad_value("logPattern", text, "a regular expression such as ev.*")
    return PatternSelection(text)


def _id_in_list(option: str, text: str, part: str) -> int:
    if not part.isascii() or not part.isdigit() or int(part) > LEDGER_ID_MAX:
        raise bad_value(option, text, f"ledger ids and ranges, for instance 3,5,9-12; {part!r} is none")
    return int(part)


def _too_many(option: str, text: str) -> InvalidArgumentError:
    value = f"{option}={text if len(text) <= 100 else text[:100] + '…'}"
    return InvalidArgumentError(
        f"more than {LEDGERS_MAX} ledgers are selected", value=value, remedy="read them in several parts"
    )


def _logs(names: Iterable[str]) -> LogSelection:
    return LogSelection(tuple(sorted({parse_log_name(name) for name in names})))


def _from_path(path: str) -> LedgerSelection | LogSelection:
    if not path.startswith(LEDGER_PREFIX):
        return _logs([path])
    ids = path.removeprefix(LEDGER_PREFIX)
    if not ids.strip()[:1].isdigit():
        raise bad_value("path", path, f"a ledger id after {LEDGER_PREFIX}, for instance {LEDGER_PREFIX}17")
    return LedgerSelection(parse_ledger_ids("path", ids))


def _from_paths(text: str) -> Selection:
    """Parse the JSON array that Spark makes from ``load(["a", "b"])``."""
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(p, str) for p in paths) or not paths:
        raise bad_value("paths", text, "paths")
    ledgers, logs = set[int](), set[str]()
    for each in map(_from_path, paths):
        match each:
            case LedgerSelection(ids):
                ledgers.update(ids)
            case LogSelection(names):
                logs.update(names)
    if ledgers and logs:
        raise InvalidArgumentError(
            "ledgers and logs cannot be read together", value=f"paths={text}", remedy="load them apart and union them"
        )
    if len(ledgers) > LEDGERS_MAX:
        raise _too_many("paths", text)
    return LedgerSelection(tuple(sorted(ledgers))) if ledgers else _logs(logs)


_PARSERS: Mapping[str, Callable[[str], Selection]] = {
    "ledgerId": lambda text: LedgerSelection((parse_ledger_id("ledgerId", text),)),
    "ledgerIds": lambda text: LedgerSelection(parse_ledger_ids("ledgerIds", text)),
    "log": lambda text: _logs([text]),
    "logs": lambda text: _logs(name.strip() for name in text.split(",")),
    "logPattern": parse_pattern,
    "path": _from_path,
    "paths": _from_paths,
}
