# SPDX-License-Identifier: Apache-2.0
"""Has the table of roles. It says which identity has which role in which scope. Pure (docs/security.md §6, decision
0064).

A line of the table names an identity, in which ``*`` stands for any text, a role, and the scope in which the role
counts. The scope is the cluster, logs, ledgers with certain custom metadata, or ledgers of which the identity is the
owner. An identity has the rights of all lines that match it, and no further rights.
"""

from __future__ import annotations

import enum
import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.model import LedgerId

OPEN, SECURE, MIXED = "open", "secure", "mixed"
SECURITIES = (OPEN, SECURE, MIXED)
"""The values of the setting ``security``. MIXED is only for clients. It is SECURE, except that the client also uses
Apache's bookies, which have no roles."""

ROLES_VERSION = 1
TEXT_MAX = 1_024
"""The maximum number of characters of a name or value in the table."""
LINES_MAX = 2_000
"""The maximum number of lines in the table. It keeps the table far below the size limit of a node of the metadata
store."""

LOG_KEY, OWNER_KEY = "bk.log", "bk.owner"
"""The keys of a ledger's custom metadata for the name of its log and for its owner."""


class Right(enum.IntFlag):
    """The rights that an operation can need. Grants contain the values, so the values must never change."""

    NONE = 0
    LOOK = 1  # read a bookie's state, settings and metrics
    READ = 2
    WRITE = 4
    RECOVER = 8  # fence, read past the fence, write back
    HINT = 16  # tell bookies of deleted ledgers
    OPERATE = 32  # change how a bookie runs


class Role(enum.Enum):
    READER = "reader"
    WRITER = "writer"
    OPERATOR = "operator"
    BOOKIE = "bookie"
    ADMIN = "admin"


EVERY = Right.LOOK | Right.READ | Right.WRITE | Right.RECOVER | Right.HINT | Right.OPERATE
_USE = Right.LOOK | Right.READ | Right.WRITE | Right.RECOVER | Right.HINT

RIGHTS: Mapping[Role, Right] = MappingProxyType(
    {
        Role.READER: Right.LOOK | Right.READ,
        Role.WRITER: _USE,  # a client that takes over a log recovers its last ledger, and reads for that
        Role.OPERATOR: Right.LOOK | Right.HINT | Right.OPERATE,
        Role.BOOKIE: _USE,  # bookies copy ledgers of failed bookies, and keep logs
        Role.ADMIN: EVERY,
    }
)


class Where(enum.Enum):
    """The kinds of scope. The values are the words in the record of the table."""

    CLUSTER = "cluster"
    LOG = "log"  # by name
    LEDGERS = "ledgers"  # KEY=VALUE of their custom metadata
    OWNER = "owner"  # bk.owner of their custom metadata is the identity itself


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope in which a role counts. ``pattern`` matches a log's name, or the value of the custom metadata ``key``.
    The constructor raises InvalidArgumentError if ``where`` does not go with the other two fields."""

    where: Where = Where.CLUSTER
    pattern: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        patterned = self.where in (Where.LOG, Where.LEDGERS)
        if bool(self.pattern) is not patterned or bool(self.key) is not (self.where is Where.LEDGERS):
            raise InvalidArgumentError("a role cannot have this scope", value=f"on {self.text!r}", remedy=_WHERE)

    @property
    def text(self) -> str:
        named = f"{self.key}={self.pattern}" if self.where is Where.LEDGERS else self.pattern
        return f"{self.where.value}:{named}" if named else self.where.value


_WHERE = "cluster, log:NAME, ledgers:KEY=VALUE or owner"


def scope_of(text: str) -> Scope:
    """Parse a scope as ``Scope.text`` writes it. Raises InvalidArgumentError."""
    word, _, named = text.partition(":")
    key, pattern = "", named
    if word == Where.LEDGERS.value:
        key, _, pattern = named.partition("=")
    try:
        where = Where(word)
    except ValueError:
        raise InvalidArgumentError("a role cannot have this scope", value=f"on {text!r}", remedy=_WHERE) from None
    return Scope(where, pattern, key)


CLUSTER_ONLY = (Role.OPERATOR, Role.BOOKIE, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. ``unknown`` are fields of a later version, which are kept when the table is written again.
    The constructor raises InvalidArgumentError for a line that is not allowed."""

    identity: str
    role: Role
    scope: Scope = Scope()
    unknown: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for what, text in (("an identity", self.identity), ("where a role counts", self.scope.text)):
            if not 0 < len(text) <= TEXT_MAX or not text.isprintable():
                raise InvalidArgumentError(f"{what} has 1 to {TEXT_MAX} printable characters", value=repr(text[:80]))
        if self.role in CLUSTER_ONLY and self.scope.where is not Where.CLUSTER:
            raise InvalidArgumentError(
                f"the role {self.role.value} counts on the cluster only",
                value=f"on {self.scope.text!r}",
                remedy="reader and writer can be given on logs and ledgers",
            )


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The facts about a ledger that decide which roles apply to it."""

    ledger_id: LedgerId
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        value = self.custom_metadata.get(key)
        try:
            return None if value is None else value.decode("utf-8")
        except UnicodeDecodeError:
            return None


class Anywhere(enum.Enum):
    """The targets of a right that are not a single ledger. CLUSTER is the whole cluster. ANYWHERE is any object, so
    that a role in any scope is enough."""

    CLUSTER = "the cluster"
    ANYWHERE = "anything"


Target: TypeAlias = LedgerFacts | Anywhere


@dataclass(frozen=True, slots=True)
class RolesTable:
    lines: tuple[Line, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def rights(self, identity: str, target: Target) -> Right:
        """Return all rights of this identity on the target. An empty identity has no rights."""
        found = Right.NONE
        if identity:
            for line in self.lines:
                if _counts(line.scope, identity, target) and matches(line.identity, identity):
                    found |= RIGHTS[line.role]
        return found

    def granted(self, line: Line) -> RolesTable:
        """Return the table with this line added. Raises InvalidArgumentError if the table has LINES_MAX lines."""
        if line in self.lines:
            return self
        if len(self.lines) >= LINES_MAX:
            raise InvalidArgumentError(
                f"the table of roles has {LINES_MAX} lines at most", remedy="give roles by patterns: 'CN=ingest-*'"
            )
        return RolesTable((*self.lines, line), self.unknown)

    def revoked(self, line: Line) -> RolesTable:
        return RolesTable(tuple(each for each in self.lines if each != line), self.unknown)


def _counts(scope: Scope, identity: str, target: Target) -> bool:
    """Return whether a role with this scope gives this identity rights on the target."""
    if scope.where is Where.CLUSTER or target is Anywhere.ANYWHERE:
        return True
    if target is Anywhere.CLUSTER:
        return False
    assert isinstance(target, LedgerFacts)
    if scope.where is Where.OWNER:
        return target.text(OWNER_KEY) == identity
    value = target.text(LOG_KEY if scope.where is Where.LOG else scope.key)
    return value is not None and matches(scope.pattern, value)


def matches(pattern: str, text: str) -> bool:
    """Return whether ``text`` matches the pattern, in which ``*`` stands for any text and nothing else is special."""
    if "*" not in pattern:
        return pattern == text
    return fnmatch.fnmatchcase(text, "".join(f"[{each}]" if each in "[?" else each for each in pattern))


# --- the record ---


def encode_roles(table: RolesTable) -> bytes:
    """Encode the table as the data of ``<root>-security/roles``."""
    lines = [
        {**line.unknown, "identity": line.identity, "on": line.scope.text, "role": line.role.value}
        for line in table.lines
    ]
    fields = {**table.unknown, "roles": lines, "v": ROLES_VERSION}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def decode_roles(data: bytes) -> RolesTable:
    """Decode the table. Raises MetadataCorruptError for any part that this version cannot read, and the caller then
    denies all access. If a part were skipped, identities might get wider rights than the operator gave."""
    try:
        fields = json.loads(data.decode("utf-8"))
        if not isinstance(fields, dict) or fields.get("v") != ROLES_VERSION or not isinstance(fields["roles"], list):
            raise ValueError(f"it begins with {data[:40]!r}")
        lines = tuple(map(_line_of, fields["roles"]))
    except (ValueError, KeyError, TypeError, RecursionError, InvalidArgumentError) as error:
        raise MetadataCorruptError(
            "The table of roles cannot be read, so all access is denied",
            value=str(error)[:200],
            remedy="write it again with this version's bk role, or use the version that wrote it",
        ) from error
    return RolesTable(lines, {name: value for name, value in fields.items() if name not in ("v", "roles")})


def _line_of(fields: Any) -> Line:
    """Parse a line of the record. Raises ValueError, KeyError or InvalidArgumentError for an invalid line."""
    if not isinstance(fields, dict) or not all(isinstance(fields[name], str) for name in ("identity", "on", "role")):
        raise ValueError(f"a line is {str(fields)[:80]!r}")
    unknown = {name: value for name, value in fields.items() if name not in ("identity", "on", "role")}
    return Line(fields["identity"], Role(fields["role"]), scope_of(fields["on"]), unknown)
