# SPDX-License-Identifier: Apache-2.0
"""Gets evidence of a LAC over single requests. A fence, a LAC read or a watch makes one to three requests. Pure.

Each call ends with one call of ``told``, unless the connection breaks before. Then the link fails the waiting calls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from bk_core.entries.frame import apache_frame
from bk_core.model import EntryId, LedgerId
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.reads import refused
from bk_core.transport.port import RefusedError
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.runs import WireAnswer
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.evidence import LacEvidence
from bk_core.wire.lane.reasons import Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb

Told: TypeAlias = Callable[[LacEvidence | RefusedError], None]

_NOTHING = (Status.ENOENTRY, Status.ENOLEDGER)
_LAC_BODY = struct.Struct(">qq")


class WireLacs:
    """Makes the LAC calls of one connection. ``bookie`` is the bookie's name in errors."""

    def __init__(self, exchange: Exchange, bookie: str) -> None:
        self._exchange, self._bookie = exchange, bookie

    def fence(self, ledger_id: LedgerId, ledger_key: bytes, told: Told) -> None:
        """Read the last entry with a fence. If there is no entry, Apache's bookies answer before the fence is durable.
        Then this call also lets the bookie sync its log (MUST3)."""

        def forced(status: Status) -> None:
            if status is Status.EOK:
                told(_evidence(ledger_id, b"", fenced=True))
            else:
                told(refused(status, f"bookie {self._bookie} could not sync its log after a fence"))

        def fenced(status: Status, body: bytes, _lac: int) -> None:
            if status in _NOTHING:
                self._exchange.force(ledger_id, forced)
            elif status is Status.EOK:
                told(_evidence(ledger_id, body, fenced=True))
            else:
                told(refused(status, f"bookie {self._bookie} did not fence ledger {ledger_id}"))

        self._exchange.reads.one(ledger_id, -1, fenced, fence_key=ledger_key)

    def read(self, ledger_id: LedgerId, told: Told) -> None:
        """Read the LAC that the writer wrote explicitly, and the last entry. READ_LAC returns both, but with one status
        for both: a bookie without an entry answers EIO, as it does when its disk fails. So READ_LAC is used only for
        the LAC, and a plain read for the last entry."""
        last: list[tuple[Status, bytes]] = []
        written: list[WireAnswer] = []

        def both() -> None:
            if last and written:
                told(self._of_both(ledger_id, *last[0], written[0]))

        def read(status: Status, body: bytes, _lac: int) -> None:
            last.append((status, body))
            both()

        def answered(answer: WireAnswer) -> None:
            written.append(answer)
            both()

        request = v3.request(pb.READ_LAC, 0)
        request.readLacRequest.ledgerId = ledger_id
        self._exchange.control(request, answered)
        self._exchange.reads.one(ledger_id, -1, read)

    def _of_both(
        self, ledger_id: LedgerId, status: Status, body: bytes, written: WireAnswer
    ) -> LacEvidence | RefusedError:
        if status not in (Status.EOK, *_NOTHING):
            return refused(status, f"bookie {self._bookie} could not read the last entry of ledger {ledger_id}")
        lac_body = written.response.readLacResponse.lacBody
        # Apache's bookies may answer EIO together with a LAC that they read. Then EIO is about the last entry, and the
        # other request decides about that entry.
        if written.status not in (Status.EOK, *_NOTHING) and not (written.status is Status.EIO and lac_body):
            return refused(written.status, f"bookie {self._bookie} could not read the LAC of ledger {ledger_id}")
        return _evidence(ledger_id, body, lac_body=lac_body, known=status is not Status.ENOLEDGER or bool(lac_body))

    def watch(self, ledger_id: LedgerId, previous_lac: EntryId, timeout_ms: int, told: Told) -> None:
        """Wait for a LAC above ``previous_lac`` by a long poll. If the bookie reports a greater LAC than its last entry
        carries, the writer wrote this LAC explicitly, and the call then reads it."""

        def polled(status: Status, body: bytes, lac: int) -> None:
            if status not in (Status.EOK, *_NOTHING):
                told(refused(status, f"bookie {self._bookie} did not wait for a LAC of ledger {ledger_id}"))
            elif lac > max(previous_lac, _lac_in(body)):
                self.read(ledger_id, told)
            else:
                told(_evidence(ledger_id, body, known=status is not Status.ENOLEDGER))

        self._exchange.reads.one(ledger_id, -1, polled, poll=(previous_lac, timeout_ms))

    def write(
        self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, told: Callable[[RefusedError | None], None]
    ) -> None:
        """Write a LAC explicitly. ``told`` gets None once the bookie has taken the LAC, or the refusal."""
        if len(lac_body) < _LAC_BODY.size:
            told(RefusedError(Reason.BAD_REQUEST, "a LAC body is too short", value=f"{len(lac_body)} bytes"))
            return

        def answered(answer: WireAnswer) -> None:
            what = f"bookie {self._bookie} did not take a LAC of ledger {ledger_id}"
            told(refused(answer.status, what) if answer.status is not Status.EOK else None)

        request = v3.request(pb.WRITE_LAC, 0)
        call = request.writeLacRequest
        call.ledgerId, call.masterKey, call.body = ledger_id, ledger_key, lac_body
        call.lac = _LAC_BODY.unpack_from(lac_body)[1]
        self._exchange.control(request, answered)


def _lac_in(body: bytes) -> int:
    return int.from_bytes(body[16:24], "big", signed=True) if len(body) >= 32 else -1


def _evidence(
    ledger_id: LedgerId, body: bytes, *, lac_body: bytes = b"", fenced: bool = False, known: bool = True
) -> LacEvidence | RefusedError:
    """Make evidence from an entry in Apache's layout, or RefusedError if ``body`` is not an entry. The receiver of the
    evidence checks the digest (P5)."""
    if not body:
        return LacEvidence(-1, b"", lac_body, b"", fenced, known)
    entry_id = int.from_bytes(body[8:16], "big", signed=True)
    if len(body) < 32 or entry_id < 0:
        what = f"the bookie's last entry of ledger {ledger_id} is not an entry"
        return RefusedError(Reason.DAMAGED, what, value=f"{len(body)} bytes")
    frame = apache_frame(ledger_id, body, np.array([len(body)]), np.array([entry_id]), _lac_in(body))
    return LacEvidence(entry_id, frame, lac_body, b"", fenced, known)
