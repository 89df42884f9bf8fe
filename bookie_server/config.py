# SPDX-License-Identifier: Apache-2.0
"""A bookie's configuration: one frozen dataclass, checked when it is made."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

from bk_core.access.roles import OPEN, SECURITIES
from bk_core.access.tls import IDENTITY_RULES, Tls, TlsPaths
from bk_core.access.zookeeper_acl import ACL_OPEN, parse_acl
from bk_core.errors import InvalidArgumentError
from bk_core.metadata import StoreSettings
from bk_core.metadata.layout import check_bookie_id
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX
from bookie_server.garbage.collector import CollectorConfig
from bookie_server.machine.state import MachineLimits
from bookie_server.storage.disk.space import SpaceLimits
from bookie_server.storage.maintenance.schedule import MaintenanceLimits

GRPC_PORT_ABOVE, DIRECT_PORT_ABOVE, ADMIN_PORT_ABOVE = 1000, 2000, 3000

_BLOCK = 4096
_FILES_KEPT = 64
_FILES_KEPT_OF_A_DIRECTORY = 192  # a directory keeps 64 segments and 64 indexes open for reads; writers use the rest
_MAY_BE_ZERO = (
    *("port", "grpc_port", "direct_port", "admin_port", "memory_bytes_max", "connections_per_address_max"),
    *("start_wait_s", "replication_bytes_per_s", "lost_bookie_delay_s", "upkeep_bytes_per_s", "upkeep_bytes_per_hour"),
    "slow_operation_ms",
    *("connections_per_principal_max", "in_flight_bytes_per_address_max", "in_flight_bytes_per_principal_max"),
    *("requests_per_s_per_address_max", "requests_per_s_per_principal_max"),
    *("ledgers_open_per_address_max", "ledgers_open_per_principal_max"),
)

CLIENT_AUTHS = ("required", "optional", "none")

_TLS_PATHS = ("tls_certificate_path", "tls_key_path", "tls_ca_path")

_PRINCIPAL_LIMITS = (
    *("connections_per_principal_max", "in_flight_bytes_per_principal_max"),
    *("requests_per_s_per_principal_max", "ledgers_open_per_principal_max"),
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits for connections and memory; see :class:`BookieConfig`."""

    connections_max: int = 1024
    connections_per_address_max: int = 0
    memory_bytes_max: int = 0
    read_stall_s: float = 5.0
    files_kept: int = 256
    """Open files reserved for storage, the metadata store and the rest; clients get what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits for one client; see :class:`BookieConfig`. 0: no limit."""

    connections_per_principal_max: int = 0
    in_flight_bytes_per_address_max: int = 0
    in_flight_bytes_per_principal_max: int = 0
    requests_per_s_per_address_max: int = 0
    requests_per_s_per_principal_max: int = 0
    ledgers_open_per_address_max: int = 0
    ledgers_open_per_principal_max: int = 0
    limits_exempt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """The settings of a bookie. Raises InvalidArgumentError for values that do not fit together.

    **Start.** Either ``data_dir`` is given, or ``data_dirs``: several directories over which ledgers are spread, best
    each on a disk of its own. Their order does not matter, and an empty directory may be added at any start. A start
    that cannot reach the metadata store tries again for ``start_wait_s``. ``bookie_id`` is fixed at the first start, by
    default ``advertised_address:port``; later starts read it from the data directory.

    **Ports.** Apache's clients connect to ``port``, where a Java client looks for a bookie of the default id. Ours
    connect to ``direct_port``, by default 2000 above it, where each has a connection for adds, one for reads and one
    for control, or to ``grpc_port``, by default 1000 above it; they find both in the bookie's registration. Port 0
    means any free port. With ``unix_socket`` the registration also names a unix socket, which clients of ours on the
    same machine prefer. The bookie serves metrics, health and settings over HTTP at ``admin_port`` of the local address
    ``admin_host``, by default 3000 above ``port`` and on loopback. 0 turns that off, which is also the default if
    ``port`` is 0 or another service has the default port. ``admin_writes`` says which clients may set log levels there
    with PUT: none (off), programs on this machine (loopback), or all (any). The bookie logs each commit or disk read
    that takes ``slow_operation_ms`` or longer, at most two lines a second; 0 turns that off.

    **Adds.** ``in_flight_bytes_max`` bounds the frames of all clients that wait for a group commit; recovery adds have
    a quarter as much of their own. ``stream_bytes_max`` bounds the waiting frames of one stream. A group commit takes
    at most ``group_bytes_max`` and ``group_frames_max``. If syncs are fast, the bookie uses smaller bounds, down to
    1 MiB for a group and 2 MiB for a stream, because larger ones would only delay other clients.

    **Reads.** ``reads_active_max`` bounds the parts of answers in memory. A part is ``read_part_bytes`` long, or one
    frame; all parts together have at most twice the product of both settings. A quarter is kept for recovery. The
    bookie disconnects a client that reads none of its answers for ``read_stall_s`` if other reads wait for room.

    **Connections.** At most ``connections_max`` clients are connected, and at most ``connections_per_address_max`` from
    one address (0: half of them). On each stream a client may begin a message of 8 MiB and never end it. So the bookie
    ends silent streams when the process uses more than ``memory_bytes_max`` (0: three quarters of the memory that it
    may use).

    **Limits.** These bound the load of one client: by its authenticated identity (principal) and by its address, or by
    its address alone if clients do not authenticate. All are off by default. ``connections_per_principal_max`` bounds
    its connections, ``in_flight_bytes_per_principal_max`` and ``in_flight_bytes_per_address_max`` its adds and answers
    in memory, ``requests_per_s_per_principal_max`` and ``requests_per_s_per_address_max`` the rate of its requests,
    ``ledgers_open_per_principal_max`` and ``ledgers_open_per_address_max`` the ledgers that it writes at once.
    ``limits_exempt`` names clients without these limits, such as the other bookies. Above a limit the bookie reads a
    client's connections more slowly. It refuses only requests that cannot wait, and it never drops a request that it
    has accepted. Fences and recoveries have the same limits again, to themselves.

    **Audit.** The bookie writes each fence, recovery, deletion, drain, grant and refusal, with its actor, to the logger
    ``bookie_server.audit``, as one JSON object per event. With ``audit_path`` it writes them to this file, too. It
    begins a new file at ``audit_file_bytes_max`` and keeps ``audit_files_max`` old ones.

    **Disk.** The bookie turns read-only above ``disk_usage_threshold`` (a share of the file system) and writable again
    at ``disk_usage_low_water``. It looks every ``disk_check_interval_s``.

    **Garbage.** Clients that delete a ledger tell the bookie. Every ``gc_interval_s`` the bookie also compares the
    ledgers it holds with the metadata store's list. Either way the bookie looks a ledger up by its id, and once more
    after ``gc_grace_s``. Only if both look-ups find it deleted does the bookie delete its copy for good. A short grace
    frees space sooner and leaves an operator less time to notice that the metadata store has lost ledgers.

    **Upkeep.** ``index_cache_bytes`` bounds the memory for the indexes of sealed segments (RULES S7); a look-up that
    misses this cache costs up to two reads. ``segments_kept_free`` drained segments stay allocated for new entries;
    further ones go back to the file system. Space is freed after a checkpoint. The bookie makes at most one checkpoint
    in ``checkpoint_interval_s`` unless the disk is short of space. Compaction rewrites a sealed segment when less than
    ``compaction_threshold`` of it is live. Every ``major_compaction_interval_s`` it also rewrites segments of which
    less than ``major_compaction_threshold`` is live. Compaction reads and writes at most ``compaction_bytes_per_s``
    together. The scrubber verifies all stored data at ``scrub_bytes_per_s``, again and again, with ``scrub_interval_s``
    between two passes.

    **Auto-recovery.** With ``auto_recovery`` this process also takes part in restoring lost copies, as
    ``bk autorecovery`` does. It reads at most ``replication_bytes_per_s`` for that (0: no bound). A bookie that is away
    counts as lost after ``lost_bookie_delay_s``.

    **Upkeep of logs.** With ``upkeep`` this process is a candidate for keeping the named logs of the cluster, as
    ``bk upkeep`` does: retention, compaction, deletion. It copies at most ``upkeep_bytes_per_s``, and at most
    ``upkeep_bytes_per_hour`` (0: no bound). ``upkeep_passwords_file`` is a TOML file with the passwords of logs by
    name; logs that are not in it have none.

    **TLS.** With ``tls_certificate_path``, ``tls_key_path`` and ``tls_ca_path``, which go together, every port speaks
    TLS and nothing else; the bookie uses the same files where it is a client. New connections use renewed files.
    ``tls_client_auth`` says whether clients need a certificate (required) or not (none). ``tls_identity`` says which
    name of the certificate is the client's identity (subject, dns or spiffe), and ``tls_clients`` which identities are
    let in, with ``*`` for any text; an empty list admits all. With ``tls_zookeeper`` the bookie connects to the
    metadata service over TLS, too (docs/security.md).

    **Tokens.** With ``token_keys_path`` clients authenticate with a signed token. ``tls_client_auth`` then says whether
    a certificate will do instead (optional) or not (none), and ``tls_clients`` applies to both. ``token_path`` is this
    bookie's own token, for other bookies.

    **Security.** With ``security`` ``open`` any client that reaches a port and passes TLS may do anything there. With
    ``secure`` a client may do only what a role allows (``bk role``). That needs clients with certificates or tokens,
    and ``grant_keys_path``: a file of keys that all bookies of the cluster share, one a line, in hex. The first key
    signs. ``mixed`` is the same for a cluster that includes Apache's bookies: auto-recovery and upkeep use those, too.

    **ZooKeeper.** ``zookeeper_auth_path`` is a file with this bookie's credentials for ZooKeeper, read again for each
    connection. ``zookeeper_acl`` sets the ACL of the nodes that it creates there: ``open`` (every client), ``creator``
    (only clients of the same identity) or a list of identities by role, the same for the whole cluster.
    """

    metadata_service_uri: str
    """Where the cluster's metadata is."""
    data_dir: Path | None = None
    """The data directory; made if missing. Give this one or ``data_dirs``."""
    data_dirs: tuple[Path, ...] = ()
    """Several directories instead of one, best each on a disk of its own (docs/bookie.md#several-data-directories)."""
    port: int = 3181
    """TCP port for Apache's clients. 0, in the file only: any free port."""
    grpc_port: int | None = None
    """TCP port for this project's clients over gRPC, by default 1000 above ``port``. 0, in the file only: any free
    port."""
    direct_port: int | None = None
    """TCP port for this project's clients, which find it in the bookie's registration; by default 2000 above ``port``.
    0, in the file only: any free port."""
    unix_socket: bool = True
    """Offer a unix socket, which clients of this project on the same machine and network prefer to the port. The socket
    has no file. If the bookie cannot open it, clients use the port."""
    admin_port: int | None = None
    """TCP port for metrics and health (docs/bookie.md#the-admin-port) over HTTP, by default 3000 above ``port`` unless
    another service has that port. 0: none."""
    admin_host: str = "127.0.0.1"
    """Local address of the admin port. A client that reaches it sees numbers, names of directories and settings; it can
    change nothing unless ``admin_writes`` allows that."""
    admin_writes: str = "off"
    """The clients that may set log levels with PUT at the admin port (docs/bookie.md#logs): none (``off``), programs on
    this machine (``loopback``), or any client (``any``)."""
    slow_operation_ms: float = 1_000.0
    """A commit or a disk read that takes this long or longer is logged (docs/bookie.md#logs). 0: none."""
    bookie_id: str | None = None
    """The bookie's id, fixed at the first start; by default ``advertised_address:port``."""
    advertised_address: str | None = None
    """Host that clients connect to; by default this host's name."""
    listen_address: str = "0.0.0.0"
    """Local address to listen on; IPv6 with or without brackets."""
    allow_loopback: bool = False
    """Allow the bookie to register an address that only this machine can reach."""
    metadata_timeout_s: float = 10.0
    """Deadline of a call to the metadata store."""
    session_timeout_s: float = 10.0
    """The metadata store takes the bookie for dead if it does not hear from it for this time. If another process is
    registered under the bookie's id, a start waits as long for that registration to end."""
    start_wait_s: float = 60.0
    """A start that cannot reach the metadata store tries again for this time and logs that; then it fails. 0: it fails
    at once."""
    stop_grace_s: float = 2.0
    """How long a stop waits for streams to end."""
    segment_size_bytes: int = 256 << 20
    """Size of each segment file, preallocated. It may change between starts. A bookie holds at least two or three, and
    is read-only if there is no room for three more."""
    group_bytes_max: int = 16 << 20
    """The maximum size of one group commit. A disk whose syncs are fast gets smaller groups, of 1 MiB at least."""
    group_frames_max: int = 1000
    """The maximum number of frames of one group commit."""
    stream_bytes_max: int = 32 << 20
    """The maximum size of the frames of one stream that wait for a commit. Above it, or above twice the current size of
    a group commit, the bookie stops reading the stream, and the client waits."""
    in_flight_bytes_max: int = 64 << 20
    """The maximum size of the frames of all streams that wait for a commit. Above it streams take turns. The bookie
    refuses frames only when messages of three times this size wait for their turn. Recovery adds have a quarter as much
    to themselves."""
    reads_active_max: int = 16
    """The maximum number of parts of answers in memory. A part that is shorter than ``read_part_bytes`` counts as its
    share of one, at least 1/256. Further reads wait for their turn."""
    read_part_bytes: int = 2 << 20
    """The size of a part of an answer. A larger frame is a part by itself. A read of parts of entries reads twice as
    much from storage at once."""
    read_stall_s: float = 5.0
    """The bookie disconnects a client that reads none of its answers for this time, if other reads wait for room."""
    connections_max: int = 1024
    """The maximum number of connections. It is lower, with a warning, if the process may not open that many files
    beside 64 for itself and 192 for each data directory. A bookie raises its own soft limit (``ulimit -Sn``) as far as
    the hard one allows."""
    connections_per_address_max: int = 0
    """The maximum number of connections from one address, so that no address can take them all. The bookie closes the
    newest ones above it. 0: half of ``connections_max``. Raise it where many clients come from one address (a proxy,
    one large host)."""
    connections_per_principal_max: int = 0
    """The maximum number of connections of one identity: streams of our lanes, of which a client has three to each
    bookie, and connections of Apache's wire. More are refused. 0: no limit."""
    in_flight_bytes_per_address_max: int = 0
    """The maximum size of the adds of all clients of one address that are not durable yet. The same limit applies
    separately to their recovery adds and to the answers that they have not read. Above it the bookie reads at most one
    more message from each of their connections. This keeps one host from filling ``in_flight_bytes_max`` alone. 0: no
    limit."""
    in_flight_bytes_per_principal_max: int = 0
    """Like ``in_flight_bytes_per_address_max``, for all connections of one identity."""
    requests_per_s_per_address_max: int = 0
    """The maximum rate of adds from all clients of one address, in frames, or on Apache's wire in entries. The same
    limit applies separately to reads and other calls, and to recoveries and fences. Above it the bookie reads their
    connections more slowly. A request that still comes seconds too early is refused, and the client may try it again.
    This keeps one host from taking the bookie's whole processor time. The admin port counts its requests separately,
    and answers 429. 0: no limit."""
    requests_per_s_per_principal_max: int = 0
    """Like ``requests_per_s_per_address_max``, for all connections of one identity."""
    ledgers_open_per_address_max: int = 0
    """The maximum number of ledgers that all clients of one address have open for writing. The same limit applies
    separately to ledgers open for recovery. More are refused, and the client may try again. This keeps one host from
    taking all sessions. 0: no limit."""
    ledgers_open_per_principal_max: int = 0
    """Like ``ledgers_open_per_address_max``, for all connections of one identity."""
    limits_exempt: tuple[str, ...] = ()
    """Clients without these limits: identities, with ``*`` for any text, and addresses or networks (``10.1.0.0/16``).
    Name the other bookies here, since they restore lost copies."""
    audit_path: Path | None = None
    """A file for the audit log (docs/security.md#8-limits-and-audit), which only the bookie's user can read. The bookie
    does not start if it cannot write this file."""
    audit_file_bytes_max: int = 64 << 20
    """Size at which the audit log begins a new file."""
    audit_files_max: int = 10
    """The number of old files of the audit log that are kept, as ``audit_path`` with ``.1``, ``.2`` and so on."""
    memory_bytes_max: int = 0
    """When the process uses more memory, the bookie ends silent streams, since each may hold an incomplete message;
    their clients connect again. 0: three quarters of the memory of its control group, or of the machine."""
    disk_usage_threshold: float = 0.95
    """Used share of the file system, as ``df`` shows it, above which the bookie is read-only."""
    disk_usage_low_water: float = 0.90
    """Used share of the file system at which a bookie that turned read-only is writable again."""
    disk_check_interval_s: float = 10.0
    """How often the bookie looks at its file systems. It also looks when it begins a segment, and when a commit runs
    out of space."""
    index_cache_bytes: int = 64 << 20
    """The memory for the indexes of sealed segments. A look-up that misses this cache costs up to two reads."""
    segments_kept_free: int = 4
    """The number of drained segments that stay allocated for new entries; further ones go back to the file system."""
    checkpoint_interval_s: float = 60.0
    """The minimum time between checkpoints while drained segments wait for one. It is shorter if the disk is short of
    space."""
    compaction_threshold: float = 0.5
    """A sealed segment with a smaller live share is rewritten."""
    major_compaction_threshold: float = 0.8
    """A sealed segment with a smaller live share is rewritten by the thorough run."""
    major_compaction_interval_s: float = 86_400.0
    """How often compaction makes a thorough run."""
    compaction_bytes_per_s: int = 32 << 20
    """The maximum rate at which compaction reads and writes together."""
    scrub_bytes_per_s: int = 8 << 20
    """The rate at which the scrubber verifies all stored data, again and again. 10 TB take two weeks. While commits
    take more than half of the time, the rate is an eighth of this. Apache's ``localScrubRateLimit`` counts entries."""
    scrub_interval_s: float = 600.0
    """Pause between two passes of the scrubber (Apache's ``localScrubInterval``). The first pass after a start begins
    at a random segment."""
    gc_interval_s: float = 3600.0
    """How often the bookie compares the ledgers it holds with those that the metadata store lists."""
    gc_grace_s: float = 600.0
    """The time between the two look-ups of a ledger that seems deleted. A longer time gives an operator more chance to
    notice that the metadata store lost ledgers, and frees space later."""
    auto_recovery: bool = False
    """Take part in restoring lost copies (docs/bookie.md#when-copies-are-lost)."""
    replication_bytes_per_s: int = 100_000_000
    """The maximum rate at which this process reads to restore lost copies. 0: no bound."""
    lost_bookie_delay_s: float = 60.0
    """How long a bookie may be away before its copies are made elsewhere. A delay that ``bk replication delay`` has set
    for the cluster wins over this one."""
    upkeep: bool = False
    """Be a candidate for keeping the named logs of the cluster, as ``bk upkeep`` (docs/cli.md#upkeep) does."""
    upkeep_bytes_per_s: int = 32 << 20
    """The maximum rate at which compaction of logs copies. 0: no bound. A byte is read once, written to each replica,
    and read back."""
    upkeep_bytes_per_hour: int = 20 << 30
    """The maximum amount that compaction of logs copies in an hour, in the whole cluster. 0: no bound."""
    upkeep_passwords_file: Path | None = None
    """A TOML file with the passwords of logs, in lines ``"name" = "password"``, that only the bookie's user should be
    able to read. Logs that are not in it have no password."""
    tls_certificate_path: Path | None = None
    """The bookie's certificate, in PEM. It goes with ``tls_key_path`` and ``tls_ca_path``: with these three files every
    port speaks TLS and nothing else, and so do the bookie's own clients (docs/security.md#3-tls). The bookie uses
    renewed files without a restart."""
    tls_key_path: Path | None = None
    """The key of this certificate, in PEM, not encrypted. The bookie uses a renewed file without a restart."""
    tls_ca_path: Path | None = None
    """The certificate authorities that the bookie trusts, in PEM. It uses a renewed file without a restart."""
    tls_client_auth: str = "required"
    """Whether clients need a certificate (``required``) or not (``none``). With ``token_keys_path``: whether a
    certificate will do instead of a token (``optional``) or not (``none``)."""
    tls_identity: str = "subject"
    """The name in a client's certificate that is its identity: ``subject``, ``dns`` or ``spiffe``."""
    tls_clients: tuple[str, ...] = ()
    """The identities that are let in, of certificates and of tokens, with ``*`` for any text. An empty list admits all
    clients whose certificate is signed by an authority of ``tls_ca_path``, or whose token is signed by a key of
    ``token_keys_path``."""
    tls_zookeeper: bool = False
    """Connect to the metadata service over TLS, too."""
    token_keys_path: Path | None = None
    """A file with the public keys that verify clients' tokens, as a JWKS (docs/security.md#5-tokens). The bookie reads
    it again when it changes."""
    token_issuer: str = ""
    """The issuer (``iss``) that a token must name; empty: any. Set it if one key signs tokens of several issuers."""
    token_path: Path | None = None
    """A file with the token that the bookie shows to other bookies, where it is their client. The bookie reads it again
    for each connection."""
    security: str = OPEN
    """``secure``: a client may do only what a role allows (docs/security.md). This needs the files of TLS, and clients
    that authenticate with a certificate or a token. ``mixed``: the same, in a cluster that includes Apache's bookies.
    ``open``: any client may do anything."""
    grant_keys_path: Path | None = None
    """With ``secure``, a file of keys that all bookies of the cluster share, one a line, in hex. The first key signs
    grants."""
    zookeeper_auth_path: Path | None = None
    """A file with the bookie's identity for ZooKeeper, a line ``digest:USER:PASSWORD`` or ``sasl:USER:PASSWORD``, read
    again for each connection (docs/security.md)."""
    zookeeper_acl: str = ACL_OPEN
    """The ACL of the nodes that the bookie creates in ZooKeeper: ``open`` (every client), ``creator`` (only clients of
    the same identity) or a list of identities by role. All clients and bookies of a cluster use the same value."""

    def __post_init__(self) -> None:
        self._set_directories()
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and (value < 0 or (value == 0 and field.name not in _MAY_BE_ZERO)):
                raise InvalidArgumentError(f"{field.name} must be positive", value=f"{field.name}={value}")
        self._set_ports()
        self._set_tls()
        self._set_security()
        self._set_limits()
        if self.zookeeper_auth_path is not None:
            object.__setattr__(self, "zookeeper_auth_path", Path(self.zookeeper_auth_path))
        parse_acl(self.zookeeper_acl)
        self._check_word("admin_writes", ("off", "loopback", "any"), "which clients may set log levels with PUT")
        if self.bookie_id is not None:
            check_bookie_id(self.bookie_id, "bookie_id")
        if self.segment_size_bytes % _BLOCK:
            raise InvalidArgumentError(
                "segment_size_bytes must be a multiple of 4096", value=f"segment_size_bytes={self.segment_size_bytes}"
            )
        self._check_order("group_bytes_max", "stream_bytes_max")
        self._check_order("stream_bytes_max", "in_flight_bytes_max")
        self._check_order("read_part_bytes", "stream_bytes_max")
        self._check_order("disk_usage_low_water", "disk_usage_threshold")
        self._check_order("compaction_threshold", "major_compaction_threshold")
        if self.disk_usage_threshold > 1:
            raise InvalidArgumentError(
                "disk_usage_threshold is a share of the disk, at most 1", value=f"{self.disk_usage_threshold}"
            )
        if self.major_compaction_threshold >= 1:
            raise InvalidArgumentError(
                "major_compaction_threshold is a share of a segment, below 1: otherwise compaction never ends",
                value=f"{self.major_compaction_threshold}",
            )
        if self.segment_size_bytes < FRAME_BYTES_MAX + 4 * _BLOCK:
            raise InvalidArgumentError(
                "a segment must hold the largest frame and its own headers",
                value=f"segment_size_bytes={self.segment_size_bytes}",
                remedy=f"at least {FRAME_BYTES_MAX + 4 * _BLOCK}",
            )

    def _set_ports(self) -> None:
        for name, above in (("grpc_port", GRPC_PORT_ABOVE), ("direct_port", DIRECT_PORT_ABOVE)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.port and self.port + above)
        ports = {name: getattr(self, name) for name in ("port", "grpc_port", "direct_port")}
        if self.admin_port is None:
            default = self.port + ADMIN_PORT_ABOVE
            fits = self.port and default <= 65535 and default not in ports.values()
            object.__setattr__(self, "admin_port", default if fits else 0)
        ports["admin_port"] = self.admin_port
        for name, port in ports.items():
            if not 0 <= port <= 65535:
                raise InvalidArgumentError("a port is a number from 0 to 65535", value=f"{name}={port}")
        fixed = [port for port in ports.values() if port]
        if len(set(fixed)) < len(fixed):
            value = ", ".join(f"{name}={port}" for name, port in ports.items())
            raise InvalidArgumentError("two services cannot share a port", value=value)

    def _set_directories(self) -> None:
        if self.upkeep_passwords_file is not None:
            object.__setattr__(self, "upkeep_passwords_file", Path(self.upkeep_passwords_file))
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir))
        if isinstance(self.data_dirs, str):
            raise InvalidArgumentError("data_dirs is a list of directories", value=f"data_dirs={self.data_dirs!r}")
        object.__setattr__(self, "data_dirs", tuple(Path(each) for each in self.data_dirs))
        if (self.data_dir is None) is (not self.data_dirs):
            raise InvalidArgumentError(
                "either data_dir or data_dirs must be given",
                value=f"data_dir={self.data_dir}, data_dirs={[*map(str, self.data_dirs)]}",
                remedy='data_dir = "…" for one directory, data_dirs = ["…", "…"] for several',
            )
        if len({os.path.abspath(each) for each in self.directories}) < len(self.directories):
            raise InvalidArgumentError("a data directory is named twice", value=f"data_dirs={self.data_dirs}")

    def _set_tls(self) -> None:
        given = {name for name in _TLS_PATHS if getattr(self, name) is not None}
        for name in given:
            object.__setattr__(self, name, Path(getattr(self, name)))
        if (given and len(given) < len(_TLS_PATHS)) or (self.tls_zookeeper and not given):
            raise InvalidArgumentError(
                "the files of TLS go together",
                value=f"given: {', '.join(sorted(given)) or 'tls_zookeeper alone'}",
                remedy=f"give {', '.join(_TLS_PATHS)}",
            )
        self._check_word("tls_client_auth", CLIENT_AUTHS, "whether clients need a certificate")
        self._check_word("tls_identity", IDENTITY_RULES, "which name of a certificate is the identity")
        if isinstance(self.tls_clients, str):
            raise InvalidArgumentError("tls_clients is a list of identities", value=f"{self.tls_clients!r}")
        object.__setattr__(self, "tls_clients", tuple(self.tls_clients))
        self._set_tokens(bool(given))
        if self.tls_clients and not self._knows_clients:
            raise InvalidArgumentError(
                "tls_clients needs clients that authenticate",
                value=f"tls_clients={self.tls_clients}, tls_client_auth={self.tls_client_auth!r}",
                remedy=f'give {", ".join(_TLS_PATHS)}, and tls_client_auth = "required", or token_keys_path',
            )

    def _set_tokens(self, tls: bool) -> None:
        """Check the settings of tokens: a token needs TLS, and ``tls_client_auth`` says whether a certificate will do
        instead."""
        for name in ("token_keys_path", "token_path"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, Path(value))
                if not tls:
                    raise InvalidArgumentError(
                        "a token is never sent without TLS",
                        value=f"{name}={value}",
                        remedy=f"give {', '.join(_TLS_PATHS)}",
                    )
        if self.token_keys_path is not None and self.tls_client_auth == "required":
            raise InvalidArgumentError(
                "clients with tokens need no certificate",
                value=f'token_keys_path={self.token_keys_path}, tls_client_auth="required"',
                remedy='tls_client_auth = "none": each needs a token; "optional": a token or a certificate',
            )
        if self.token_keys_path is None and self.tls_client_auth == "optional":
            raise InvalidArgumentError(
                "with an optional certificate, a client without one needs a token",
                value='tls_client_auth="optional", and token_keys_path is missing',
                remedy='give token_keys_path; without tokens it is "required", or "none" to let everybody in',
            )
        cares = [name for name in ("auto_recovery", "upkeep") if getattr(self, name)]
        if self.token_keys_path is not None and self.tls_client_auth == "none" and cares and self.token_path is None:
            raise InvalidArgumentError(
                "this bookie needs a token of its own to connect to other bookies",
                value=f'{cares[0]}=true, tls_client_auth="none", and token_path is missing',
                remedy='give token_path, or tls_client_auth = "optional": then its certificate will do',
            )

    @property
    def _knows_clients(self) -> bool:
        """Whether a client has to authenticate."""
        return self.tls_ca_path is not None and (self.tls_client_auth == "required" or self.token_keys_path is not None)

    def _set_security(self) -> None:
        self._check_word("security", SECURITIES, "whether clients may do anything, or only what a role allows")
        if self.grant_keys_path is not None:
            object.__setattr__(self, "grant_keys_path", Path(self.grant_keys_path))
        if self.security == OPEN:
            return
        if not self._knows_clients:
            raise InvalidArgumentError(
                f'security = "{self.security}" needs clients that authenticate',
                value=f"tls_ca_path={self.tls_ca_path}, tls_client_auth={self.tls_client_auth!r}",
                remedy=f'give {", ".join(_TLS_PATHS)}, and tls_client_auth = "required", or token_keys_path',
            )
        if self.grant_keys_path is None:
            raise InvalidArgumentError(
                f'security = "{self.security}" needs a file of keys that all bookies of the cluster share',
                value="grant_keys_path is missing",
                remedy="make it once: openssl rand -hex 32 > FILE; copy it to each bookie",
            )

    def _set_limits(self) -> None:
        if isinstance(self.limits_exempt, str):
            raise InvalidArgumentError("limits_exempt is a list", value=f"limits_exempt={self.limits_exempt!r}")
        object.__setattr__(self, "limits_exempt", tuple(self.limits_exempt))
        if self.audit_path is not None:
            object.__setattr__(self, "audit_path", Path(self.audit_path))
        given = [name for name in _PRINCIPAL_LIMITS if getattr(self, name)]
        if given and not self._knows_clients:
            raise InvalidArgumentError(
                f"{given[0]} needs clients that authenticate",
                value=f"{given[0]}={getattr(self, given[0])}, tls_client_auth={self.tls_client_auth!r}",
                remedy=f"give {', '.join(_TLS_PATHS)}, or limit addresses: {given[0].replace('principal', 'address')}",
            )

    def _check_word(self, name: str, words: Sequence[str], says: str) -> None:
        if getattr(self, name) not in words:
            raise InvalidArgumentError(
                f"{name} says {says}", value=f"{name}={getattr(self, name)!r}", remedy=" or ".join(words)
            )

    def tls(self) -> Tls | None:
        """Return the TLS settings of this process, as a server and as a client; None without TLS. Raises
        InvalidArgumentError for files that cannot be used."""
        if self.tls_ca_path is None:
            return None
        return Tls(
            TlsPaths(
                ca_path=str(self.tls_ca_path),
                certificate_path=str(self.tls_certificate_path),
                key_path=str(self.tls_key_path),
                client_auth=self.tls_client_auth != "none",
            )
        )

    def client_settings(self) -> dict[str, Any]:
        """Return the settings for a client that this bookie opens itself."""
        zookeeper = {"zookeeper_auth_path": self._auth_path, "zookeeper_acl": self.zookeeper_acl}
        if self.tls_ca_path is None:
            return zookeeper
        tls = {**{name: str(getattr(self, name)) for name in _TLS_PATHS}, "tls_zookeeper": self.tls_zookeeper}
        token = {} if self.token_path is None else {"token_path": str(self.token_path)}
        return {**tls, **zookeeper, **token, "security": self.security}

    @property
    def _auth_path(self) -> str:
        return "" if self.zookeeper_auth_path is None else str(self.zookeeper_auth_path)

    @property
    def directories(self) -> tuple[Path, ...]:
        """All data directories; at least one."""
        return self.data_dirs or (self.data_dir or Path(),)

    def _check_order(self, small: str, large: str) -> None:
        if getattr(self, small) > getattr(self, large):
            raise InvalidArgumentError(
                f"{small} must not exceed {large}",
                value=f"{small}={getattr(self, small)}, {large}={getattr(self, large)}",
                remedy=f"lower {small} or raise {large}",
            )

    def space_limits(self) -> SpaceLimits:
        """Return the limits above which the disk is too full for new entries."""
        return SpaceLimits(
            threshold=self.disk_usage_threshold,
            low_water=self.disk_usage_low_water,
            segment_bytes=self.segment_size_bytes,
        )

    def maintenance_limits(self) -> MaintenanceLimits:
        """Return the settings for the maintenance of a data directory."""
        return self._those_of(MaintenanceLimits, space_low_share=self.disk_usage_low_water)

    def collector(self) -> CollectorConfig:
        """Return the settings for the garbage collector, in milliseconds."""
        return CollectorConfig(
            interval_ms=max(1, int(self.gc_interval_s * 1000)), grace_ms=max(1, int(self.gc_grace_s * 1000))
        )

    def machine_limits(self) -> MachineLimits:
        """Return the settings for the machine."""
        return self._those_of(
            MachineLimits,
            recovery_bytes_max=self.in_flight_bytes_max // 4,
            reads_bytes_max=2 * self.reads_active_max * self.read_part_bytes,
        )

    def store_settings(self) -> StoreSettings:
        """Return the settings for sessions with the metadata store."""
        return {
            "timeout_s": self.metadata_timeout_s,
            "session_timeout_s": self.session_timeout_s,
            "tls": self.tls() if self.tls_zookeeper else None,
            "auth_path": self._auth_path,
            "acl": self.zookeeper_acl,
        }

    def server_limits(self) -> ServerLimits:
        """Return the limits for connections and memory."""
        files_kept = _FILES_KEPT + _FILES_KEPT_OF_A_DIRECTORY * len(self.directories)
        return self._those_of(ServerLimits, files_kept=files_kept)

    def client_limits(self) -> ClientLimits:
        """Return the limits for one client."""
        return self._those_of(ClientLimits)

    def admin_limits(self) -> ClientLimits:
        """Return the limits that the admin port applies to its own clients."""
        return ClientLimits(
            requests_per_s_per_address_max=self.requests_per_s_per_address_max,
            requests_per_s_per_principal_max=self.requests_per_s_per_principal_max,
            limits_exempt=self.limits_exempt,
        )

    def _those_of(self, part: Callable[..., T], **others: float) -> T:
        """Return an instance of the dataclass ``part``. Fields with the name of a setting get its value; ``others`` has
        the remaining fields."""
        here = {field.name for field in fields(self)}
        own = {field.name: getattr(self, field.name) for field in fields(cast(Any, part)) if field.name in here}
        return part(**own, **others)


def load_config(path: Path, **overrides: Any) -> BookieConfig:
    """Read the configuration from a TOML file whose keys are the field names; ``overrides`` win.

    Raises InvalidArgumentError for a file that cannot be read, an unknown key, or values that do not fit. The error
    names the file, and the lines of the keys concerned.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError("the configuration file cannot be read", value=f"{path}: {error}") from error
    known = {field.name: field.type for field in fields(BookieConfig)}
    lines = _lines_of(values, text)
    if overrides.keys() & {"data_dir", "data_dirs"}:
        values = {name: value for name, value in values.items() if name not in ("data_dir", "data_dirs")}
    given, values = values, values | overrides
    if unknown := sorted(values.keys() - known.keys(), key=lambda name: lines.get(name, 0)):
        raise InvalidArgumentError(
            f"there is no such setting: {unknown[0]}",
            value=f"{path}, line {lines.get(unknown[0], '?')}",
            remedy=_nearest(unknown[0], known),
        )
    for names in (("data_dir", "data_dirs"), ("metadata_service_uri",)):
        if not any(name in values for name in names):
            raise InvalidArgumentError(f"{names[0]} is missing", value=str(path), remedy=f'add {names[0]} = "…"')
    try:
        for name, value in values.items():
            _check_type(name, value, str(known[name]))
        return BookieConfig(**values)
    except InvalidArgumentError as error:
        about = set(re.findall(r"\w+", f"{error.what} {error.value}")) & given.keys() - overrides.keys()
        places = [f"{name} is in line {lines[name]}" for name in sorted(about, key=lines.__getitem__)]
        error.value = "; ".join(filter(None, (error.value, ", ".join([str(path), *places]))))
        raise


def _lines_of(keys: Iterable[str], text: str) -> dict[str, int]:
    """Return the line in which each key, or the table of that name, begins; 0 if it is not found. tomllib does not
    report lines."""
    lines = text.splitlines()
    found = {}
    for key in keys:
        begins = re.compile(rf"""\s*(\[+\s*)?["']?{re.escape(key)}["']?\s*[=.\]]""")
        found[key] = next((number for number, line in enumerate(lines, 1) if begins.match(line)), 0)
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the setting that a misspelled name probably means. It also recognizes the spelling of Apache's
    keys (``bookiePort``) and of options (``admin-port``)."""
    spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
    near = get_close_matches(spelled, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "docs/configuration.md has all settings"


def _check_type(name: str, value: object, annotation: str) -> None:
    wanted: tuple[type, ...] = (str,)
    if annotation == "bool":
        wanted = (bool,)
    elif annotation == "int":
        wanted = (int,)
    elif annotation == "int | None":
        wanted = (int, type(None))
    elif annotation == "float":
        wanted = (int, float)
    elif annotation == "Path | None":
        wanted = (str, Path, type(None))
    elif annotation.startswith("tuple"):
        wanted = (list, tuple)
    elif "None" in annotation:
        wanted = (str, type(None))
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted != (bool,)):
        raise InvalidArgumentError(
            f"{name} has another type", value=f"{name}={value!r}", remedy=f"wanted: {annotation}"
        )
