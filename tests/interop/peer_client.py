# SPDX-License-Identifier: Apache-2.0
"""Apache's client library, in one JVM that lives as long as a row of tests (java/PeerClient.java).

::

    with PeerClient(toolchain("4.17.3"), path / "client.log") as peer:
        client = peer.client(cluster.uri)
        ledger = client.create(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2, digest="CRC32C")
        ledger.add(1000, Pattern(seed=7, size_min=0, size_max=2000))
        ledger.close()

A refusal is a PeerError with the name and the code of Apache's exception (``NoSuchLedgerExists``, -7).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.jars import Toolchain
from tests.interop.java_process import CALL_S, QUICK, START_S, JavaProgram, PeerError
from tests.interop.pattern import Pattern

PASSWORD = b"passwd"


@dataclass(frozen=True, slots=True)
class Read:
    """The result of a read or a tail: consecutive entries, and a checksum of them (:func:`pattern.checksum`)."""

    first: int
    last: int
    count: int
    size: int  # the bytes of all payloads
    checksum: str
    payloads: tuple[bytes, ...]
    ended: bool = False  # a tail has reached the end of a closed ledger

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Read:
        given = dict(fields)
        payloads = tuple(base64.b64decode(text) for text in given.pop("payloads", ()))
        return Read(payloads=payloads, **given)


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state of a ledger, as a handle knows it."""

    ledger_id: int
    lac: int
    lap: int
    length: int
    closed: bool

    @staticmethod
    def of(fields: Mapping[str, Any]) -> LedgerState:
        return LedgerState(*(fields[name] for name in ("ledger_id", "lac", "lap", "length", "closed")))


class PeerClient(JavaProgram):
    """The JVM. Several threads may send commands to it."""

    def __init__(self, tools: Toolchain, log_path: Path, flags: Sequence[str] = QUICK) -> None:
        super().__init__(tools, "PeerClient", log_path, flags)

    def client(self, uri: str, *, wire: int = 3, conf: Mapping[str, object] | None = None) -> JavaClient:
        """Return Apache's ``BookKeeper``. ``conf`` takes any key of its ClientConfiguration
        (``explicitLacInterval``)."""
        return JavaClient(
            self, self.call("client", within_s=START_S, uri=uri, wire=wire, conf=dict(conf or {}))["client"]
        )

    def bookie_client(self, *, auth: bool = False) -> JavaBookieClient:
        """Return a client for single requests to single bookies. With ``auth`` it uses a plug-in that no bookie
        knows."""
        fields = self.call("bookie_client", auth=auth, conf={})
        return JavaBookieClient(self, fields["client"])

    def identity(self, uri: str, cookies_of: Sequence[str] = ()) -> dict[str, Any]:
        """Return ``instance_id``, and ``cookies``: the text of each cookie, as Apache's registration manager reads
        them."""
        return self.call("identity", uri=uri, cookies_of=list(cookies_of))


class JavaClient:
    """An open client."""

    def __init__(self, peer: PeerClient, number: int) -> None:
        self.peer, self._number = peer, number

    def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 2,
        ack_quorum_size: int = 2,
        digest: str = "CRC32C",
        password: bytes = PASSWORD,
        custom: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
        adv: bool = False,
        ledger_id: int | None = None,
        within_s: float = CALL_S,
    ) -> JavaLedger:
        """Create a ledger. ``digest`` is CRC32, CRC32C, MAC or DUMMY. With ``adv`` it is a LedgerHandleAdv, whose
        writer chooses the entry ids. With ``ledger_id`` it always is one."""
        fields = self.peer.call(
            "create",
            within_s=within_s,
            client=self._number,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            digest=digest,
            password=_text(password),
            custom={key: _text(value) for key, value in (custom or {}).items()},
            deferred_sync=deferred_sync,
            adv=adv,
            ledger_id=ledger_id,
        )
        return JavaLedger(self.peer, fields)

    def open(
        self,
        ledger_id: int,
        *,
        digest: str = "CRC32C",
        password: bytes = PASSWORD,
        recover: bool = True,
        within_s: float = CALL_S,
    ) -> JavaLedger:
        """Open a ledger for reading. ``recover`` fences and closes it."""
        fields = self.peer.call(
            "open",
            within_s=within_s,
            client=self._number,
            ledger_id=ledger_id,
            digest=digest,
            password=_text(password),
            recover=recover,
        )
        return JavaLedger(self.peer, fields)

    def delete(self, ledger_id: int) -> None:
        self.peer.call("delete", client=self._number, ledger_id=ledger_id)

    def ledger_ids(self) -> list[int]:
        """Return all ledgers of the cluster, sorted."""
        return sorted(self.peer.call("list", client=self._number)["ledger_ids"])

    def metadata(self, ledger_id: int) -> dict[str, Any]:
        """Return the ledger's metadata as Apache's reader understands them. Byte values are bytes."""
        fields = self.peer.call("metadata", client=self._number, ledger_id=ledger_id)
        fields["password"] = base64.b64decode(fields["password"])
        fields["custom"] = {key: base64.b64decode(value) for key, value in fields["custom"].items()}
        fields["ensembles"] = {int(first): tuple(members) for first, members in fields["ensembles"].items()}
        return fields

    def bookies(self) -> dict[str, Any]:
        """Return ``writable``, ``read_only``, ``all`` (with a cookie), and ``infos``: the registration of each
        bookie."""
        return self.peer.call("bookies", client=self._number)

    def close(self) -> None:
        """Close the client. This takes two seconds, in which Netty waits. The end of the JVM ends its clients as
        well."""
        self.peer.call("close_client", client=self._number)


class JavaLedger:
    """A ledger handle of Apache's library."""

    def __init__(self, peer: PeerClient, fields: Mapping[str, Any]) -> None:
        self.peer, self._number = peer, fields["ledger"]
        self.ledger_id: int = fields["ledger_id"]
        self.opened = LedgerState.of(fields)

    def submit_add(
        self, count: int, pattern: Pattern, *, first: int = 0, window: int = 1000, pause_ms: int = 0
    ) -> Future[dict[str, Any]]:
        """Add the pattern's entries ``first`` to ``first + count - 1``, with ``window`` of them in flight and a pause
        before each. ``first`` is the ledger's next entry, or the first explicit id of a LedgerHandleAdv."""
        return self.peer.submit(
            "add",
            ledger=self._number,
            count=count,
            first=first,
            window=window,
            pause_ms=pause_ms,
            **pattern.arguments(),
        )

    def halt(self) -> None:
        """End adds that are under way. Those that were sent are awaited, and no more are sent."""
        self.peer.call("halt", ledger=self._number)

    def add(
        self, count: int, pattern: Pattern, *, first: int = 0, window: int = 1000, within_s: float = CALL_S
    ) -> LedgerState:
        """Add entries as :meth:`submit_add`, and wait. A PeerError says in ``acked`` how many were done."""
        future = self.submit_add(count, pattern, first=first, window=window)
        return added(self.peer.result(future, within_s, "add"))

    def add_bytes(self, payload: bytes, *, entry_id: int = 0, within_s: float = CALL_S) -> LedgerState:
        """Add one entry. ``entry_id`` is for a LedgerHandleAdv."""
        return added(
            self.peer.call(
                "add", within_s=within_s, ledger=self._number, count=1, first=entry_id, payload=_text(payload)
            )
        )

    def force(self) -> LedgerState:
        """Make deferred adds durable."""
        return LedgerState.of(self.peer.call("force", ledger=self._number))

    def close(self, within_s: float = CALL_S) -> LedgerState:
        return LedgerState.of(self.peer.call("close", within_s=within_s, ledger=self._number))

    def state(self) -> LedgerState:
        return LedgerState.of(self.peer.call("state", ledger=self._number))

    def last_confirmed(self, how: str = "read") -> int:
        """Return the LAC that the bookies answer: ``read``, ``try`` (the first answer suffices) or ``explicit``."""
        answer = self.peer.call("last_confirmed", ledger=self._number, how=how)["lac"]
        assert isinstance(answer, int)
        return answer

    def read(
        self, first: int, last: int, *, how: str = "confirmed", payloads: bool = False, within_s: float = CALL_S
    ) -> Read:
        """Read the entries ``first`` to ``last``: ``confirmed``, ``unconfirmed``, or by ``batch`` reads."""
        return Read.of(
            self.peer.call(
                "read", within_s=within_s, ledger=self._number, first=first, last=last, how=how, payloads=payloads
            )
        )

    def tail(self, first: int = 0, *, poll_ms: int = 1000) -> JavaTail:
        """Follow the ledger from ``first`` on, by long polls. On v2, which has none, ask every ``poll_ms``."""
        fields = self.peer.call("tail", ledger=self._number, first=first, poll_ms=poll_ms)
        return JavaTail(self.peer, fields["tail"])


class JavaTail:
    """A thread that follows a ledger to its end."""

    def __init__(self, peer: PeerClient, number: int) -> None:
        self._peer, self._number = peer, number

    def take(self, count: int, *, within_s: float = 10.0, payloads: bool = False) -> Read:
        """Return the next entries: ``count``, or fewer if the ledger ended or the time is over."""
        within_ms = int(within_s * 1000)
        fields = self._peer.call(
            "take", within_s=within_s + CALL_S, tail=self._number, count=count, within_ms=within_ms, payloads=payloads
        )
        return Read.of(fields)


class JavaBookieClient:
    """Sends requests below the level of ledgers. Answers have ``rc``, the library's code for the bookie's status, and
    its ``name``."""

    def __init__(self, peer: PeerClient, number: int) -> None:
        self.peer, self._number = peer, number

    def submit(self, command: str, bookie: str, **arguments: Any) -> Future[dict[str, Any]]:
        """Send a request (java/BookieCalls.java: ``read``, ``force`` …)."""
        return self.peer.submit(f"bookie_{command}", client=self._number, bookie=bookie, **arguments)

    def call(self, command: str, bookie: str, **arguments: Any) -> dict[str, Any]:
        return self.peer.result(self.submit(command, bookie, **arguments), CALL_S, command)

    def close(self) -> None:
        self.peer.call("bookie_close", client=self._number)


def added(fields: Mapping[str, Any]) -> LedgerState:
    """Return the state after an add. Raises PeerError, which says in ``acked`` how many were done."""
    if "failed" in fields:
        error = PeerError(fields["failed"])
        error.acked = fields["acked"]
        raise error
    return LedgerState.of(fields)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
