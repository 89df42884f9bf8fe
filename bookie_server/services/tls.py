# SPDX-License-Identifier: Apache-2.0
"""TLS of a bookie's ports: what each does with a connection before it is one of its protocol.

A port with TLS takes nothing else. Who is refused is logged here, with the reason: what the client hears is TLS's own
alert, which is one word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time

from bk_core.errors import TlsError
from bk_core.tls import Admission, Names, Tls, explained, names_of
from bk_core.transport.tls_socket import Connected, TlsSocket, ready, shake_hands
from bookie_server.services.principal import Principal, Proof
from bookie_server.services.sockets import peer_of

logger = logging.getLogger(__name__)

_HANDSHAKE = b"\x16"
"""What a client that speaks TLS begins with."""

PLAIN_REFUSED = "this port speaks TLS, and nothing else"

_LINGER_S = 0.5  # what a refused client still sends is taken for so long: a reset would destroy its alert
_LINGER_BYTES = 64 << 10
_TELL_AGAIN_S = 10.0
_TOLD_MAX = 1024


class PortTls:
    """What the ports of a bookie have in common. ``client_auth``: a client has a certificate, and ``admission`` says
    which are let in."""

    def __init__(self, tls: Tls, admission: Admission) -> None:
        self.tls, self._admission = tls, admission
        self.client_auth = tls.paths.client_auth
        self._turns = asyncio.Lock()
        self._told: dict[tuple[str, str], float] = {}

    def context(self) -> ssl.SSLContext:
        return self.tls.server()

    async def greeted(self, sock: socket.socket, port: str) -> tuple[Connected, Principal | str]:
        """The connection to go on with, and its client, or why that is refused: it speaks plain, or is not let in.
        Raises OSError if no handshake came about; then the connection is closed, and it is logged."""
        peer = peer_of(sock)
        if not await speaks_tls(sock):
            self.refused(peer, port, "it speaks plain")
            return sock, PLAIN_REFUSED
        secured = await self._secured(sock, peer, port)
        try:
            return secured, self.admit(names_of(secured.getpeercert() or {}), peer, port)
        except TlsError as error:
            return secured, f"{error.what}: {error.value}"

    async def _secured(self, sock: socket.socket, peer: str, port: str) -> TlsSocket:
        secured = TlsSocket(sock, self.context(), server_side=True)
        try:
            await shake_hands(secured, self._turns)
        except OSError as error:
            self.refused(peer, port, explained(error)[0])
            await linger(secured)
            raise
        except BaseException:
            secured.close()
            raise
        return secured

    def admit(self, names: Names, peer: str, port: str) -> Principal:
        """The client that has a certificate with these names. Raises TlsError; then it is logged."""
        if not self.client_auth:
            return Principal(peer)
        try:
            identity = self._admission.admit(names)
        except TlsError as error:
            self.refused(peer, port, f"{error.what}: {error.value}")
            raise
        logger.info("%s: %s is %s", port, peer, identity)
        return Principal(peer, identity, Proof.CERTIFICATE)

    def refused(self, peer: str, port: str, why: str) -> None:
        """Log it; the same of the same host once in ten seconds."""
        key, now = (peer.rpartition(":")[0], why), time.monotonic()
        if now - self._told.get(key, -_TELL_AGAIN_S) >= _TELL_AGAIN_S:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told[key] = now
            logger.warning("%s: %s is refused over TLS: %s", port, peer, why)


async def speaks_tls(sock: socket.socket) -> bool:
    """Whether what comes first is a handshake; nothing of it is taken. Raises OSError if nothing comes."""
    while True:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await ready(sock)
        else:
            if not first:
                raise ConnectionError("the client is gone")
            return first == _HANDSHAKE


async def linger(sock: Connected) -> None:
    """Close a connection whose client has something to read first. Takes what it still sends, within bounds."""
    left = _LINGER_BYTES
    try:
        with contextlib.suppress(OSError):
            plain = sock.plain if isinstance(sock, TlsSocket) else sock  # nobody decrypts what is not looked at
            plain.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and (taken := await asyncio.get_running_loop().sock_recv(plain, left)):
                    left -= len(taken)
    finally:
        sock.close()
