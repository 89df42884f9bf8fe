# SPDX-License-Identifier: Apache-2.0
"""Limits what one client uses at a bookie, by its identity and by its address: connections, requests a second, open
ledgers. The machine bounds the bytes in flight (``machine/owners.py``); this file says which owners they count for.
Pure; the clock is an argument.

A client's streams share an *account* for its identity and one for its address. Requests are paid from buckets that fill
at the rate of the limit. A stream whose account is in debt is not read until the debt is paid. A request is refused
only if the debt of the account is longer than ``PATIENCE_S``, which other streams of the account may cause. Recovery
has buckets and room of its own, so a client's flood of adds or reads does not stop its own failover, nor other clients.

An account is remembered while it has a stream, and after that until its debts are paid, but at most ``KEPT_MAX``
accounts without streams.
"""

from __future__ import annotations

import enum
import ipaddress
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable

from bk_core.access.tls import Admission
from bk_core.observe.log_throttle import LogThrottle
from bookie_server.config import ClientLimits
from bookie_server.ports.access.principal import Principal

logger = logging.getLogger(__name__)

KEPT_MAX = 4096
"""The maximum number of accounts without a stream whose debts are remembered."""

LOG_EVERY_S = 60.0
"""The minimum number of seconds between two log lines about one limit of one client."""

CONNECTIONS, REQUESTS, LEDGERS = "connections", "requests_per_s", "ledgers_open"


class RequestKind(enum.IntEnum):
    """The kinds of requests, each of which is paid from a bucket of its own: adds, all other requests, and recoveries
    with their fences, fencing reads and recovery adds."""

    ADD = 0
    ASK = 1
    RECOVER = 2


PATIENCE_S = {RequestKind.ADD: 5.0, RequestKind.ASK: 1.0, RequestKind.RECOVER: 1.0}
"""The longest time, in seconds, for which a stream is not read, by the kind of request. While the debt would take
longer to pay, requests are refused. The times are shorter than clients wait: a writer waits 10 s for an ack, and a
reader asks another bookie after 2 s."""


class LimitReached(Exception):
    """The error for a limit that is reached. Its text may be sent to the client."""


class Account:
    """The account of one identity or one address. ``whose`` is ``principal`` or ``address``, as in the names of the
    settings."""

    __slots__ = ("connections", "debts", "ledgers", "limits", "name", "paid_s", "whose")

    def __init__(self, whose: str, name: str, limits: dict[str, int]) -> None:
        self.whose, self.name, self.limits = whose, name, limits
        self.connections = 0
        self.ledgers = [0, 0]  # numbers of open ledgers: for writing, and for recovery
        # by kind: requests taken beyond the bucket's contents; a negative number is what is left in it
        self.debts = [0.0] * len(RequestKind)
        self.paid_s = -math.inf

    def settle(self, now_s: float) -> None:
        """Fill the buckets for the time since the last call. Each holds the requests of one second."""
        rate = self.limits[REQUESTS]
        if not rate:
            return
        filled = (now_s - self.paid_s) * rate
        self.debts = [max(-float(rate), debt - filled) for debt in self.debts]
        self.paid_s = now_s

    def owes_s(self, kind: RequestKind) -> float:
        """Return how long it takes until the debt is paid, as of the last :meth:`settle`."""
        rate = self.limits[REQUESTS]
        return max(0.0, self.debts[kind] / rate) if rate else 0.0


class ClientShare:
    """The accounts in which the requests and ledgers of one stream count: that of its client's address and that of its
    client's identity. :meth:`end` leaves them."""

    __slots__ = ("_accounts", "_ledgers", "_limits", "owners")

    def __init__(self, limits: Limits, accounts: tuple[Account, ...], owners: tuple[tuple[str, int], ...]) -> None:
        self._limits, self._accounts = limits, accounts
        self.owners = owners
        """The owners whose bytes in flight the machine bounds, each with its bound."""
        self._ledgers = [0, 0]

    @property
    def recovers(self) -> bool:
        """Whether a ledger is open for recovery on this stream."""
        return self._ledgers[True] > 0

    def refuses(self, kind: RequestKind) -> str:
        """Return why requests of this kind are refused now, or an empty text if they are not."""
        now_s = self._limits.clock_s()
        for account in self._accounts:
            if account.limits[REQUESTS]:
                account.settle(now_s)
                if account.owes_s(kind) > PATIENCE_S[kind]:
                    return self._limits.refused(account, REQUESTS)
        return ""

    def pay(self, kind: RequestKind, count: int) -> float:
        """Charge the accounts for ``count`` requests, or for 0 if they were refused. Return the number of seconds for
        which the stream must not be read, or 0 if it may be read."""
        owes_s, now_s = 0.0, self._limits.clock_s()
        for account in self._accounts:
            if account.limits[REQUESTS]:
                account.settle(now_s)
                account.debts[kind] += count
                if account.owes_s(kind) > 0:
                    self._limits.held(account, REQUESTS)
                    owes_s = max(owes_s, account.owes_s(kind))
        return min(owes_s, PATIENCE_S[kind])

    def open_ledger(self, *, recover: bool) -> str:
        """Open another ledger on this stream. Return why this is refused, or an empty text if the ledger was opened."""
        for account in self._accounts:
            most = account.limits[LEDGERS]
            if most and account.ledgers[recover] >= most:
                return self._limits.refused(account, LEDGERS)
        self._count_ledgers(1, recover=recover)
        return ""

    def is_full(self, *, recover: bool) -> bool:
        """Return whether :meth:`open_ledger` would refuse."""
        return any(0 < account.limits[LEDGERS] <= account.ledgers[recover] for account in self._accounts)

    def close_ledger(self, *, recover: bool) -> None:
        if self._ledgers[recover]:
            self._count_ledgers(-1, recover=recover)

    def _count_ledgers(self, count: int, *, recover: bool) -> None:
        self._ledgers[recover] += count
        for account in self._accounts:
            account.ledgers[recover] += count

    def end(self) -> None:
        """Close the stream's ledgers and leave its accounts, because the stream is gone."""
        for recover in (False, True):
            self._count_ledgers(-self._ledgers[recover], recover=bool(recover))
        self._limits.leave(self._accounts)
        self._accounts = ()


class Limits:
    """The limits of a bookie's clients, for all its lanes together. ``held_count`` counts how often a stream was not
    read for a while, and ``refused_count`` how often something was refused, both by the name of the setting."""

    def __init__(self, limits: ClientLimits, clock_s: Callable[[], float]) -> None:
        self.clock_s = clock_s
        self._of: dict[str, dict[str, int]] = {
            "address": {
                CONNECTIONS: 0,  # see ``connections.py``
                REQUESTS: limits.requests_per_s_per_address_max,
                LEDGERS: limits.ledgers_open_per_address_max,
            },
            "principal": {
                CONNECTIONS: limits.connections_per_principal_max,
                REQUESTS: limits.requests_per_s_per_principal_max,
                LEDGERS: limits.ledgers_open_per_principal_max,
            },
        }
        self._bytes = {
            "address": limits.in_flight_bytes_per_address_max,
            "principal": limits.in_flight_bytes_per_principal_max,
        }
        self._networks, identities = networks_of(limits.limits_exempt)
        self._exempt = Admission(patterns=identities) if identities else None
        self._accounts: dict[tuple[str, str], Account] = {}
        self._left: OrderedDict[tuple[str, str], Account] = OrderedDict()  # without streams; the latest at the end
        self.held_count: Counter[str] = Counter()
        self.refused_count: Counter[str] = Counter()
        self._throttle = LogThrottle(LOG_EVERY_S, clock_s)

    def __len__(self) -> int:
        """Return the number of accounts that are remembered."""
        return len(self._accounts) + len(self._left)

    def enter(self, principal: Principal) -> ClientShare | None:
        """Begin a stream of this client. Return its share, or None if the client has no limits. Raises LimitReached,
        after which the stream must end."""
        named = self._named(principal)
        accounts = tuple(self._account(whose, name) for whose, name in named if any(self._of[whose].values()))
        owners = tuple((f"{whose} {name}", self._bytes[whose]) for whose, name in named if self._bytes[whose])
        for account in accounts:
            most = account.limits[CONNECTIONS]
            if most and account.connections >= most:
                self._drop_idle(accounts)
                raise LimitReached(self.refused(account, CONNECTIONS))
        for account in accounts:
            account.connections += 1
        return ClientShare(self, accounts, owners) if accounts or owners else None

    def _named(self, principal: Principal) -> list[tuple[str, str]]:
        """Return the names of the accounts whose limits apply to this client."""
        identity = principal.identity
        if identity is not None and self._exempt is not None and self._exempt.lets_in(identity):
            return []
        address = _address_of(principal.host)
        found = []
        if address is None or not any(address in network for network in self._networks):
            found.append(("address", principal.host if address is None else _holder_of(address)))
        return found if identity is None else [*found, ("principal", identity)]

    def _account(self, whose: str, name: str) -> Account:
        key = whose, name
        found = self._accounts.get(key)
        if found is None:
            left = self._left.pop(key) if key in self._left else None
            found = self._accounts[key] = left or Account(whose, name, self._of[whose])
        return found

    def _drop_idle(self, accounts: tuple[Account, ...]) -> None:
        for account in accounts:
            if not account.connections:
                self._put_away(account)

    def leave(self, accounts: tuple[Account, ...]) -> None:
        for account in accounts:
            account.connections -= 1
        self._drop_idle(accounts)

    def _put_away(self, account: Account) -> None:
        """Put an account without streams aside. Forget the oldest of these accounts that have no debts."""
        key = account.whose, account.name
        if self._accounts.get(key) is account:
            del self._accounts[key]
            self._left[key] = account
        now_s = self.clock_s()
        while self._left:
            oldest = next(iter(self._left.values()))
            oldest.settle(now_s)
            if len(self._left) <= KEPT_MAX and max(oldest.debts) > -float(oldest.limits[REQUESTS]):
                return
            self._left.popitem(last=False)

    # --- reports ---

    def held(self, account: Account, what: str) -> None:
        name = self._count(self.held_count, account, what)
        self._tell(name, account, "is not read for a while")

    def refused(self, account: Account, what: str) -> str:
        """Count and log a refusal, and return the text for the client."""
        name = self._count(self.refused_count, account, what)
        self._tell(name, account, "is refused")
        return (
            f"the limit {name}={account.limits[what]} is reached by {account.name}; "
            "do less at once and try again, or have an operator raise it"
        )

    def _count(self, counts: Counter[str], account: Account, what: str) -> str:
        name = f"{what}_per_{account.whose}_max"
        counts[name] += 1
        return name

    def _tell(self, limit: str, account: Account, what: str) -> None:
        """Log that a limit is reached. The same line about the same client is logged at most once a minute."""
        if self._throttle.allows(limit, what, account.name):
            limit_of = account.limits[limit.split("_per_" + account.whose)[0]]
            logger.warning("%s %s: %s=%d", account.name, what, limit, limit_of)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ONE_HOLDER_BITS = 64
"""The number of leading bits that one holder's IPv6 addresses have in common. A holder usually has all addresses with
the same 64 leading bits."""


def _address_of(host: str) -> _Address | None:
    """Return the address in ``host``; None for a client without an address."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _holder_of(address: _Address) -> str:
    """Return the address, or for IPv6 the network, that counts as one client address."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((address, _ONE_HOLDER_BITS), strict=False))


def networks_of(exempt: tuple[str, ...]) -> tuple[list[_Network], tuple[str, ...]]:
    """Split the names of exempt clients into networks and patterns of identities."""
    networks: list[_Network] = []
    identities: list[str] = []
    for each in exempt:
        try:
            networks.append(ipaddress.ip_network(each, strict=False))
        except ValueError:
            identities.append(each)
    return networks, tuple(identities)
