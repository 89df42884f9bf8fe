# SPDX-License-Identifier: Apache-2.0
"""Decides in mode ``secure`` what the client of one stream may do, by the grants that the client has sent on the
stream.

A grant is verified when the client sends it. The grant for a ledger is looked up once for each session, read or call,
and never for a frame.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bk_core.access.grants import NO_LEDGER, GrantRefused
from bk_core.access.needs import Need, On
from bk_core.access.roles import Right
from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.ports.access.authority import Authority, denial

logger = logging.getLogger(__name__)

GRANTS_MAX = 16_384
"""The maximum number of ledgers whose grants a stream remembers. Above it, grants that have ended are dropped, and then
the oldest grants."""

Refusal = tuple[Reason, str]


class Gate:
    """Decides what the client of one stream may do. ``identity`` is the client's identity, or empty if the client has
    not authenticated."""

    def __init__(self, authority: Authority, identity: str) -> None:
        self._authority, self._identity = authority, identity
        self._shown: dict[LedgerId, tuple[Right, int]] = {}  # rights, and the end of the grant in ms since 1970
        self._refused = ""

    def show(self, grants: Iterable[bytes]) -> None:
        """Verify and remember grants that the client has sent. A grant that is refused counts as not sent."""
        for grant in grants:
            try:
                found = self._authority.verify(grant, self._identity)
            except GrantRefused as refused:
                if not self._refused:
                    logger.warning("a grant that %s shows is refused: %s", self._identity, refused)
                self._refused = str(refused)
                continue
            self._shown.pop(found.ledger_id, None)
            self._shown[found.ledger_id] = found.rights, found.until_ms
            if len(self._shown) > GRANTS_MAX:
                self._drop()

    def _drop(self) -> None:
        now_ms = self._authority.now_ms()
        self._shown = {ledger: shown for ledger, shown in self._shown.items() if shown[1] > now_ms}
        while len(self._shown) > GRANTS_MAX:
            del self._shown[next(iter(self._shown))]

    def refusal(self, need: Need | None, ledger_id: LedgerId = NO_LEDGER) -> Refusal | None:
        """Return the refusal for a request with this need, or None if the client may make it."""
        if not self._identity:
            return Reason.UNAUTHENTICATED, "this client has shown no identity"
        if need is None:
            return Reason.PERMISSION_DENIED, "no client is allowed this: no rule says which right it needs"
        if need.on in (On.FREE, On.IDENTITY):
            return None
        if need.on is On.ANYWHERE:
            ledger_id = NO_LEDGER
        elif need.on is not On.LEDGER or ledger_id < 0:
            return Reason.PERMISSION_DENIED, "no client is allowed this on a lane"
        rights, until_ms = self._shown.get(ledger_id, (Right.NONE, 0))
        if until_ms <= self._authority.now_ms():
            why = f" (the last one was refused: {self._refused})" if self._refused else ""
            what = "this" if ledger_id == NO_LEDGER else f"ledger {ledger_id}"
            return Reason.GRANT_NEEDED, f"{self._identity} has shown no grant for {what}{why}"
        if not need.right or need.right not in rights:
            return Reason.PERMISSION_DENIED, denial(self._identity, need.right, ledger_id)
        return None

    def left_ms(self, ledger_id: LedgerId) -> int:
        """Return the number of milliseconds for which the grant for this ledger is still valid, or 0 without a
        grant."""
        return max(0, self._shown.get(ledger_id, (Right.NONE, 0))[1] - self._authority.now_ms())
