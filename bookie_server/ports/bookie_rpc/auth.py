# SPDX-License-Identifier: Apache-2.0
"""The port of authentication on Apache's wire: what a bookie makes of AUTH. Without TLS everybody is let in."""

from __future__ import annotations

from typing import Protocol

from bk_core.access.tokens import PLUGIN
from bk_core.errors import AuthenticationError
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.access.tls import PortTls

DISABLED = "AuthDisabledPlugin"
"""What Apache's clients take for: nobody asked, go on."""


class AuthSession(Protocol):
    """The exchange with one client, which is ``principal``. Until ``done`` the client may do nothing else."""

    principal: Principal

    @property
    def done(self) -> bool: ...

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage:
        """What to answer. Raises AuthenticationError if the client is refused, and its connection must end."""
        ...


class AuthPlugin(Protocol):
    def begin(self, principal: Principal) -> AuthSession:
        """With a client of which the connection says so much."""
        ...


class NoAuth:
    """Everybody is let in. Java's client takes this answer for a success."""

    def begin(self, principal: Principal) -> AuthSession:
        return _LetIn(principal)


class _LetIn:
    done = True

    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage:
        return pb.AuthMessage(authPluginName=DISABLED, payload=b"")


class TokenAuth:
    """A client shows a token, unless its certificate has identified it. One message each way."""

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
            return pb.AuthMessage(authPluginName=DISABLED, payload=b"")  # a client proves itself once a connection
        if message.authPluginName != PLUGIN:
            self._tls.refused(self.principal.peer, "Apache's wire", "its AUTH is of another plug-in")
            raise AuthenticationError(f"the plug-in {PLUGIN} is wanted")
        self.principal = self._tls.admitted(self.principal, message.payload, "Apache's wire")
        return pb.AuthMessage(authPluginName=PLUGIN, payload=b"")
