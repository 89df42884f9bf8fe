# SPDX-License-Identifier: Apache-2.0
"""Decides what to do with each request of one connection of Apache's wire: refuse it, pass it to the adds or the
stories, or answer it immediately."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TypeAlias

from bk_core.errors import AuthenticationError
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.runs import AddRun, BatchRead, ReadRun, Single
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.reasons import Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.ports.access.principal import Principal
from bookie_server.ports.bookie_rpc.adds import ServedAdds
from bookie_server.ports.bookie_rpc.answer_queue import AnswerQueue
from bookie_server.ports.bookie_rpc.reads import (
    Batch,
    LastEntry,
    ListEntries,
    Read,
    ReadLac,
    ServedRangeRead,
    WriteLac,
    ledgers_of,
)
from bookie_server.ports.bookie_rpc.served_client import ServedClient
from bookie_server.ports.bookie_rpc.stories import Stories
from bookie_server.ports.bounds.limits import RequestKind
from bookie_server.ports.lane.streams import BookieFacts

logger = logging.getLogger(__name__)

Item: TypeAlias = AddRun | ReadRun | Single | BatchRead


class ServedRequests:
    """Takes the requests of a connection. It has no state of its own. ``client`` says what is allowed, ``adds`` and
    ``stories`` have the requests that wait for the machine, and ``answers`` gets the other answers. ``close`` ends the
    connection. ``proven`` is called with the identity of a client that has authenticated."""

    def __init__(
        self,
        facts: BookieFacts,
        client: ServedClient,
        adds: ServedAdds,
        stories: Stories,
        answers: AnswerQueue,
        clock_ms: Callable[[], int],
        close: Callable[[str], None],
        proven: Callable[[Principal], None],
    ) -> None:
        self._facts, self._client, self._adds, self._stories = facts, client, adds, stories
        self._send, self._clock_ms, self._close, self._proven = answers.send, clock_ms, close, proven

    def take(self, item: Item, wire: ModuleType) -> None:
        """Take a request, or a run of adds or reads. ``wire`` is the module of the wire's version in which they
        came."""
        client = self._client
        if not client.auth.done and not _may_come_first(item):
            self._refuse_unauthenticated(item, wire)
        elif self._facts.authority is not None and not client.may(operations_of(item)):
            self._refuse_denied(item, wire)
        elif client.share is not None and self._is_over_limit(item):
            self._refuse(item, wire, Status.ETOOMANYREQUESTS)
            client.audit(operations_of(item)[0], Reason.OVERLOADED)
        elif isinstance(item, AddRun):
            alone = item.alone
            if alone is None:
                self._adds.take(item, wire)
            else:
                self._adds.take_one(alone, wire)
        elif isinstance(item, ReadRun):
            self._read(item, wire)
        elif item.status is not Status.EOK:
            self._send(wire.refusal(item))
        elif isinstance(item, BatchRead):
            self._begin_or_refuse(Batch(self._stories.ask, item), item, wire)
        else:
            self._take_single(item, wire)

    def _is_over_limit(self, item: Item) -> bool:
        if isinstance(item, AddRun):
            recovery = int(item.recovery.sum())
            counts = {RequestKind.RECOVER: recovery, RequestKind.ADD: len(item) - recovery}
        elif isinstance(item, ReadRun):
            counts = {RequestKind.ASK: len(item)}
        elif isinstance(item, Single) and item.request.header.operation == pb.AUTH:
            return False
        else:
            counts = {RequestKind.RECOVER if operations_of(item)[0].endswith("FENCE_LEDGER") else RequestKind.ASK: 1}
        return not all(self._client.pays(kind, count) for kind, count in counts.items() if count)

    def _read(self, run: ReadRun, wire: ModuleType) -> None:
        ask = self._stories.ask
        for begin, end in ledgers_of(run):
            txns, ids = run.txns[begin:end].copy(), run.entry_ids[begin:end].copy()
            ledger_id, first = int(run.ledger_ids[begin]), int(ids[0])
            if ledger_id < 0:
                self._send(wire.refused_reads(txns, ledger_id, ids, int(Status.ENOLEDGER)))
            elif first < 0:
                self._stories.begin(LastEntry(ask, ledger_id, ids, txns, wire))
            else:
                self._stories.begin(ServedRangeRead(ask, ledger_id, ids, txns, wire))

    def _take_single(self, item: Single, wire: ModuleType) -> None:
        request, ask = item.request, self._stories.ask
        operation = request.header.operation
        if operation == pb.READ_ENTRY:
            self._begin_or_refuse(Read(ask, item, wire, self._clock_ms), item, wire)
        elif operation == pb.AUTH:
            self._authenticate(request, wire)
        elif operation == pb.READ_LAC:
            self._begin_or_refuse(ReadLac(ask, item), item, wire)
        elif operation == pb.WRITE_LAC:
            if self._facts.read_only():
                self._send(v3.framed(v3.answer(request, Status.EREADONLY)))
            else:
                self._stories.begin(WriteLac(ask, item))
        elif operation == pb.FORCE_LEDGER:
            self._adds.after(
                request.forceLedgerRequest.ledgerId, lambda: self._send(v3.framed(v3.answer(request)))
            )  # an add is answered once it is durable, so the adds that were answered before are durable
        elif operation == pb.GET_BOOKIE_INFO:
            self._tell_info(request)
        elif operation == pb.GET_LIST_OF_ENTRIES_OF_LEDGER:
            self._begin_or_refuse(ListEntries(ask, item), item, wire)
        else:  # START_TLS
            self._send(v3.framed(v3.answer(request, Status.EBADREQ)))

    def _tell_info(self, request: pb.Request) -> None:
        made, info = v3.answer(request), self._facts.info()
        wanted = request.getBookieInfoRequest.requested
        if wanted & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY:
            made.getBookieInfoResponse.totalDiskCapacity = info.total_bytes
        if wanted & pb.GetBookieInfoRequest.FREE_DISK_SPACE:
            made.getBookieInfoResponse.freeDiskSpace = info.free_bytes
        self._send(v3.framed(made))

    def _authenticate(self, request: pb.Request, wire: ModuleType) -> None:
        auth = self._client.auth
        try:
            answer, status = auth.take(request.authRequest), Status.EOK
        except AuthenticationError as error:  # version 2 cannot say why: Apache's clients read the status
            answer = pb.AuthMessage(authPluginName="", payload=error.what.encode())
            status = Status.EUA
        if wire is v3:
            made = v3.header_only(request, status)
            made.authResponse.CopyFrom(answer)
            self._send(v3.framed(made))
        elif status is Status.EOK:
            self._send(v2.auth(answer))
        if status is not Status.EOK:
            self._close("the client is refused")
        elif auth.principal is not self._client.principal:
            self._proven(auth.principal)

    def _begin_or_refuse(
        self, story: Read | Batch | ReadLac | ListEntries, item: Single | BatchRead, wire: ModuleType
    ) -> None:
        status = story.refusal()
        if status is Status.EOK:
            self._stories.begin(story)
        elif isinstance(item, Single):
            self._send(wire.refusal(Single(item.frame, item.request, status)))
        else:
            assert isinstance(story, Batch)
            self._send(v2.refusal(story.refused(status)))

    # --- refusals ---

    def _refuse_unauthenticated(self, item: Item, wire: ModuleType) -> None:
        """Refuse a request that came before authentication as Apache's bookies do. In version 3 the answer is a header
        alone, so that the client does not take it for an EUA about a ledger's password."""
        if self._facts.port_tls is not None:
            asked = ", ".join(operations_of(item))
            peer = self._client.principal.peer
            self._facts.port_tls.refused(peer, "Apache's wire", "it asks before it shows a token", asked)
        if isinstance(item, BatchRead):
            self._close("a client that is not authenticated asks")
        elif wire is v2:
            self._refuse(item, wire, Status.EUA)
        elif isinstance(item, Single):
            self._send(v3.framed(v3.header_only(item.request, Status.EUA)))
        else:
            operation = pb.ADD_ENTRY if isinstance(item, AddRun) else pb.READ_ENTRY
            self._send(v3.bare_answers(operation, item.txns.size, item.txns, int(Status.EUA)))

    def _refuse_denied(self, item: Item, wire: ModuleType) -> None:
        """Refuse a request for which the client lacks a right; log and audit it."""
        operations, who = operations_of(item), self._client.principal
        asked = ", ".join(operations)
        if self._facts.refusals.allows(who.host, f"{who.identity} may not {asked}"):
            logger.warning("connection %d: %s may not %s", self._stories.stream, who, asked)
        for operation in operations:
            self._client.audit(operation, Reason.PERMISSION_DENIED)
        self._refuse(item, wire, Status.EUA)

    def _refuse(self, item: Item, wire: ModuleType, status: Status) -> None:
        if isinstance(item, AddRun):
            self._send(wire.add_answers(item.txns, item.ledger_ids, item.entry_ids, int(status)))
        elif isinstance(item, ReadRun):
            self._send(wire.refused_reads(item.txns, item.ledger_ids, item.entry_ids, int(status)))
        elif isinstance(item, BatchRead):
            self._send(v2.refusal(replace(item, status=status)))
        else:
            self._send(wire.refusal(Single(item.frame, item.request, status)))


def operations_of(item: Item) -> Sequence[str]:
    """Return the operations in a request, by their names in the table of needs (``bk_core/access``)."""
    if isinstance(item, AddRun):
        recovery = item.recovery
        normal, again = not recovery.all(), bool(recovery.any())
        return ["ADD_ENTRY"] * normal + ["ADD_ENTRY RECOVERY_ADD"] * again
    if isinstance(item, ReadRun):
        return ["READ_ENTRY"]
    if isinstance(item, BatchRead):
        return ["BATCH_READ_ENTRY FENCE_LEDGER" if item.fencing else "BATCH_READ_ENTRY"]
    operation, read = item.request.header.operation, item.request.readRequest
    name = pb.OperationType.Name(operation) if operation in pb.OperationType.values() else "?"
    fences = operation == pb.READ_ENTRY and read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER
    return [f"{name} FENCE_LEDGER" if fences else name]


def _may_come_first(item: Item) -> bool:
    """Return whether a client may send this request before it has authenticated."""
    return isinstance(item, Single) and item.request.header.operation in (pb.AUTH, pb.START_TLS)
