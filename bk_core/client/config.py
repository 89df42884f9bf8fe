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
    """All settings of a client. The name of a setting contains its unit: bytes, ``ms`` (milliseconds) or ``s``
    (seconds). The text under a setting explains it."""

    window_bytes_max: int = 16 << 20
    """The maximum number of unconfirmed bytes of one writer. At this limit ``append`` waits."""
    slow_bookie_bytes_max: int = 64 << 20
    """The maximum number of bytes that a writer keeps for its slowest bookie. Above this limit the writer waits
    (P3)."""
    process_window_bytes_max: int = 256 << 20
    """The maximum number of bytes that all writers of this process hold together, unconfirmed or kept for slow bookies.
    The writers share this budget fairly. When it is used up, each writer may still hold one entry. If several clients
    of a process set a budget, the smallest one applies."""
    frame_bytes: int = 1 << 20
    """The size of the frames into which the client joins small entries, at most 4 MiB."""
    add_timeout_ms: float = 10_000
    """The time that a writer waits for one bookie's ack before it treats the bookie as failed."""
    add_quorum_timeout_ms: float = 60_000
    """The time that a writer waits for the ack quorum of an entry, for any reason. Then it ends with
    QuorumTimeoutError."""
    delay_ensemble_change: bool = False
    """Replace a failed bookie only once some write set has no ack quorum without it. Until then entries have fewer
    copies, and the close marks the ledger as under-replicated."""
    allow_degraded_writes: bool = False
    """If no spare bookie is left, keep writing while every write set has an ack quorum, instead of ending with
    NotEnoughBookiesError. Entries then have fewer copies, and the close marks the ledger as under-replicated."""
    reconnect_budget_ms: float = 2_000
    """The time that a writer tries to reach a bookie again after a broken connection, before it treats the bookie as
    failed."""
    explicit_lac_delay_ms: float = 5
    """The time that a writer is idle before it sends its last add confirmed to the bookies."""
    close_linger_ms: float = 2_000
    """The time that a close waits for acks that no ack quorum needs, so that every entry gets all its copies."""
    read_timeout_ms: float = 10_000
    """The time that a read waits for the answer of one bookie."""
    read_bytes_max: int = 8 << 20
    """The maximum number of bytes of entries that one read request asks for."""
    speculative_read_ms: float = 2_000
    """The time that a read waits for a silent bookie before it also asks another bookie."""
    lanes: str = ",".join(LANES)
    """The lanes over which the client talks to bookies, comma-separated, best first. For each bookie the client uses
    the first lane of this list that the bookie offers."""
    batch_reads: bool = True
    """Read long ranges from Apache's bookies in batches. This takes a second connection to each bookie, which speaks
    version 2 of Apache's protocol."""
    lac_timeout_ms: float = 5_000
    """The time that the client waits for a bookie's answer when it reads or writes a ledger's last add confirmed, or
    fences the ledger."""
    lac_stall_ms: float = 2_000
    """A reader that follows a ledger asks all its bookies when the last add confirmed has not changed for this time."""
    watch_timeout_ms: float = 10_000
    """The time that a reader that follows a ledger waits for one bookie to report a new last add confirmed. Then it
    asks the bookie again."""
    quarantine_ms: float = 30_000
    """The time that a client avoids a bookie that failed. New ensembles get the bookie only if too few other bookies
    are left, and reads ask it last."""
    close_timeout_ms: float = 60_000
    """The maximum time that closing a writer takes. Then it raises QuorumTimeoutError, and the outcome is unknown."""
    delete_hint_timeout_ms: float = 500
    """The maximum time that a deletion waits while it sends its hints to the bookies."""
    metadata_timeout_s: float = 8.0  # a wrong address is then reported within 10 s, interpreter start included
    """The maximum time that a call to the metadata store takes."""
    session_timeout_s: float = 10.0
    """The time after which the metadata store ends the session of a silent client."""
    rack_script: str = ""
    """A program that gets hosts as arguments and prints the rack of each (docs/python.md)."""
    rack_file: str = ""
    """A file in which each line has a host and its rack (docs/python.md)."""
    racks_min: int = 2
    """The number of racks over which the members of a write set are spread, if the cluster has that many."""
    enforce_racks: bool = False
    """Refuse an ensemble in which a write set would have members in fewer than ``racks_min`` racks. Bookies whose rack
    is unknown are then not used, because they may stand in the same rack as the other members."""
    disk_weight_placement: bool = False
    """Choose bookies with more free space more often."""
    disk_weight_ms: float = 60_000
    """The time that the client uses the free space that bookies reported, before it asks them again."""
    slow_operation_ms: float = 1_000
    """The client logs each append, read or recovery that takes this long or longer, at most a few lines a second. 0
    logs none."""
    tls_ca_path: str = ""
    """A PEM file with the trusted authorities. It turns TLS on for all bookies and lanes: the client then sends nothing
    unencrypted, whatever a bookie offers. A renewed file is used without a restart (docs/security.md)."""
    tls_certificate_path: str = ""
    """A PEM file with this client's certificate, for bookies that require one. A renewed file is used without a
    restart."""
    tls_key_path: str = ""
    """A PEM file with the certificate's private key, not encrypted. A renewed file is used without a restart."""
    tls_endpoint_identification: str = HTTPS
    """``https``: a bookie's certificate must name the bookie's host. ``none``: it need not."""
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
        """Return the part of these settings that connections to the bookies of a cluster need."""
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
        """Return the TLS settings of connections, or None if connections are not encrypted. Raises InvalidArgumentError
        for unusable files."""
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
        """Return the limits of the writer's machine. Each limit that is a setting has the setting's name."""
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
