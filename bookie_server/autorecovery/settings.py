# SPDX-License-Identifier: Apache-2.0
"""Settings of auto-recovery."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bk_core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryConfig:
    """``replication_bytes_per_s``: read and copied by all repairs of this process, 0 for no bound. ``repairs_max``: at
    once. ``lost_bookie_delay_s``: how long a bookie may be away; what is set for the whole cluster
    (``bk replication delay``) wins. ``open_ledger_grace_s``: how long the writer of an open ledger has to replace a
    bookie itself. A repair that is blocked is tried again after ``retry_s``, and then less and less often, at least
    every ``retry_max_s``. Marks, bookies and the election are looked at every ``poll_s``; all ledgers when a bookie is
    lost or drained, a minute later, and every ``rescan_s``. Every ``check_s`` the auditor has each copy of each closed
    ledger read and its digests compared, under the same rate; 0: never."""

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
