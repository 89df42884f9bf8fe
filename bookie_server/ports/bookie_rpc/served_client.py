# SPDX-License-Identifier: Apache-2.0
"""Has the identity, the rights and the share of the limits of the client of one connection of Apache's wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bk_core.access.needs import APACHE, On
from bk_core.access.roles import EVERY, Right
from bk_core.model import BOOKIE_RPC
from bk_core.wire.lane.reasons import Reason
from bookie_server.audit import outcome_of
from bookie_server.ports.access.principal import Principal
from bookie_server.ports.bookie_rpc.auth import AuthPlugin
from bookie_server.ports.bounds.limits import ClientShare, LimitReached, RequestKind
from bookie_server.ports.lane.streams import BookieFacts


class ServedClient:
    """The client of a connection, and its rights.

    - ``principal``: its identity. ``auth``: the exchange that proves it.
    - ``rights``: its rights on the cluster. None means that they are not known yet; meanwhile no request is read. Only
      mode ``secure`` limits the rights.
    - ``may_add``: whether ``rights`` include adds.
    - ``share``: its share of the limits, which all connections of the same client have together, or None without
      limits. It ends with the connection.
    - ``is_held``: whether the connection is not read for a while, because the client has sent too many requests.
    - ``on_held``: called when ``is_held`` becomes true, with the seconds after which the connection may be read again.
    - ``on_proven``: called in mode ``secure`` after the identity has changed, so that the rights are looked up again.
    """

    def __init__(self, facts: BookieFacts, auth: AuthPlugin, principal: Principal, look: Callable[[], None]) -> None:
        """``look`` is called when ``is_held`` becomes true."""
        self._facts, self._look, self.principal, self.auth = facts, look, principal, auth.begin(principal)
        self.rights: Right | None = None if facts.authority is not None else EVERY
        self.may_add = self.rights is not None
        self.share: ClientShare | None = None
        self.is_held = False
        self.on_held: Callable[[float], object] = lambda wait_s: None
        self.on_proven: Callable[[], object] = lambda: None

    def audit(self, did: str, reason: Reason = Reason.REASON_NONE, why: str = "", **to: object) -> None:
        """Record in the audit log that the client did ``did``. ``to`` names the objects of the action, such as a
        ledger."""
        if self._facts.audit is not None:
            why = why or (reason.name if reason else "")
            who = self.principal.as_event()
            self._facts.audit.say(did, outcome_of(reason), lane=BOOKIE_RPC, why=why, **who, **to)

    # --- limits ---

    def enter(self) -> str:
        """Take a place among the connections of this client. If it has a place already, give that back before. Return
        why it gets none, or an empty text."""
        if self._facts.limits is None:
            return ""
        self.leave()
        try:
            self.share = self._facts.limits.enter(self.principal)
        except LimitReached as reached:
            self.audit("connect", Reason.OVERLOADED, str(reached))
            return str(reached)
        return ""

    def leave(self) -> None:
        """Give back the place among the client's connections."""
        if self.share is not None:
            self.share.end()
            self.share = None

    def pays(self, kind: RequestKind, count: int) -> bool:
        """Charge the client for ``count`` requests, if it has limits. Return False if they must be refused. After a
        charge the connection may be held."""
        if self.share is None:
            return True
        taken = not self.share.refuses(kind)
        wait_s = self.share.pay(kind, count if taken else 0)
        if wait_s > 0 and not self.is_held:
            self.is_held = True
            self._look()
            self.on_held(wait_s)
        return taken

    # --- mode secure ---

    def become(self, principal: Principal) -> None:
        """Set the identity of a client that has authenticated. In mode ``secure`` its rights are not known until
        :meth:`allow`."""
        self.principal = principal
        if self._facts.authority is not None:
            self.rights, self.may_add = None, False

    def allow(self, rights: Right) -> bool:
        """Set the rights of the client. Return False if this takes a right away."""
        before, self.rights = self.rights, rights
        self.may_add = APACHE["ADD_ENTRY"].right in rights
        return before is None or not before & ~rights

    def may(self, operations: Sequence[str]) -> bool:
        """Return whether the client's rights in mode ``secure`` allow all these operations."""
        rights = Right.NONE if self.rights is None else self.rights
        for operation in operations:
            need = APACHE.get(operation)
            if need is None or (need.on is not On.FREE and (not need.right or need.right not in rights)):
                return False
        return True
