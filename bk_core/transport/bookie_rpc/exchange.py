# SPDX-License-Identifier: Apache-2.0
"""Handles one connection to a bookie on Apache's wire, without its socket. It converts calls to bytes, and received
bytes to callbacks. Pure.

The connection is *whole* until the bookie breaks the protocol. Then it is *lost*: the outcome of unanswered requests is
unknown, and further answers do not count.
"""

from __future__ import annotations

from collections.abc import Callable

from bk_core.errors import BookKeeperError, RemoteProtocolError
from bk_core.model import LedgerId
from bk_core.transport.bookie_rpc.adds import WireAdds
from bk_core.transport.bookie_rpc.auth import refuses_all, unproven
from bk_core.transport.bookie_rpc.packing import Packer, nobody_asked
from bk_core.transport.bookie_rpc.reads import WireRangeRead, WireReads
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.connection import AnswerReader
from bk_core.wire.bookie_rpc.frames import Buffer
from bk_core.wire.bookie_rpc.runs import AddAnswers, BatchAnswer, ReadAnswers, WireAnswer
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb

Taken = Callable[[WireAnswer], None]


class Exchange:
    """The requests and answers of a connection of version 3. ``adds`` and ``reads`` take the calls of their kind, and
    :meth:`control` takes all others."""

    version = 3

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._reader = AnswerReader(3)
        self.adds, self.reads = WireAdds(packer), WireReads(packer)
        self._controls: dict[int, tuple[int, Taken]] = {}  # transaction → operation, and what takes its answer
        self._requests: list[bytes] = []
        self.let_in = False  # whether the bookie has answered and not refused this client

    def control(self, request: pb.Request, taken: Taken) -> None:
        """Queue a request that is neither an add nor a read, with a new transaction. ``taken`` gets the answer."""
        txn = request.header.txnId = self._packer.txns(1)
        self._controls[txn] = (request.header.operation, taken)
        self._requests.append(v3.framed(request))

    def read(self, asked: WireRangeRead) -> None:
        self.reads.read(asked, self.force)

    def force(self, ledger_id: LedgerId, told: Callable[[Status], None]) -> None:
        """Let the bookie sync everything that it has received for this ledger. Then the ledger's fence is durable
        (MUST3)."""
        request = v3.request(pb.FORCE_LEDGER, 0)
        request.forceLedgerRequest.ledgerId = ledger_id
        self.control(request, lambda answer: told(answer.status))

    def next_buffers(self) -> list[Buffer] | None:
        """Return the next requests to send, or None if there are none. Small requests come first, then reads, then
        adds."""
        if self._requests:
            requests, self._requests = self._requests, []
            return [b"".join(requests)]
        buffers = self.reads.next_buffers()
        return self.adds.next_buffers() if buffers is None else buffers

    def receive(self, received: Buffer) -> int:
        """Take received bytes, and return the number of bytes that were used. The caller passes the rest again,
        together with the bytes that follow. Raises RemoteProtocolError if the connection is lost; answers before the
        fault count. Raises AuthenticationError if the bookie's first answer refuses this client."""
        replies = self._reader.read(received)
        for item in replies.items:
            if not self.let_in:
                if refuses_all(item):
                    raise unproven()
                self.let_in = True
            if isinstance(item, AddAnswers):
                self.adds.take(item)
            elif isinstance(item, ReadAnswers):
                self.reads.take(item)
            elif isinstance(item, BatchAnswer):
                raise RemoteProtocolError("a bookie answers a batch read that was not requested")
            else:
                self._take(item)
        if replies.fault is not None:
            raise replies.fault
        return replies.used

    def _take(self, answer: WireAnswer) -> None:
        header = answer.response.header
        operation, taken = self._controls.pop(header.txnId, (0, None))
        if taken is None or operation != header.operation:
            raise nobody_asked(header.txnId)
        taken(answer)

    def tell(self) -> None:
        """Call the listeners of the sessions whose frames were acked or refused."""
        self.adds.tell()

    def lost(self, error: BookKeeperError) -> None:
        """Fail all sessions and ranges, because the connection is lost. The caller of this method fails the other
        waiting requests."""
        self._controls.clear()
        self._requests.clear()
        self.reads.lost(error)
        self.adds.lost(str(error))

    @property
    def owes(self) -> bool:
        """Whether the bookie owes an answer now. A long poll does not count, because the bookie may answer it later."""
        return bool(self._controls) or self.adds.owes or self.reads.owes
