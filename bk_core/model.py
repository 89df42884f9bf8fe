# SPDX-License-Identifier: Apache-2.0
"""Defines the data types of the protocol for ledgers, fragments, metadata and bookies. A type checks only the
invariants of its values.

Source: protocol document, "Ledger metadata", "Ensembles".
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Generic, Self, TypeAlias, TypeVar

LedgerId: TypeAlias = int
EntryId: TypeAlias = int
BookieId: TypeAlias = str

NO_ENTRY: EntryId = -1  # the LAC and last entry of an empty ledger
ENTRY_ID_MAX: EntryId = 2**63 - 2  # the next id still fits into a signed 64-bit number
LEDGER_ID_MAX: LedgerId = 2**63 - 2
"""The greatest id of a new ledger. Our bookies reserve 2^63 − 1 for internal use, so they could not store its
entries."""
LEDGER_KEY_BYTES = 20

T = TypeVar("T")


class LedgerState(enum.Enum):
    """The states of a ledger. The values are those of LedgerMetadataFormat."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(enum.IntEnum):
    """The types of digests. The numbers are those of LedgerMetadataFormat and of the digest byte in a frame.

    ``digest_bytes`` is the size of one digest in bytes. With ``needs_key`` only a client with the ledger's password can
    compute the digest, so a bookie cannot check it, and a reader checks each entry. With ``has_parts`` parts of an
    entry can be checked separately, so a bookie may send some columns of an entry. ``entries/digest.py`` computes
    digests.
    """

    # number, digest_bytes, needs_key, has_parts
    CRC32C = 3, 4, False, True
    CRC32 = 1, 8
    MAC = 2, 20, True
    """HMAC-SHA1."""
    DUMMY = 4, 0, False, True

    digest_bytes: int
    needs_key: bool
    has_parts: bool

    def __new__(cls, number: int, digest_bytes: int = 0, needs_key: bool = False, has_parts: bool = False) -> Self:
        made = int.__new__(cls, number)
        made._value_ = number
        made.digest_bytes, made.needs_key, made.has_parts = digest_bytes, needs_key, has_parts
        return made

    @property
    def is_checksum(self) -> bool:
        """Whether the digest is a checksum, which a bookie can compute without a key."""
        return self.digest_bytes > 0 and not self.needs_key


DIGEST_TYPE_NAMES = tuple(kind.name for kind in DigestType)
"""The names that options accept for digest types. The first name is the default for new ledgers."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value with its version in the metadata store, for compare-and-set."""

    value: T
    version: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """A range of consecutive entries with one ensemble. It begins at ``first_entry_id``, and the next fragment ends
    it."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """The record of one ledger in the metadata store.

    :meth:`problem` checks these invariants. E ≥ Qw ≥ Qa ≥ 1. The first ids of the fragments begin at 0 and strictly
    increase. Each fragment has exactly E distinct bookies. ``last_entry_id`` ≥ −1 and ``length`` ≥ 0; both have a
    meaning only if the ledger is CLOSED. ``unknown_fields`` are the protobuf bytes of unknown fields, which are kept
    when the record is written again (M4).
    """

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = NO_ENTRY
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = field(default=b"", repr=False)
    ctime_ms: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    c_token: int | None = None
    format_version: int = 3
    unknown_fields: bytes = b""

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def entry_digest_type(self) -> DigestType:
        """The type of the entries' digests. It is CRC32 if the record has no type, because Apache wrote such records
        before it stored the type."""
        return self.digest_type or DigestType.CRC32

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_index_of(self, entry_id: EntryId) -> int:
        """Return the index of the fragment that contains ``entry_id``."""
        if len(self.fragments) == 1:
            return 0
        return bisect_right(self.fragments, entry_id, key=lambda f: f.first_entry_id) - 1

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        return self.fragments[self.fragment_index_of(entry_id)]

    def last_entry_of(self, index: int) -> EntryId | None:
        """Return the last entry id of the fragment at ``index``, or None if the fragment has no end yet. If the
        fragment has no entry, the id is below its first entry id."""
        if index + 1 == len(self.fragments):
            return self.last_entry_id if self.is_closed else None
        following = self.fragments[index + 1].first_entry_id - 1
        return min(following, self.last_entry_id) if self.is_closed else following

    def with_ensemble(self, first_entry_id: EntryId, ensemble: tuple[BookieId, ...]) -> LedgerMetadata:
        """Return the metadata after an ensemble change. A new fragment with the first entry id of the last fragment
        replaces the last fragment. A new fragment with a greater id is appended (MUST 7)."""
        last = self.fragments[-1].first_entry_id
        assert first_entry_id >= last, (first_entry_id, last)
        kept = self.fragments[:-1] if first_entry_id == last else self.fragments
        return replace(self, fragments=(*kept, Fragment(first_entry_id, ensemble)))

    def closed_at(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def in_recovery(self) -> LedgerMetadata:
        return replace(self, state=LedgerState.IN_RECOVERY)

    def problem(self) -> str | None:
        """Return why these values cannot be a ledger's metadata, or None if they can."""
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


BOOKIE_RPC, DIRECT, GRPC, HTTP = "bookie-rpc", "direct", "grpc", "http"
"""The values of ``Endpoint.protocol`` that the product uses, which are Apache's wire, our two lanes, and HTTP for the
admin port."""
TLS = "tls"
"""The word in ``Endpoint.extensions`` which says that the endpoint uses TLS. Apache uses the same word."""


def plain_host(host: str) -> str:
    """Return a host in the form for the operating system, in which an IPv6 address has no brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a bookie listens. ``protocol`` is one of BOOKIE_RPC, DIRECT, GRPC and HTTP, or an unknown
    word."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    @property
    def tls(self) -> bool:
        return TLS in self.extensions

    @property
    def where(self) -> str:
        """The host and port, for messages."""
        return host_and_port(self.host, self.port)

    @property
    def url(self) -> str:
        """The URL of an admin port's endpoint. It begins with ``https://`` if the endpoint uses TLS."""
        return f"{'https' if self.tls else 'http'}://{self.where}"


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """A bookie's registration. ``properties`` holds the incarnation and the directory of our bookies."""

    bookie_id: BookieId
    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def endpoint(self, protocol: str) -> Endpoint | None:
        return next((e for e in self.endpoints if e.protocol == protocol), None)

    def is_of_directory_of(self, other: BookieServiceInfo) -> bool:
        """Return whether both registrations were published from the same data directory. This is false if one of them
        was published from a copy of that directory, or if an incarnation is missing."""
        mine, theirs = self.properties, other.properties
        same = mine.get(DIRECTORY_PROPERTY) == theirs.get(DIRECTORY_PROPERTY)
        return same and mine.get(INCARNATION_PROPERTY, "") == theirs.get(INCARNATION_PROPERTY) != ""


INCARNATION_PROPERTY = "bk.incarnation"
"""The property of BookieServiceInfo that holds the incarnation, a uuid (S8)."""

DIRECTORY_PROPERTY = "bk.directory"
"""The property of BookieServiceInfo that identifies the data directory on its machine. A copy of the directory has
another value, although its incarnation is the same (S8, M3)."""
