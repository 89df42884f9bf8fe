# SPDX-License-Identifier: Apache-2.0
"""What a check and a copy share: bounds, numbers of requests, and the budget of bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from bk_core.protocol.config import DeliveryConfig
from bk_core.protocol.replication.events import SpendBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig(DeliveryConfig):
    """Times and bounds of the repair of one ledger.

    ``grace_ms``: how long the writer of an open ledger has to replace a lost bookie itself, before the ledger is
    recovered. ``rounds_max``: how often the repair may find that the ledger's record was changed meanwhile.
    """

    grace_ms: float = 30_000
    read_bytes_max: int = 1 << 20
    copy_bytes_max: int = 8 << 20
    check_window_entries: int = 1 << 12
    speculative_ms: float = 2_000
    rounds_max: int = 20


REQUESTS_MAX = 1 << 24
"""More requests than a part of a repair makes; their numbers do not overlap, so late answers find nobody."""


def request_bases() -> Iterator[int]:
    """The number before the first request of each part."""
    return count(0, REQUESTS_MAX)


class Purse:
    """Nothing is read until what was read before is paid for."""

    __slots__ = ("_asked", "_owed", "_paid")

    def __init__(self) -> None:
        self._owed, self._paid, self._asked = 0, False, False

    def owe(self, size: int) -> None:
        self._owed += size
        self._paid = False

    def pay(self) -> list[SpendBudget]:
        """Asks whether more may be read, unless that is known or asked already."""
        if self._paid or self._asked:
            return []
        self._asked, owed, self._owed = True, self._owed, 0
        return [SpendBudget(owed)]

    def granted(self) -> None:
        self._asked, self._paid = False, self._owed == 0

    def settle(self) -> list[SpendBudget]:
        """Pays for the last bytes; nothing waits for the answer."""
        owed, self._owed = self._owed, 0
        return [SpendBudget(owed)] if owed else []

    @property
    def may_read(self) -> bool:
        return self._paid
