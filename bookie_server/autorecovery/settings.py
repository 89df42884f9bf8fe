# SPDX-License-Identifier: Apache-2.0
"""Settings of auto-recovery."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bk_core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryConfig:
    """The settings of auto-recovery. ``replication_bytes_per_s`` bounds the rate at which all repairs of this process
    read and copy; 0 means no bound. ``repairs_max`` bounds the number of repairs at the same time.
    ``lost_bookie_delay_s`` is the time for which a bookie may be away before it counts as lost; a delay that is set for
    the whole cluster (``bk replication delay``) replaces it. ``open_ledger_grace_s`` is the time that the writer of an
    open ledger has to replace a lost bookie itself. A blocked repair is tried again after ``retry_s``, and then after
    longer and longer pauses, up to ``retry_max_s``. Marks, bookies and the election are read every ``poll_s``. All
    ledgers are audited when a bookie is lost or drained, a minute after that, and every ``rescan_s``. Every ``check_s``
    the auditor reads each copy of each closed ledger and compares the digests, under the same rate; 0 means never."""

    replication_bytes_per_s: float = 100e6
    repairs_max: int = 8
    lost_bookie_delay_s: float = 60.0
    open_ledger_grace_s: float = 30.0
    retry_s: float = 5.0
    retry_max_s: float = 600.0
    poll_s: float = 5.0
    rescan_s: float = 3_600.0
    check_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name in ("repairs_max", "poll_s", "retry_s")):
                raise InvalidArgumentError(f"{field.name} must be positive", value=f"{field.name}={value}")
        if self.retry_s > self.retry_max_s:
            raise InvalidArgumentError(
                "retry_s must not exceed retry_max_s", value=f"retry_s={self.retry_s}, retry_max_s={self.retry_max_s}"
            )
