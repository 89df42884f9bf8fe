# SPDX-License-Identifier: Apache-2.0
"""Parses service URIs and the LAYOUT record, makes the paths of ledgers and marks, and checks the names of logs and
bookies (M1, N8; docs/formats.md §4). No I/O."""

from __future__ import annotations

import enum
import ipaddress
import re
from dataclasses import dataclass

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.model import LEDGER_ID_MAX as NEW_LEDGER_ID_MAX
from bk_core.model import BookieId, LedgerId, host_and_port, plain_host

DEFAULT_ROOT = "/ledgers"
DEFAULT_PORT = 2181
LEDGER_ID_MAX = 2**63 - 1
SHORT_IDS_END = 2**31 - 1
"""The first id that has a long path in the ``hierarchical`` layout, as in Apache's code."""

NAMES_BESIDE_LEDGERS = frozenset(
    {"available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen", "idgen-long", "disableHealthCheck"}
)
"""The children of the root that hold no ledgers. Children whose names begin with ``ID-`` hold none, either."""

_PACKAGE = "org.apache.bookkeeper.meta."
_LAYOUT_FORMAT = 2
_MANAGER_VERSION = 1


class Layout(enum.Enum):
    """The layouts of ledger paths. The values are their names in URIs."""

    FLAT = "flat"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"

    @property
    def factory(self) -> str:
        """The class name of this layout in the LAYOUT record."""
        return _PACKAGE + _FACTORIES[self]


_FACTORIES = {
    Layout.FLAT: "FlatLedgerManagerFactory",
    Layout.LEGACY_HIERARCHICAL: "LegacyHierarchicalLedgerManagerFactory",
    Layout.HIERARCHICAL: "HierarchicalLedgerManagerFactory",
    Layout.LONG_HIERARCHICAL: "LongHierarchicalLedgerManagerFactory",
}


# --- service URI ---


@dataclass(frozen=True, slots=True)
class ServiceUri:
    """A parsed service URI. Each of ``hosts`` has the form ``host:port``."""

    hosts: tuple[str, ...]
    root: str
    layout: Layout | None = None  # None if the layout is that of the LAYOUT record

    def __str__(self) -> str:
        scheme = "zk" if self.layout is None else f"zk+{self.layout.value}"
        return f"{scheme}://{';'.join(self.hosts)}{self.root}"


_EXAMPLE = "write zk://host1:2181;host2:2181/ledgers"


def parse_service_uri(uri: str) -> ServiceUri:
    """Parse a service URI (M1). Raises InvalidArgumentError, with an example of a good URI."""
    if not isinstance(uri, str):
        raise _bad_uri("The metadata service URI is not a text", uri)
    text = uri.strip()
    if text.startswith("metadata-store:"):
        return _parse_pulsar_uri(uri, text.removeprefix("metadata-store:"))
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise _bad_uri("The metadata service URI has no scheme", uri)
    kind, _, layout = scheme.lower().partition("+")
    if kind != "zk":
        raise _unsupported_store(kind, uri)
    return _parse_zk(uri, rest, _parse_layout(layout, uri))


def _parse_pulsar_uri(uri: str, rest: str) -> ServiceUri:
    kind = re.match(r"(zk|etcd|oxia|rocksdb|memory)(?::|$)", rest)
    if kind and kind[1] != "zk":
        raise _unsupported_store(kind[1], uri)
    return _parse_zk(uri, rest.removeprefix("zk:").removeprefix("//"), None)


def _parse_layout(name: str, uri: str) -> Layout | None:
    if name in ("", "null"):
        return None
    try:
        return Layout(name)
    except ValueError:
        raise _bad_uri(
            f"Ledger layout {name!r} is not supported",
            uri,
            "write zk://…, which uses the cluster's own layout, or zk+hierarchical, zk+longhierarchical, zk+null",
        ) from None


def _parse_zk(uri: str, rest: str, layout: Layout | None) -> ServiceUri:
    authority, slash, path = rest.partition("/")
    hosts = tuple(_parse_host(part.strip(), uri) for part in re.split("[;,]", authority) if part.strip())
    if not hosts:
        raise _bad_uri("The metadata service URI names no host", uri)
    if len(set(hosts)) != len(hosts):
        raise _bad_uri("The metadata service URI names a host twice", uri)
    root = (slash + path).rstrip("/")
    if not slash:
        root = DEFAULT_ROOT
    if not root or not all(_is_node_name(part) for part in root[1:].split("/")):
        raise _bad_uri("The ledgers root must be a path below /, such as /ledgers", uri)
    return ServiceUri(hosts, root, layout)


def _parse_host(text: str, uri: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Za-z:.%_-]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?", text)
    port = int(match[2] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise _bad_uri(f"{text!r} is not a host and port", uri)
    if match[1].startswith("[") and not _is_ipv6(plain_host(match[1])):
        raise _bad_uri(f"{match[1]!r} is not an IPv6 address", uri)
    return host_and_port(plain_host(match[1]), port)


def _is_ipv6(text: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def _unsupported_store(kind: str, uri: str) -> InvalidArgumentError:
    name = {"etcd": "etcd", "etcd3": "etcd", "oxia": "Oxia"}.get(kind, kind)
    return _bad_uri(f"Metadata in {name} is not supported; ZooKeeper is", uri)


def _bad_uri(what: str, uri: str, remedy: str = _EXAMPLE) -> InvalidArgumentError:
    return InvalidArgumentError(what, value=f"metadataServiceUri={uri!r}", remedy=remedy)


# --- LAYOUT ---


def encode_layout(layout: Layout) -> bytes:
    """Encode the LAYOUT record in Apache's format."""
    return f"{_LAYOUT_FORMAT}\n{layout.factory}:{_MANAGER_VERSION}".encode("ascii")


def decode_layout(data: bytes) -> Layout:
    """Return the layout that a LAYOUT record of format 2 (class names) or 1 (type names) has. Raises
    MetadataCorruptError."""
    lines = data.decode("utf-8", "replace").strip().split("\n")
    if len(lines) == 2 and lines[0] in ("1", "2"):
        name, _, version = lines[1].rpartition(":")
        for layout in Layout:
            if version == str(_MANAGER_VERSION) and name in (layout.factory, layout.value):
                return layout
    raise MetadataCorruptError(
        "The cluster's LAYOUT does not name a supported ledger layout",
        value=repr(data[:200]),
        remedy=f"{', '.join(layout.value for layout in Layout)} are supported, in manager version {_MANAGER_VERSION}",
    )


# --- ledger paths ---


def ledger_path(layout: Layout, ledger_id: LedgerId) -> str:
    """Return the path of a ledger's znode below the root, with a leading slash. Raises InvalidArgumentError for an id
    that the layout cannot hold."""
    end = SHORT_IDS_END if layout in (Layout.FLAT, Layout.LEGACY_HIERARCHICAL) else LEDGER_ID_MAX
    if not 0 <= ledger_id <= end:
        raise InvalidArgumentError(f"Ledger ids of layout {layout.value} are 0 to {end}", value=f"ledgerId={ledger_id}")
    if layout is Layout.FLAT:
        return f"/L{ledger_id:010d}"
    if layout is Layout.LONG_HIERARCHICAL or (layout is Layout.HIERARCHICAL and ledger_id >= SHORT_IDS_END):
        digits = f"{ledger_id:019d}"
        return f"/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"
    digits = f"{ledger_id:010d}"
    return f"/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def check_new_ledger_id(layout: Layout, ledger_id: LedgerId) -> None:
    """Raise InvalidArgumentError for an id that a new ledger cannot have. A ledger that another program created with
    the greatest 63-bit id can be read and deleted, although our bookies accept no entries for it."""
    end = SHORT_IDS_END if layout in (Layout.FLAT, Layout.LEGACY_HIERARCHICAL) else NEW_LEDGER_ID_MAX
    if not 0 <= ledger_id <= end:
        raise InvalidArgumentError(
            f"A new ledger has an id from 0 to {end} in a cluster of layout {layout.value}",
            value=f"ledgerId={ledger_id}",
            remedy="give another id, or none, so that the store makes one",
        )


_LEDGER_PATH = re.compile(r"/\d{2}/\d{4}/L\d{4}|/\d{3}/\d{4}/\d{4}/\d{4}/L\d{4}|/L\d{10}", re.ASCII)


def ledger_id_of(layout: Layout, path: str) -> LedgerId | None:
    """Return the ledger id in a path below the root, or None if the path is not that of a ledger."""
    if not _LEDGER_PATH.fullmatch(path):
        return None
    ledger_id = int(re.sub(r"[/L]", "", path))
    try:
        return ledger_id if ledger_path(layout, ledger_id) == path else None
    except InvalidArgumentError:
        return None


def last_id_below(folder: str) -> LedgerId:
    """Return the greatest ledger id whose znode can be below a folder of digits, such as ``/00/0003``."""
    first, *rest = folder[1:].split("/")
    return int("".join((first, *rest)).ljust(10 if len(first) == 2 else 19, "9"))


def is_beside_ledgers(name: str) -> bool:
    """Return whether a child of the root with this name holds no ledgers."""
    return name in NAMES_BESIDE_LEDGERS or name.startswith("ID-")


def mark_path(ledger_id: LedgerId) -> str:
    """Return the path of a ledger's under-replication mark below ``underreplication/ledgers``, with a leading slash."""
    bits = f"{ledger_id:016x}"
    return f"/{bits[:4]}/{bits[4:8]}/{bits[8:12]}/{bits[12:]}/{mark_name(ledger_id)}"


def mark_name(ledger_id: LedgerId) -> str:
    """Return the name that a ledger's mark and its repair lock have."""
    return f"urL{ledger_id:010d}"


def lock_path(ledger_id: LedgerId) -> str:
    """Return the path of a ledger's repair lock below the root, with a leading slash."""
    return f"/underreplication/locks/{mark_name(ledger_id)}"


def ledger_of_mark(name: str) -> LedgerId | None:
    """Return the ledger id in a mark's name, or None for any other name."""
    match = re.fullmatch(r"urL([0-9]{10,19})", name)
    return int(match[1]) if match and int(match[1]) <= LEDGER_ID_MAX else None


def vote_number(name: str) -> int | None:
    """Return the number in the name of a vote for an auditor, or None for any other name. The vote with the lowest
    number wins."""
    match = re.fullmatch(r"V_([0-9]{10,19})", name)
    return int(match[1]) if match else None


# --- names that users give ---


def is_log_name(name: str) -> bool:
    """Return whether a log can have this name (N8)."""
    return bool(re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name)) and not (name.startswith(".") or name.isdigit())


def check_log_name(name: str) -> str:
    """Return ``name`` if a log can have it (N8), else raise InvalidArgumentError."""
    if is_log_name(name):
        return name
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
        why = "has 1 to 200 characters of A-Z a-z 0-9 . _ -"
    elif name.startswith("."):
        why = "does not begin with a dot"
    else:
        why = "does not consist of digits only, which would read like a ledger id"
    raise InvalidArgumentError(f"A log's name {why}", value=f"log={name!r}", remedy="choose another name")


_BOOKIE_ID = re.compile(r"[A-Za-z0-9:-_.\-]{1,255}")


def check_bookie_id(bookie_id: BookieId, setting: str = "bookieId") -> BookieId:
    """Return ``bookie_id`` if it can name a znode and Apache accepts it, else raise InvalidArgumentError. Apache's
    pattern, ``[a-zA-Z0-9:-_.\\-]+``, has a range from ``:`` to ``_``. The word ``readonly`` is refused in upper and
    lower case, because no Java client can connect to a cluster with such a bookie."""
    if bookie_id.lower() == "readonly" or bookie_id in (".", "..") or not _BOOKIE_ID.fullmatch(bookie_id):
        raise InvalidArgumentError(
            r"A bookie id has 1 to 255 characters of A-Z a-z 0-9 : ; < = > ? @ [ \ ] ^ _ . - and is not 'readonly', "
            "in capitals or not",
            value=f"{setting}={bookie_id!r}",
            remedy="use host:port",
        )
    return bookie_id


def check_node_name(name: str, what: str) -> str:
    """Return ``name`` if it can name a znode, else raise InvalidArgumentError."""
    if not _is_node_name(name):
        raise InvalidArgumentError(f"{name!r} cannot be the name of a {what}", remedy="use A-Z a-z 0-9 . _ - :")
    return name


def _is_node_name(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9._:+=@~\[\]-]+", name)) and name not in (".", "..", "zookeeper")
