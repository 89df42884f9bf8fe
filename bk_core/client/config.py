# SPDX-License-Identifier: Apache-2.0
"""The client's configuration: one frozen dataclass, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bk_core.access.roles import MIXED, OPEN, SECURE, SECURITIES
from bk_core.access.secret_files import TokenFile
from bk_core.access.tls import ENDPOINT_IDENTIFICATIONS, HTTPS, Tls, TlsPaths
from bk_core.access.zookeeper_acl import ACL_OPEN, parse_acl
from bk_core.errors import InvalidArgumentError
from bk_core.metadata import StoreSettings
from bk_core.model import BOOKIE_RPC
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LANES
from bk_core.transport.wallet import Wallet
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """All settings of a client. A name says its unit: bytes, ``_ms`` or ``_s``. The text under a setting explains
    it."""

    window_bytes_max: int = 16 << 20
    """The maximum number of unconfirmed bytes of one writer; beyond it ``append`` waits."""
    slow_bookie_bytes_max: int = 64 << 20
    """The maximum number of bytes that a writer keeps for its slowest bookie; beyond it the writer waits (P3)."""
    process_window_bytes_max: int = 256 << 20
    """The maximum number of unconfirmed bytes and bytes kept for slow bookies, of all writers of this process together.
    The writers share it fairly. Beyond it each writer may hold one entry. If several clients of a process set it, the
    smallest value applies."""
    frame_bytes: int = 1 << 20
    """Small entries are joined into frames of about this size, at most 4 MiB."""
    add_timeout_ms: float = 10_000
    """How long a writer waits for one bookie's ack before it treats the bookie as failed."""
    add_quorum_timeout_ms: float = 60_000
    """How long an entry may be without an ack quorum, for any reason. Then the writer ends with QuorumTimeoutError."""
    delay_ensemble_change: bool = False
    """Replace a failed bookie only once some write set has no ack quorum without it. Until then entries have fewer
    copies, and the close marks the ledger as under-replicated."""
    allow_degraded_writes: bool = False
    """If no spare bookie is left, keep writing while every write set has an ack quorum, instead of ending with
    NotEnoughBookiesError. Entries then have fewer copies, and the close marks the ledger as under-replicated."""
    reconnect_budget_ms: float = 2_000
    """How long a writer tries to reach a bookie again after a broken connection, before it treats the bookie as failed.
    """
    explicit_lac_delay_ms: float = 5
    """How long a writer is idle before it sends its last add confirmed to the bookies."""
    close_linger_ms: float = 2_000
    """How long a close waits for the acks of bookies that an ack quorum did not need."""
    read_timeout_ms: float = 10_000
    """How long a read waits for the answer of one bookie."""
    read_bytes_max: int = 8 << 20
    """The maximum number of bytes of entries that one read request asks for."""
    speculative_read_ms: float = 2_000
    """How long a bookie may be silent during a read before another one is asked as well."""
    lanes: str = ",".join(LANES)
    """The wires over which the client talks to bookies, comma-separated, best first. For each bookie the client uses
    the first one that the bookie offers."""
    batch_reads: bool = True
    """Read long ranges from Apache's bookies in batches, over a second connection of version 2 to each."""
    lac_timeout_ms: float = 5_000
    """How long the client waits for a bookie when it asks for a ledger's last add confirmed, writes it, or fences the
    ledger."""
    lac_stall_ms: float = 2_000
    """How long the last add confirmed of a ledger may stay the same before a reader that follows the ledger asks all
    its bookies."""
    watch_timeout_ms: float = 10_000
    """How long a reader that follows a ledger waits for one bookie to report a new last add confirmed, before it asks
    the bookie again."""
    quarantine_ms: float = 30_000
    """How long a bookie is avoided after it failed: new ensembles take it only if too few other bookies are left, and
    reads ask it last."""
    close_timeout_ms: float = 60_000
    """How long closing a writer may take in all. Then it raises QuorumTimeoutError, and the outcome is unknown."""
    delete_hint_timeout_ms: float = 500
    """How long a deletion waits at most while it tells the bookies."""
    metadata_timeout_s: float = 8.0  # a wrong address is then reported within 10 s, interpreter start included
    """How long a call to the metadata store may take."""
    session_timeout_s: float = 10.0
    """How long a silent client keeps its session with the metadata store."""
    rack_script: str = ""
    """A program that gets hosts as arguments and prints the rack of each (docs/python.md)."""
    rack_file: str = ""
    """A file in which each line has a host and its rack (docs/python.md)."""
    racks_min: int = 2
    """How many racks the members of a write set are spread over, if the cluster has that many."""
    enforce_racks: bool = False
    """Refuse an ensemble in which a write set would have members in fewer racks. Bookies whose rack is unknown are then
    not used, because they may stand in the same rack as the other members."""
    disk_weight_placement: bool = False
    """Choose bookies with more free space more often."""
    disk_weight_ms: float = 60_000
    """How long the free space that bookies reported is used before they are asked again."""
    slow_operation_ms: float = 1_000
    """An append, a read or a recovery that takes this long is logged with what it waited for, at most a few lines a
    second. 0 logs none."""
    tls_ca_path: str = ""
    """A PEM file with the trusted authorities. It turns TLS on for all bookies and lanes: nothing is sent unencrypted,
    whatever a bookie offers. A renewed file is used without a restart (docs/security.md)."""
    tls_certificate_path: str = ""
    """A PEM file with this client's certificate, for bookies that require one. A renewed file is used without a
    restart."""
    tls_key_path: str = ""
    """A PEM file with the certificate's private key, not encrypted. A renewed file is used without a restart."""
    tls_endpoint_identification: str = HTTPS
    """Whether a bookie's certificate must name the bookie's host (``https``) or need not (``none``)."""
    tls_zookeeper: bool = False
    """Speak TLS to the metadata service, too."""
    security: str = OPEN
    """``secure``: use only bookies that check rights (docs/security.md), and show them grants. ``mixed``: also use
    Apache's bookies, which check no rights, over TLS."""
    zookeeper_auth_path: str = ""
    """A file with this client's credentials for ZooKeeper, read again for each connection (docs/security.md)."""
    zookeeper_acl: str = ACL_OPEN
    """The ACL of the nodes that the client creates in ZooKeeper: ``open`` (every client), ``creator`` (only clients of
    the same identity) or a list of identities by role. All clients and bookies of a cluster must use the same value."""
    token_path: str = ""
    """A file with the token that identifies this client to bookies that accept tokens. The client reads it again for
    each connection, and never sends it without TLS."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name == "slow_operation_ms" else 1e-9
            if field.type not in ("bool", "str") and getattr(self, field.name) < least:
                raise InvalidArgumentError(
                    f"{field.name} must be positive", value=f"{field.name}={getattr(self, field.name)}"
                )
        for small, large in (
            ("frame_bytes", "window_bytes_max"),
            ("window_bytes_max", "slow_bookie_bytes_max"),
            ("window_bytes_max", "process_window_bytes_max"),
            ("reconnect_budget_ms", "add_timeout_ms"),
            ("add_timeout_ms", "add_quorum_timeout_ms"),
            ("explicit_lac_delay_ms", "lac_stall_ms"),
        ):
            if getattr(self, small) > getattr(self, large):
                raise InvalidArgumentError(
                    f"{small} must not exceed {large}",
                    value=f"{small}={getattr(self, small)}, {large}={getattr(self, large)}",
                    remedy=f"lower {small} or raise {large}",
                )
        self._lanes()
        self._check_security()
        parse_acl(self.zookeeper_acl)
        if self._tls_paths() is None and self.token_path:
            raise InvalidArgumentError(
                "a token is never sent without TLS", value=f"token_path={self.token_path}", remedy="give tls_ca_path"
            )
        if self.frame_bytes > FRAME_BYTES_MAX // 2:
            raise InvalidArgumentError(
                "frame_bytes must leave room for columns",
                value=f"frame_bytes={self.frame_bytes}",
                remedy="at most 4 MiB",
            )

    def _lanes(self) -> tuple[str, ...]:
        lanes = tuple(lane.strip() for lane in self.lanes.split(","))
        if len(set(lanes)) < len(lanes) or not set(lanes) <= set(LANES):
            raise InvalidArgumentError(
                "lanes must name known lanes, and each lane at most once",
                value=f"lanes={self.lanes}",
                remedy=f"of {', '.join(LANES)}",
            )
        return lanes

    def caller(self, instance_id: str) -> Caller:
        """Return the settings of connections to the bookies of a cluster."""
        wallet = None if self.security == OPEN else Wallet()
        return Caller(
            instance_id,
            lanes=self._lanes(),
            batch_reads=bool(self.batch_reads),
            tls=self.tls(),
            wallet=wallet,
            mixed=self.security == MIXED,
            token=self.token(),
        )

    def token(self) -> TokenFile | None:
        """Return the file of this client's token, or None if it has no token."""
        return TokenFile(self.token_path) if self.token_path else None

    def _check_security(self) -> None:
        if self.security not in SECURITIES:
            raise InvalidArgumentError(
                "security has an unknown value",
                value=f"security={self.security!r}",
                remedy=" or ".join(SECURITIES),
            )
        if self.security == OPEN:
            return
        if not self.tls_certificate_path and not self.token_path:
            raise InvalidArgumentError(
                f"security={self.security} needs a certificate or a token, by which bookies identify this client",
                remedy="give tls_ca_path, and tls_certificate_path with tls_key_path, or token_path",
            )
        if self.security == SECURE and self._lanes() == (BOOKIE_RPC,):
            raise InvalidArgumentError(
                "Apache's wire has no grants, so a client that uses it alone cannot want security=secure",
                value=f"lanes={self.lanes}",
                remedy="leave lanes out, or give security=open: bookies that check roles do so in any case",
            )

    def tls(self) -> Tls | None:
        """Return what connections need for TLS, or None if they are not encrypted. Raises InvalidArgumentError for
        unusable files."""
        paths = self._tls_paths()
        return None if paths is None else Tls(paths)

    def _tls_paths(self) -> TlsPaths | None:
        if self.tls_endpoint_identification not in ENDPOINT_IDENTIFICATIONS:
            raise InvalidArgumentError(
                "tls_endpoint_identification has an unknown value",
                value=f"tls_endpoint_identification={self.tls_endpoint_identification!r}",
                remedy=" or ".join(ENDPOINT_IDENTIFICATIONS),
            )
        if not (self.tls_ca_path or self.tls_certificate_path or self.tls_key_path or self.tls_zookeeper):
            return None
        return TlsPaths(
            ca_path=self.tls_ca_path,
            certificate_path=self.tls_certificate_path,
            key_path=self.tls_key_path,
            verify_host=self.tls_endpoint_identification == HTTPS,
        )

    def store_settings(self) -> StoreSettings:
        """Return the settings of the session with the metadata store."""
        return {
            "timeout_s": self.metadata_timeout_s,
            "session_timeout_s": self.session_timeout_s,
            "tls": self.tls() if self.tls_zookeeper else None,
            "auth_path": self.zookeeper_auth_path,
            "acl": self.zookeeper_acl,
        }

    def writer(self) -> WriterConfig:
        """Return the writer machine's limits. Those that are settings have the same names there."""
        settings = {each.name for each in fields(self)}
        return WriterConfig(**{name: getattr(self, name) for f in fields(WriterConfig) if (name := f.name) in settings})

    def recovery(self) -> RecoveryConfig:
        return RecoveryConfig(
            add_timeout_ms=self.add_timeout_ms,
            reconnect_budget_ms=self.reconnect_budget_ms,
            close_linger_ms=self.close_linger_ms,
            read_bytes_max=min(self.read_bytes_max, 4 << 20),
            write_back_bytes_max=self.window_bytes_max,
        )
