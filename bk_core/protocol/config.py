# SPDX-License-Identifier: Apache-2.0
"""Times and limits of the machines. The client's configuration has them under the same names, and checks them."""

from __future__ import annotations

from dataclasses import dataclass

QUORUM_SETTLE_MS = 60_000
"""The milliseconds between the two looks for the end of an open ledger above its LAC, unless the caller gives others.
This is twice the client timeout of Pulsar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """The limits of a machine that sends frames to an ensemble and writes the ledger's record."""

    reconnect_budget_ms: float = 2_000
    retry_delay_ms: float = 50
    add_timeout_ms: float = 10_000
    slow_bookie_bytes_max: int = 64 << 20
    close_linger_ms: float = 2_000
    ensemble_changes_max: int = 20
    metadata_retry_ms: float = 250
    metadata_retries_max: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig(DeliveryConfig):
    """The limits of a writer.

    With ``delay_ensemble_change`` the writer replaces a failed bookie only once some write set has no ack quorum
    without it. With ``allow_degraded_writes`` a writer that finds no spare bookie continues while every write set has
    an ack quorum, and looks for spares every ``spare_retry_ms``. Both options leave entries with fewer than Qw copies;
    the close marks the ledger as underreplicated. ``ensemble_changes_max`` is the maximum number of ensemble changes in
    a row without a confirmed entry in between.
    """

    explicit_lac_delay_ms: float = 5
    add_quorum_timeout_ms: float = 60_000
    delay_ensemble_change: bool = False
    allow_degraded_writes: bool = False
    spare_retry_ms: float = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig(DeliveryConfig):
    """The limits of one recovery. ``attempts_max`` is the maximum number of its attempts. ``read_window_entries`` is
    the number of entry ids in one read of a bookie. ``read_bytes_max`` limits one answer. Recovery reads no further
    while more than ``write_back_bytes_max`` bytes wait for acks."""

    attempts_max: int = 10
    read_window_entries: int = 1 << 14
    read_bytes_max: int = 4 << 20
    write_back_bytes_max: int = 16 << 20
