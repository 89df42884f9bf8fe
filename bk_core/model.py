# SPDX-License-Identifier: Apache-2.0
"""The nouns of the protocol: ledgers, fragments, metadata, bookies. Plain data, no behaviour beyond its own rules.

Source: protocol document, "Ledger metadata", "Ensembles".
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

LedgerId: TypeAlias = int
EntryId: TypeAlias = int
BookieId: TypeAlias = str

NO_ENTRY: EntryId = -1  # the LAC and last entry of an empty ledger
ENTRY_ID_MAX: EntryId = 2**63 - 2  # the id after it still fits a signed 64-bit number
LEDGER_KEY_BYTES = 20

T = TypeVar("T")


class LedgerState(enum.Enum):
    """Values are those of LedgerMetadataFormat."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(enum.IntEnum):
    """Values are those of LedgerMetadataFormat and of the frame's digest byte. ``MAC`` is HMAC-SHA1 there."""

    CRC32 = 1
    MAC = 2
    CRC32C = 3
    DUMMY = 4

    @property
    def digest_bytes(self) -> int:
        """Width of one digest in bytes."""
        return _DIGEST_BYTES[self]


_DIGEST_BYTES = {DigestType.CRC32: 8, DigestType.MAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value with the metadata store's revision of it, for compare-and-set."""

    value: T
    version: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """A stretch of entries with one ensemble, named by its first entry id."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """What the metadata store holds of one ledger.

    Invariants (checked by :meth:`problem`): E ≥ Qw ≥ Qa ≥ 1; fragments begin at 0 and strictly increase; each has
    exactly E distinct bookies; ``last_entry_id`` ≥ −1 and ``length`` ≥ 0, which say something only once CLOSED.
    ``unknown_fields`` are protobuf bytes of fields we do not know; they survive our rewrites (RULES M4).
    """

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = NO_ENTRY
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = b""
    ctime_ms: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    c_token: int | None = None
    format_version: int = 3
    unknown_fields: bytes = b""

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_index_of(self, entry_id: EntryId) -> int:
        """Index of the fragment that holds ``entry_id``."""
        return bisect_right(self.fragments, entry_id, key=lambda f: f.first_entry_id) - 1

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        return self.fragments[self.fragment_index_of(entry_id)]

    def with_ensemble(self, first_entry_id: EntryId, ensemble: tuple[BookieId, ...]) -> LedgerMetadata:
        """The metadata after an ensemble change: the same first entry id replaces the last fragment, a greater one
        appends (MUST 7)."""
        last = self.fragments[-1].first_entry_id
        assert first_entry_id >= last, (first_entry_id, last)
        kept = self.fragments[:-1] if first_entry_id == last else self.fragments
        return replace(self, fragments=(*kept, Fragment(first_entry_id, ensemble)))

    def closed_at(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def in_recovery(self) -> LedgerMetadata:
        return replace(self, state=LedgerState.IN_RECOVERY)

    def problem(self) -> str | None:
        """Why these values cannot be a ledger's metadata, or None."""
        e, qw, qa = self.ensemble_size, self.write_quorum_size, self.ack_quorum_size
        if not e >= qw >= qa >= 1:
            return f"ensemble size {e}, write quorum {qw}, ack quorum {qa}: must be E ≥ Qw ≥ Qa ≥ 1"
        firsts = [f.first_entry_id for f in self.fragments]
        if not firsts or firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
            return f"fragments start at {firsts}: must begin at 0 and increase"
        for fragment in self.fragments:
            if len(fragment.ensemble) != e or len(set(fragment.ensemble)) != e or "" in fragment.ensemble:
                members = ", ".join(fragment.ensemble)
                return f"fragment {fragment.first_entry_id} has ensemble {members}: must be {e} distinct bookies"
        if self.length < 0 or self.last_entry_id < NO_ENTRY:
            return f"last entry {self.last_entry_id}, length {self.length}: must be at least -1 and 0"
        return None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address a bookie listens on. ``protocol`` is ``bookie-rpc``, ``grpc``, ``direct`` or ``http``."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """What a bookie publishes of itself. ``properties`` carries our incarnation."""

    bookie_id: BookieId
    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def endpoint(self, protocol: str) -> Endpoint | None:
        return next((e for e in self.endpoints if e.protocol == protocol), None)

    def is_of_directory_of(self, other: BookieServiceInfo) -> bool:
        """Whether both were published from one data directory: one incarnation, and neither from a copy of it. False
        where no incarnation is published."""
        mine, theirs = self.properties, other.properties
        same = mine.get(DIRECTORY_PROPERTY) == theirs.get(DIRECTORY_PROPERTY)
        return same and mine.get(INCARNATION_PROPERTY, "") == theirs.get(INCARNATION_PROPERTY) != ""


INCARNATION_PROPERTY = "bk.incarnation"
"""Property of BookieServiceInfo that carries the incarnation uuid (RULES S8)."""

DIRECTORY_PROPERTY = "bk.directory"
"""Property of BookieServiceInfo that names the data directory as it lies on its machine: a copy of it has another one,
although its incarnation is the same (RULES S8, M3)."""
