# SPDX-License-Identifier: Apache-2.0
"""TLS of a bookie's ports: the handshake of a connection, before its own protocol begins.

A port with TLS accepts no plain connections. A refused client is logged here, with the reason, because the client
itself gets only TLS's alert, which is one word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bk_core.access.tls import Admission, Names, Tls, explained, names_of
from bk_core.errors import AuthenticationError, TlsError
from bk_core.observe.log_throttle import LogThrottle
from bk_core.transport.lane.tls_socket import Connected, TlsSocket, ready, shake_hands
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.access.tokens import TokenKeys, TokenRefusedError, verify
from bookie_server.ports.sockets import peer_of

logger = logging.getLogger(__name__)

_HANDSHAKE = b"\x16"
"""The first byte from a client that speaks TLS."""

PLAIN_REFUSED = "this port speaks TLS, and nothing else"

_LINGER_S = 0.5  # data from a refused client is read for this long: a reset would destroy the alert
_LINGER_BYTES = 64 << 10
_SAID_MAX = 80  # characters of a client's own text in a log line

TOKEN_WANTED = "this port wants a token; give token_path"
EITHER_WANTED = "this port wants a token, or a certificate where it takes them"
NOT_LISTED = "this identity is not let in; the bookie's tls_clients must list the identity that this token names"


def said_to_client(error: TlsError) -> str:
    """Return the text for a client whose certificate is refused, with the remedy."""
    return f"{error.what}: {error.value}; {error.remedy}"


class PortTls:
    """The TLS and authentication that all ports of a bookie share. With the ``client_auth`` of ``tls``, clients show a
    certificate. With ``keys`` they may instead show a token for the cluster ``audience`` (from ``issuer``, if one is
    given); then a certificate is optional. ``admission`` says which identities of either kind are let in."""

    def __init__(
        self, tls: Tls, admission: Admission, keys: TokenKeys | None = None, audience: str = "", issuer: str = ""
    ) -> None:
        self.tls, self._admission = tls, admission
        self._keys, self._audience, self._issuer = keys, audience, issuer
        self.client_auth = tls.paths.client_auth
        self.wants_tokens = keys is not None
        """Whether clients may show a token. Then the handshake accepts a client without a certificate, so that it can
        show one."""
        self._turns = asyncio.Lock()
        self._throttle = LogThrottle()
        self.on_refused: Callable[[str, str, str], object] = lambda peer, port, why: None
        """Called for each client that is refused: with its address, the name of the port, and the reason."""

    def context(self, *, lenient: bool = False) -> ssl.SSLContext:
        """Return the context for a handshake. ``lenient`` is as in :class:`Tls`."""
        return self.tls.server(lenient=lenient or self.wants_tokens)

    async def greeted(self, sock: socket.socket, port: str) -> tuple[Connected, Principal | str]:
        """Do the handshake of a new connection. Return the connection on which to continue, and its client. If the
        client does not speak TLS or is not admitted, return the reason in place of the client. If the handshake fails,
        this logs the failure, closes the connection and raises OSError."""
        peer = peer_of(sock)
        if not await speaks_tls(sock):
            self.refused(peer, port, "it speaks plain")
            return sock, PLAIN_REFUSED
        secured = await self._secured(sock, peer, port)
        try:
            return secured, self.admit(names_shown(secured.getpeercert()), peer, port)
        except TlsError as error:
            return secured, said_to_client(error)

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

    def admit(self, names: Names | None, peer: str, port: str) -> Principal:
        """Return the client whose certificate has these names. ``names`` is None for a client without a certificate,
        which may still send a token. If the client is refused, this logs the refusal and raises TlsError."""
        if not self.client_auth or (names is None and self.wants_tokens):
            return Principal(peer)
        try:
            identity = self._admission.admit(names or Names(""))
        except TlsError as error:
            self.refused(peer, port, f"{error.what}: {error.value}")
            raise
        logger.info("%s: %s is %s", port, peer, identity)
        return Principal(peer, identity, Proof.CERTIFICATE)

    def admitted(self, principal: Principal, token: bytes, port: str) -> Principal:
        """Return the client with the identity of this token, which replaces that of a certificate. Without a token,
        return ``principal`` if a certificate has identified it, or if this port takes no tokens. The caller does this
        before it carries out any request. If the client is refused, this logs the refusal and raises
        AuthenticationError with the text for the client."""
        if self._keys is None or (not token and principal.proof is not Proof.NONE):
            return principal
        try:
            if not token:
                wanted = EITHER_WANTED if self.client_auth else TOKEN_WANTED
                raise TokenRefusedError("it shows neither token nor certificate", wanted)
            claims = verify(token, self._keys.now(), self._audience, self._issuer)
        except TokenRefusedError as error:
            self.refused(principal.peer, port, str(error), error.said)
            raise AuthenticationError(error.told) from None
        if not self._admission.lets_in(claims.subject):
            self.refused(principal.peer, port, f"the identity of its token is not let in: {claims.subject}")
            raise AuthenticationError(NOT_LISTED)
        proven = Principal(principal.peer, claims.subject, Proof.TOKEN, claims.until_s, claims.signer)
        logger.info("%s: %s", port, proven)
        return proven

    def outlived(self, principals: Iterable[Principal]) -> dict[Principal, str]:
        """Return the clients that are no longer admitted, with the reasons: a token has expired, or its key was removed
        from the file."""
        believed = {"", *(key.print for key in self._keys.now().values())} if self._keys is not None else {""}
        now, found = time.time(), dict[Principal, str]()
        for each in principals:
            if each.until_s <= now:
                found[each] = "the token has expired"
            elif each.signer not in believed:
                found[each] = "the key of the token is no longer trusted"
        return found

    def refused(self, peer: str, port: str, why: str, said: str = "") -> None:
        """Log a refusal. The same refusal of the same host is logged at most once in ten seconds. ``said`` is text that
        the client has chosen. The line contains it shortened and escaped, and two refusals that differ only in this
        text count as the same."""
        self.on_refused(peer, port, why)
        if self._throttle.allows(Principal(peer).host, why):
            shown = f": {said[:_SAID_MAX]!r}" if said else ""
            logger.warning("%s: %s is refused over TLS: %s%s", port, peer, why, shown)


def names_shown(certificate: Mapping[str, Any] | None) -> Names | None:
    """Return the names in a client's certificate, as ``ssl`` decodes it; None without a certificate."""
    return names_of(certificate) if certificate else None


async def speaks_tls(sock: socket.socket) -> bool:
    """Return whether the first byte is that of a TLS handshake. The byte remains in the socket. Raises OSError if the
    connection ends."""
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
    """Close a connection so that its client can still read the last answer: first read and drop the data that it still
    sends, within bounds."""
    left = _LINGER_BYTES
    try:
        with contextlib.suppress(OSError):
            plain = sock.plain if isinstance(sock, TlsSocket) else sock  # the dropped data need not be decrypted
            plain.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and (taken := await asyncio.get_running_loop().sock_recv(plain, left)):
                    left -= len(taken)
    finally:
        sock.close()
