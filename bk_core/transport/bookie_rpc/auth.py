# SPDX-License-Identifier: Apache-2.0
"""Authenticates the client on Apache's wire, by the request AUTH and its answer, before all other messages. Pure.

A bookie that wants no token answers with another plug-in name, and accepts the client nevertheless. A bookie that does
not know our plug-in, or refuses the token, answers EUA in version 3, and ends the connection in version 2.
"""

from __future__ import annotations

from bk_core.access.tokens import PLUGIN, not_let_in
from bk_core.errors import AuthenticationError, RemoteProtocolError
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.connection import AnswerReader
from bk_core.wire.bookie_rpc.frames import Buffer
from bk_core.wire.bookie_rpc.runs import AddAnswers, BatchAnswer, ReadAnswers, WireAnswer
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb

NEEDED = "it wants this client to authenticate"


class Proof:
    """The exchange of AUTH messages at the beginning of a connection. ``version`` is the version of the wire."""

    def __init__(self, version: int, token: bytes) -> None:
        self._reader, self._version = AnswerReader(version), version
        self._message = pb.AuthMessage(authPluginName=PLUGIN, payload=token)
        self.done = False

    def request(self) -> bytes:
        if self._version == 2:
            return v2.auth(self._message)
        made = v3.request(pb.AUTH, 0)
        made.authRequest.CopyFrom(self._message)
        return v3.framed(made)

    def receive(self, received: Buffer) -> int:
        """Take received bytes, and return the number of bytes that were used. Raises AuthenticationError, and
        RemoteProtocolError for any message but one answer to AUTH."""
        replies = self._reader.read(received)
        for item in replies.items:
            if self.done or not isinstance(item, WireAnswer) or item.response.header.operation != pb.AUTH:
                raise RemoteProtocolError("a bookie answers AUTH with something else")
            if item.status is not Status.EOK:
                why = item.response.authResponse.payload.decode("utf-8", "replace")[:200]
                raise not_let_in("the bookie", why or f"it answers AUTH with {item.status.name}", has_token=True)
            self.done = True
        if replies.fault is not None:
            raise replies.fault
        return replies.used


def refuses_all(item: AddAnswers | ReadAnswers | BatchAnswer | WireAnswer) -> bool:
    """Return whether the answer refuses a client that has not authenticated. Such an answer is EUA with only a header.
    An EUA about a ledger's password also has the ids of the request."""
    if isinstance(item, WireAnswer):
        said = {field.name for field, _ in item.response.ListFields()}
        return item.response.status == pb.EUA and said == {"header", "status"}
    if isinstance(item, BatchAnswer):
        return False
    return bool(item.statuses[0] == Status.EUA and item.ledger_ids[0] == -1)


def unproven() -> AuthenticationError:
    return not_let_in("the bookie", NEEDED, has_token=False)
