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
    """Times in milliseconds or seconds, sizes in bytes, as the names say. What each setting means stands under it."""

    window_bytes_max: int = 16 << 20
    """Most unconfirmed bytes of one writer; beyond it ``append`` waits."""
    slow_bookie_bytes_max: int = 64 << 20
    """Most bytes that a writer keeps for its slowest bookie; beyond it the writer waits (P3)."""
    process_window_bytes_max: int = 256 << 20
    """The bound of both for all writers of this process, which share it fairly. Beyond it each writer may hold one
    entry. Of several clients in a process the smallest bound holds."""
    frame_bytes: int = 1 << 20
    """Small entries are joined into frames of about this size, at most 4 MiB."""
    add_timeout_ms: float = 10_000
    """How long a writer waits for one bookie's ack before it takes the bookie for failed."""
    add_quorum_timeout_ms: float = 60_000
    """An entry that has no ack quorum after so long, for any reason, ends the writer with QuorumTimeoutError."""
    delay_ensemble_change: bool = False
    """Replace a failed bookie only once an ack quorum needs it. Until then entries have fewer copies, and the close
    marks the ledger."""
    allow_degraded_writes: bool = False
    """Without spare bookies, go on while every write set has an ack quorum, instead of ending with
    NotEnoughBookiesError. Such entries have fewer copies, and the close marks the ledger."""
    reconnect_budget_ms: float = 2_000
    """How long a writer tries to reach a bookie again after a broken connection, before it takes the bookie for failed.
    """
    explicit_lac_delay_ms: float = 5
    """A writer that is idle for so long tells the bookies its last add confirmed."""
    close_linger_ms: float = 2_000
    """How long a close waits for the acks of bookies that an ack quorum did not need."""
    read_timeout_ms: float = 10_000
    """How long a read waits for the answer of one bookie."""
    read_bytes_max: int = 8 << 20
    """Most bytes of entries that one request for reading asks for."""
    speculative_read_ms: float = 2_000
    """After so long a silence of a bookie another one is asked, too."""
    lanes: str = ",".join(LANES)
    """The wires over which bookies are talked to, comma-separated, best first. Of those that a bookie offers the first
    one is used."""
    batch_reads: bool = True
    """Read long ranges from Apache's bookies in batches, over a second connection of version 2 to each."""
    lac_timeout_ms: float = 5_000
    """How long the question for a ledger's last add confirmed waits for its bookies."""
    lac_stall_ms: float = 2_000
    """A reader that follows a ledger asks all bookies of it when the last add confirmed has not moved for so long."""
    watch_timeout_ms: float = 10_000
    """How long a reader that follows a ledger waits for one bookie's word of a new last add confirmed before it asks
    again."""
    quarantine_ms: float = 30_000
    """A bookie that failed is not chosen for so long, unless too few others are left."""
    close_timeout_ms: float = 60_000
    """How long a close of a writer waits for everything; then the ledger is not closed, and the outcome is unknown."""
    delete_hint_timeout_ms: float = 500
    """Most time that a deletion waits to tell the bookies."""
    metadata_timeout_s: float = 8.0  # so that a wrong address is reported within 10 s, interpreter start included
    """Deadline of a call to the metadata store."""
    session_timeout_s: float = 10.0
    """After so long without a word the metadata store ends the client's session."""
    rack_script: str = ""
    """A program that prints the rack of each host that it is given (docs/python.md)."""
    rack_file: str = ""
    """A file of lines with a host and its rack (docs/python.md)."""
    racks_min: int = 2
    """Racks in which the members of a write set are, where there are so many."""
    enforce_racks: bool = False
    """Make no ledger at all where a write set would have members in fewer racks. Bookies whose rack is unknown are not
    used then: they may stand in the rack of the others."""
    disk_weight_placement: bool = False
    """Choose bookies with more free space more often."""
    disk_weight_ms: float = 60_000
    """How often bookies are asked for their free space, at most."""
    slow_operation_ms: float = 1_000
    """An append, a read or a recovery that takes so long is logged with what it waited for, a few lines a second at
    most. 0: none."""
    tls_ca_path: str = ""
    """Turns TLS on, for all bookies and lanes: a file with the authorities that are trusted, in PEM. Then nothing is
    sent in plain, whatever a bookie says. Renewed files are taken without a restart (docs/security.md)."""
    tls_certificate_path: str = ""
    """This client's certificate, in PEM, where the bookies want one. A renewed file is taken without a restart."""
    tls_key_path: str = ""
    """The key of this certificate, in PEM, not encrypted. A renewed file is taken without a restart."""
    tls_endpoint_identification: str = HTTPS
    """Whether a bookie's certificate must have the name of its host (``https``) or need not (``none``)."""
    tls_zookeeper: bool = False
    """Speak TLS to the metadata service, too."""
    security: str = OPEN
    """``secure``: use only bookies that check rights (docs/security.md), and show them grants. ``mixed``: also use
    Apache's bookies, which check no rights, over TLS."""
    zookeeper_auth_path: str = ""
    """A file with this client's credentials for ZooKeeper, read again for each connection (docs/security.md)."""
    zookeeper_acl: str = ACL_OPEN
    """The ACL of the nodes that the client creates in ZooKeeper: ``open`` (every client), ``creator`` (only clients of
    the same identity) or a list of identities by role. All clients and bookies of a cluster use the same value."""
    token_path: str = ""
    """A file with the token that identifies this client to bookies that accept tokens. It is read anew for each
    connection, and is never sent without TLS."""

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
                "lanes names each lane at most once", value=f"lanes={self.lanes}", remedy=f"of {', '.join(LANES)}"
            )
        return lanes

    def caller(self, instance_id: str) -> Caller:
        """The settings for connections to the bookies of a cluster."""
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
        """Where its token is; None if it has none."""
        return TokenFile(self.token_path) if self.token_path else None

    def _check_security(self) -> None:
        if self.security not in SECURITIES:
            raise InvalidArgumentError(
                "security says whether bookies must check rights",
                value=f"security={self.security!r}",
                remedy=" or ".join(SECURITIES),
            )
        if self.security == OPEN:
            return
        if not self.tls_certificate_path and not self.token_path:
            raise InvalidArgumentError(
                f"security={self.security} needs a certificate or a token, by which bookies know this client",
                remedy="give tls_ca_path, and tls_certificate_path with tls_key_path, or token_path",
            )
        if self.security == SECURE and self._lanes() == (BOOKIE_RPC,):
            raise InvalidArgumentError(
                "Apache's wire has no grants, so a client that uses it alone cannot want security=secure",
                value=f"lanes={self.lanes}",
                remedy="leave lanes out, or give security=open: its bookies ask for roles all the same",
            )

    def tls(self) -> Tls | None:
        """What its connections need for TLS; None if they are plain. Raises InvalidArgumentError for files that cannot
        be used."""
        paths = self._tls_paths()
        return None if paths is None else Tls(paths)

    def _tls_paths(self) -> TlsPaths | None:
        if self.tls_endpoint_identification not in ENDPOINT_IDENTIFICATIONS:
            raise InvalidArgumentError(
                "tls_endpoint_identification says whether a bookie's certificate must have the name of its host",
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
        """The settings for the session with the metadata store."""
        return {
            "timeout_s": self.metadata_timeout_s,
            "session_timeout_s": self.session_timeout_s,
            "tls": self.tls() if self.tls_zookeeper else None,
            "auth_path": self.zookeeper_auth_path,
            "acl": self.zookeeper_acl,
        }

    def writer(self) -> WriterConfig:
        """The machine's bounds, as far as they are settings: they have the same names."""
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
