# SPDX-License-Identifier: Apache-2.0
"""The limits, the request numbers and the budget of bytes that checks and copies share. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from bk_core.protocol.config import DeliveryConfig
from bk_core.protocol.replication.events import SpendBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig(DeliveryConfig):
    """Times and limits of the repair of one ledger.

    ``grace_ms`` is the time that the writer of an open ledger has to replace a lost bookie before the ledger is
    recovered. ``rounds_max`` is the number of times that a repair may change the record or read it again, in addition
    to once for each fragment.
    """

    grace_ms: float = 30_000
    read_bytes_max: int = 1 << 20
    copy_bytes_max: int = 8 << 20
    check_window_entries: int = 1 << 12
    speculative_ms: float = 2_000
    rounds_max: int = 20


REQUESTS_MAX = 1 << 24
"""The number of request ids that each check or copy gets, more than it can use. The ids of two of them never overlap,
so a late answer to one never reaches another."""


def request_bases() -> Iterator[int]:
    """Yield for each check or copy the number before its first request id."""
    return count(0, REQUESTS_MAX)


class Purse:
    """Lets a check or a copy read more only after the budget was charged for what it has read."""

    __slots__ = ("_asked", "_owed", "_paid")

    def __init__(self) -> None:
        self._owed, self._paid, self._asked = 0, False, False

    def owe(self, size: int) -> None:
        self._owed += size
        self._paid = False

    def pay(self) -> list[SpendBudget]:
        """Charge the bytes read since the last charge, to be allowed to read more. Return no effect if more is granted
        already or a charge is pending."""
        if self._paid or self._asked:
            return []
        self._asked, owed, self._owed = True, self._owed, 0
        return [SpendBudget(owed)]

    def granted(self) -> None:
        self._asked, self._paid = False, self._owed == 0

    def settle(self) -> list[SpendBudget]:
        """Charge the last bytes. The caller does not wait for the answer."""
        owed, self._owed = self._owed, 0
        return [SpendBudget(owed)] if owed else []

    @property
    def may_read(self) -> bool:
        return self._paid
