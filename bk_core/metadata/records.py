# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the records in ZooKeeper that are not about ledgers or logs. Apache's records are registrations
of bookies, cookies, and those of auto-recovery; ours are orders of an operator to bookies. Every decoder raises
MetadataCorruptError for bad bytes."""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.metadata.proto.ledger_pb2 import (
    AuditorVoteFormat,
    BookieServiceInfoFormat,
    CheckAllLedgersFormat,
    CookieFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from bk_core.model import BOOKIE_RPC, BookieId, BookieServiceInfo, Endpoint

COOKIE_LAYOUT = 5
UNDERREPLICATION_LAYOUT = b'type: "BASIC"\nversion: 1\n'

M = TypeVar("M", bound=Message)


# --- registrations of bookies ---


def encode_service_info(info: BookieServiceInfo) -> bytes:
    """Encode the data of ``available/<id>``: protobuf without a header. The bookie's id is the znode's name."""
    message = BookieServiceInfoFormat(properties=dict(info.properties))
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    return message.SerializeToString(deterministic=True)


def decode_service_info(bookie_id: BookieId, data: bytes) -> BookieServiceInfo:
    """Decode a bookie's registration. Empty data, which old bookies write, gives the endpoint that the bookie's id
    names."""
    if not data:
        return legacy_service_info(bookie_id)
    message = _parsed(lambda: BookieServiceInfoFormat.FromString(data), f"service info of bookie {bookie_id}")
    endpoints = tuple(
        Endpoint(e.id, e.host, e.port, e.protocol, tuple(e.auth), tuple(e.extensions)) for e in message.endpoints
    )
    return BookieServiceInfo(bookie_id, endpoints, dict(message.properties))


def legacy_service_info(bookie_id: BookieId) -> BookieServiceInfo:
    """Return a registration with the endpoint that an id ``host:port`` names. For any other id it has no endpoints."""
    host, _, port = bookie_id.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        return BookieServiceInfo(bookie_id)
    return BookieServiceInfo(bookie_id, (Endpoint("bookie", host.strip("[]"), int(port), BOOKIE_RPC),))


# --- cookies ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """The identity of a bookie, which is stored in each of its directories and in ``cookies/<id>``. ``index_dirs`` is
    None if the indexes are in the ledger directories."""

    bookie_host: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str | None = None
    index_dirs: tuple[str, ...] | None = None


def encode_cookie(cookie: Cookie) -> bytes:
    """Encode a cookie in Apache's text format, layout 5. Raises InvalidArgumentError for a directory name that the
    format cannot hold."""
    for directory in (*cookie.ledger_dirs, *(cookie.index_dirs or ())):
        if "\t" in directory:
            raise InvalidArgumentError("A directory's name cannot contain a tab", value=repr(directory))
    if any("," in directory for directory in cookie.journal_dirs):
        raise InvalidArgumentError("A journal directory's name cannot contain a comma", value=repr(cookie.journal_dirs))
    message = CookieFormat(
        bookieHost=cookie.bookie_host,
        journalDir=",".join(cookie.journal_dirs),
        ledgerDirs=_join_dirs(cookie.ledger_dirs),
    )
    if cookie.instance_id is not None:
        message.instanceId = cookie.instance_id
    if cookie.index_dirs is not None:
        message.indexDirs = _join_dirs(cookie.index_dirs)
    return b"%d\n" % COOKIE_LAYOUT + _to_text(message)


def decode_cookie(data: bytes) -> Cookie:
    """Decode a cookie of layout 3 (lines), 4 or 5 (protobuf text)."""
    layout, newline, body = data.partition(b"\n")
    if not newline or layout.strip() not in (b"3", b"4", b"5"):
        raise MetadataCorruptError("This is not a cookie of layout 3, 4 or 5", value=f"it begins with {data[:40]!r}")
    if layout.strip() == b"3":
        return _parsed(lambda: _decode_cookie_v3(body), "cookie")
    message = _parse_text(body, CookieFormat(), "cookie")
    return _parsed(lambda: _from_cookie_message(message), "cookie")


def _from_cookie_message(message: CookieFormat) -> Cookie:
    return Cookie(
        bookie_host=message.bookieHost,
        journal_dirs=tuple(message.journalDir.split(",")),
        ledger_dirs=_split_dirs(message.ledgerDirs),
        instance_id=message.instanceId if message.HasField("instanceId") else None,
        index_dirs=_split_dirs(message.indexDirs) if message.HasField("indexDirs") else None,
    )


def _decode_cookie_v3(body: bytes) -> Cookie:
    host, journal, ledgers = body.decode("utf-8").splitlines()[:3]
    return Cookie(bookie_host=host, journal_dirs=tuple(journal.split(",")), ledger_dirs=_split_dirs(ledgers))


def _join_dirs(directories: Sequence[str]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _split_dirs(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if count != str(len(directories)):
        raise ValueError(f"{count[:20]!r} directories are announced, {len(directories)} are named")
    return tuple(directories)


# --- orders of an operator ---


class Order(enum.Enum):
    """The states that an operator can order a bookie to take. The values are those in the record."""

    READ_ONLY = "read-only"
    DRAIN = "drain"  # the bookie is read-only, and other bookies get its copies
    REMOVED = "removed"  # no ledger names the bookie, and it is out of the cluster until it starts again


@dataclass(frozen=True, slots=True)
class BookieOrder:
    """An operator's order to a bookie. ``since_ms`` is the time at which it was given (ms since 1970). ``fences`` says
    that a drain need not wait for the writers of open ledgers, but may fence them."""

    order: Order
    since_ms: int
    fences: bool = False


ORDER_VERSION = 1


def encode_order(order: BookieOrder) -> bytes:
    """Encode the data of ``<root>-orders/<id>``."""
    fields = {"fences": order.fences, "order": order.order.value, "since_ms": order.since_ms, "v": ORDER_VERSION}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def decode_order(data: bytes) -> BookieOrder:
    def parse() -> BookieOrder:
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.get("v") != ORDER_VERSION:
            raise ValueError(f"it begins with {data[:40]!r}")
        return BookieOrder(Order(fields["order"]), int(fields["since_ms"]), bool(fields.get("fences", False)))

    return _parsed(parse, "order of a bookie")


# --- under-replication ---


@dataclass(frozen=True, slots=True)
class UnderreplicationMark:
    """The under-replication mark of a ledger. ``missing`` are the bookies that lack a copy, and ``ctime_ms`` is the
    time at which the mark was made (ms since 1970)."""

    missing: tuple[BookieId, ...]
    ctime_ms: int | None = None


def encode_mark(mark: UnderreplicationMark) -> bytes:
    """Encode the data of the node ``urL<id>``, the under-replication mark of a ledger."""
    return _to_text(UnderreplicatedLedgerFormat(replica=mark.missing, ctime=mark.ctime_ms))


def decode_mark(data: bytes) -> UnderreplicationMark:
    """Decode a mark. Fields of a later version are ignored. A mark without ``replica`` names no bookie."""
    message = _parse_text(data, UnderreplicatedLedgerFormat(), "under-replication mark")
    return UnderreplicationMark(tuple(message.replica), message.ctime if message.HasField("ctime") else None)


def extend_mark(data: bytes, missing: Sequence[BookieId]) -> bytes:
    """Return the mark in ``data`` with more missing bookies added, each of them once. The new bookies are appended, as
    text format allows, so all other fields stay, even those of a later version (rule M4). Raises
    MetadataCorruptError."""
    known = decode_mark(data).missing
    added = dict.fromkeys(bookie for bookie in missing if bookie not in known)
    if not added:
        return data
    separator = b"" if not data or data.endswith(b"\n") else b"\n"
    return data + separator + _to_text(UnderreplicatedLedgerFormat(replica=added))


def encode_lock(owner: str) -> bytes:
    """Encode the data of the node ``locks/urL<id>``, which names the worker that repairs the ledger."""
    return _to_text(LockDataFormat(bookieId=owner))


def decode_lock(data: bytes) -> str:
    """Return the name of the worker that repairs the ledger, or an empty text if the lock names none."""
    return _parse_text(data, LockDataFormat(), "lock of a repair").bookieId


def encode_vote(owner: str) -> bytes:
    """Encode the data of the node ``auditorelection``, and of each vote in it."""
    return _to_text(AuditorVoteFormat(bookieId=owner))


def decode_lost_bookie_delay_s(data: bytes) -> int:
    """Decode the data of the node ``lostBookieRecoveryDelay``, a number of seconds in digits."""
    if not (data.isdigit() and len(data) <= 10 and int(data) < 2**31):
        raise MetadataCorruptError("The delay before a bookie counts as lost cannot be read", value=repr(data[:40]))
    return int(data)


def decode_vote(data: bytes) -> str:
    return _parse_text(data, AuditorVoteFormat(), "vote for an auditor").bookieId


def encode_audit_time(time_ms: int, before: bytes = b"") -> bytes:
    """Encode the time at which a check of an auditor last ended (ms since 1970), for ``checkallledgersctime`` and the
    two similar nodes. Apache's three messages for them have the same bytes. Fields of a later version in the old record
    ``before`` are kept (rule M4)."""
    message = CheckAllLedgersFormat()
    with contextlib.suppress(DecodeError):  # an unreadable record is replaced
        message = CheckAllLedgersFormat.FromString(before)
    message.checkAllLedgersCTime = time_ms
    return message.SerializeToString()


def decode_audit_time(data: bytes) -> int | None:
    message = _parsed(lambda: CheckAllLedgersFormat.FromString(data), "time of an audit")
    return message.checkAllLedgersCTime if message.HasField("checkAllLedgersCTime") else None


def _to_text(message: Message) -> bytes:
    # ASCII only, as Java's printer writes
    return text_format.MessageToString(message, as_utf8=False).encode("ascii")


def _parse_text(data: bytes, message: M, what: str) -> M:
    """Parse a record in text format. Fields of a later version are ignored here; code that rewrites a record keeps
    them."""

    def parse() -> M:
        text_format.Parse(data.decode("utf-8"), message, allow_unknown_field=True)
        if not message.IsInitialized():  # the text parser accepts such a message
            raise DecodeError("required fields are missing")
        return message

    return _parsed(parse, what)


R = TypeVar("R")


def _parsed(parse: Callable[[], R], what: str) -> R:
    try:
        return parse()
    except (DecodeError, text_format.ParseError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MetadataCorruptError(f"The {what} cannot be read", value=str(error)[:200]) from error
