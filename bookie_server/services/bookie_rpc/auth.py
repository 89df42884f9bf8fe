# SPDX-License-Identifier: Apache-2.0
"""The port of authentication on Apache's wire: what a bookie makes of AUTH. Only "none" is built."""

from __future__ import annotations

from typing import Protocol

from bk_core.wire.proto import bookie_rpc_pb2 as pb


class AuthSession(Protocol):
    """The exchange with one client. Until ``done`` the client may do nothing else."""

    done: bool

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage | None:
        """What to answer; None if the client is refused and its connection must end."""
        ...


class AuthPlugin(Protocol):
    def begin(self) -> AuthSession: ...


class NoAuth:
    """Everybody is let in. Java's client takes this answer for a success."""

    def begin(self) -> AuthSession:
        return _LetIn()


class _LetIn:
    done = True

    def take(self, message: pb.AuthMessage) -> pb.AuthMessage | None:
        return pb.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")
