# SPDX-License-Identifier: Apache-2.0
"""Parses what to read or write: exactly one of ``ledgerId(s)``, ``log(s)``, ``logPattern``, ``topic(s)``,
``topicsPattern`` and a path.

A *source* is one ledger or one log, and has a key in offsets. A *selection* is what the options name: some sources, a
pattern that only the driver can resolve, or, for a write, the column that names the log of each row. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_spark.errors import bad_value, see, shown

if TYPE_CHECKING:
    from bk_core.pulsar.model.topic_name import TopicName

TOPIC_PREFIX = "persistent://"
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
class TopicSelection:
    """Topics of Pulsar. ``names`` has full names, sorted, each once. If there is a ``pattern``, the selection has
    instead the topics of ``namespace`` whose whole local name matches it, and the driver looks these up."""

    names: tuple[str, ...] = ()
    namespace: str = ""
    pattern: str | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics matching {TOPIC_PREFIX}{self.namespace}/{self.pattern}"
        return f"{'topic' if len(self.names) == 1 else 'topics'} {shown(self.names)}"

    def takes(self, topic: TopicName) -> bool:
        """Return whether this selects ``topic``: by its name, by the name of the topic of which it is a partition, or
        by the pattern."""
        if self.pattern is None:
            return str(topic) in self.names or str(topic.whole) in self.names
        return f"{topic.tenant}/{topic.namespace}" == self.namespace and self.matches(topic.whole.local)

    def matches(self, local: str) -> bool:
        """Return whether the pattern matches the local name of a topic."""
        return self.pattern is not None and re.fullmatch(self.pattern, local) is not None


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The log that column ``log`` of each row names. Writes only (RULES K10)."""

    def __str__(self) -> str:
        return f"the log in column {LOG_COLUMN}"


Selection: TypeAlias = LedgerSelection | LogSelection | PatternSelection | TopicSelection | ColumnSelection
SELECTORS = (
    *("ledgerId", "ledgerIds", "log", "logs", "logPattern"),
    *("topic", "topics", "topicsPattern", "path", "paths"),
)
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


def parse_topics(names: Iterable[str]) -> TopicSelection:
    """Return the topics of these names, in full or short. Raises InvalidArgumentError for a name that no topic can
    have, UnsupportedTopicError for a topic that has no ledgers."""
    from bk_core.pulsar.model.topic_name import TopicName

    return TopicSelection(tuple(sorted({str(TopicName.parse(name.strip())) for name in names})))


def parse_topics_pattern(text: str) -> TopicSelection:
    """Parse ``topicsPattern``. It is a namespace, followed by a regular expression for the local name
    (``persistent://public/default/ord.*``). ``*`` alone stands for all topics. Raises InvalidArgumentError."""
    from bk_core.pulsar.model.topic_name import DEFAULT, PUBLIC, TopicName

    expected = f"a regular expression behind a namespace, such as {TOPIC_PREFIX}{PUBLIC}/{DEFAULT}/ord.*"
    rest = text.strip().removeprefix(TOPIC_PREFIX)
    if "://" in rest:
        raise bad_value("topicsPattern", text, f"{expected}: only persistent topics have ledgers")
    parts = rest.split("/", 2) if "/" in rest else [PUBLIC, DEFAULT, rest]
    if len(parts) != 3 or not all(parts):
        raise bad_value("topicsPattern", text, expected)
    tenant, namespace, pattern = parts[0], parts[1], ".*" if parts[2] == "*" else parts[2]
    try:
        re.compile(pattern)
        TopicName.of_parts(tenant, namespace, "x")
    except re.error as error:
        raise bad_value("topicsPattern", text, f"{expected}: {error.msg}") from None
    except InvalidArgumentError:
        raise bad_value("topicsPattern", text, f"{expected}; tenant and namespace are names, not patterns") from None
    return TopicSelection(namespace=f"{tenant}/{namespace}", pattern=pattern)


def kind_of(log: str) -> str:
    """Return whether a range of ledgers is part of a log or of a topic of Pulsar, by its name."""
    return "topic" if log.startswith(TOPIC_PREFIX) else "log"


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


def _from_path(path: str) -> LedgerSelection | LogSelection | TopicSelection:
    if "://" in path:
        return parse_topics([path])
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
    ledgers, logs, topics = set[int](), set[str](), set[str]()
    for each in map(_from_path, paths):
        match each:
            case LedgerSelection(ids):
                ledgers.update(ids)
            case LogSelection(names):
                logs.update(names)
            case TopicSelection(names):
                topics.update(names)
    if bool(ledgers) + bool(logs) + bool(topics) > 1:
        raise InvalidArgumentError(
            "ledgers, logs and topics cannot be read together",
            value=f"paths={text}",
            remedy="load them apart and union them",
        )
    if len(ledgers) > LEDGERS_MAX:
        raise _too_many("paths", text)
    if topics:
        return parse_topics(topics)
    return LedgerSelection(tuple(sorted(ledgers))) if ledgers else _logs(logs)


_PARSERS: Mapping[str, Callable[[str], Selection]] = {
    "ledgerId": lambda text: LedgerSelection((parse_ledger_id("ledgerId", text),)),
    "ledgerIds": lambda text: LedgerSelection(parse_ledger_ids("ledgerIds", text)),
    "log": lambda text: _logs([text]),
    "logs": lambda text: _logs(name.strip() for name in text.split(",")),
    "logPattern": parse_pattern,
    "topic": lambda text: parse_topics([text]),
    "topics": lambda text: parse_topics(text.split(",")),
    "topicsPattern": parse_topics_pattern,
    "path": _from_path,
    "paths": _from_paths,
}
