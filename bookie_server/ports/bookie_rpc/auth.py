# SPDX-License-Identifier: Apache-2.0
"""Answers AUTH, the request by which clients authenticate on Apache's wire. Without TLS every client is admitted."""

from __future__ import annotations

from typing import Protocol

from bk_core.access.tokens import PLUGIN
from bk_core.errors import AuthenticationError
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.access.tls import PortTls

DISABLED = "AuthDisabledPlugin"
"""The plug-in name that Apache's clients take for "no authentication needed"."""


class AuthSession(Protocol):
    """The authentication of one client, whose identity so far is ``principal``. Until ``done`` is True the client may
    send no other requests."""

    principal: Principal

    @property
    def done(self) -> bool: ...

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage:
        """Return the answer to a message. If the client is refused, raises AuthenticationError, and the caller must end
        its connection."""
        ...


class AuthPlugin(Protocol):
    def begin(self, principal: Principal) -> AuthSession:
        """Begin the authentication of a client. ``principal`` is what the connection already proves."""
        ...


class NoAuth:
    """Admits every client. Java's client takes the answer for a success."""

    def begin(self, principal: Principal) -> AuthSession:
        return _LetIn(principal)


class _LetIn:
    done = True

    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage:
        return pb.AuthMessage(authPluginName=DISABLED, payload=b"")


class TokenAuth:
    """Requires a token from each client without an identity from a certificate. Each side sends one message."""

    def __init__(self, tls: PortTls) -> None:
        self._tls = tls

    def begin(self, principal: Principal) -> AuthSession:
        return _TokenSession(principal, self._tls)


class _TokenSession:
    def __init__(self, principal: Principal, tls: PortTls) -> None:
        self.principal, self._tls = principal, tls

    @property
    def done(self) -> bool:
        return self.principal.proof is not Proof.NONE

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage:
        if self.principal.proof is Proof.TOKEN:
            # a client authenticates once for each connection
            return pb.AuthMessage(authPluginName=DISABLED, payload=b"")
        if message.authPluginName != PLUGIN:
            self._tls.refused(self.principal.peer, "Apache's wire", "its AUTH is of another plug-in")
            raise AuthenticationError(f"the plug-in {PLUGIN} is expected")
        self.principal = self._tls.admitted(self.principal, message.payload, "Apache's wire")
        return pb.AuthMessage(authPluginName=PLUGIN, payload=b"")
