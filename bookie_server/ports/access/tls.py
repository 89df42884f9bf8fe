# SPDX-License-Identifier: Apache-2.0
"""TLS of a bookie's ports: what each does with a connection before it is one of its protocol.

A port with TLS takes nothing else. A refused client is logged here, with the reason: what the client hears is TLS's own
alert, which is one word.
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
"""What a client that speaks TLS begins with."""

PLAIN_REFUSED = "this port speaks TLS, and nothing else"

_LINGER_S = 0.5  # what a refused client still sends is taken for so long: a reset would destroy its alert
_LINGER_BYTES = 64 << 10
_SAID_MAX = 80  # characters of what a client said, in a line of the log

TOKEN_WANTED = "this port wants a token; give token_path"
EITHER_WANTED = "this port wants a token, or a certificate where it takes them"
NOT_LISTED = "this identity is not let in; the bookie's tls_clients must list whom this token names"


def said_to_client(error: TlsError) -> str:
    """What a client hears whose certificate does not let it in, with the remedy."""
    return f"{error.what}: {error.value}; {error.remedy}"


class PortTls:
    """What the ports of a bookie have in common. ``client_auth``: clients show a certificate. With ``keys`` they may
    show a token for the cluster ``audience`` (of ``issuer``, if one is given) instead, and then a certificate is
    optional. ``admission`` says which identities of either kind are let in."""

    def __init__(
        self, tls: Tls, admission: Admission, keys: TokenKeys | None = None, audience: str = "", issuer: str = ""
    ) -> None:
        self.tls, self._admission = tls, admission
        self._keys, self._audience, self._issuer = keys, audience, issuer
        self.client_auth = tls.paths.client_auth
        self.wants_tokens = keys is not None
        """A client that shows no certificate is heard all the same, as far as it takes to show a token."""
        self._turns = asyncio.Lock()
        self._throttle = LogThrottle()
        self.on_refused: Callable[[str, str, str], object] = lambda peer, port, why: None
        """Called with each client that is refused, where it is connected, and why."""

    def context(self, *, lenient: bool = False) -> ssl.SSLContext:
        """``lenient``: as in :class:`Tls`."""
        return self.tls.server(lenient=lenient or self.wants_tokens)

    async def greeted(self, sock: socket.socket, port: str) -> tuple[Connected, Principal | str]:
        """The connection to go on with, and its client, or why that is refused: it speaks plain, or is not let in.
        Raises OSError if no handshake came about; then the connection is closed, and it is logged."""
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
        """The client that has a certificate with these names; None: it has shown none, and may still show a token.
        Raises TlsError; then it is logged."""
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
        """The identity of a client that shows a token, or none. It is found before any request is carried out. A
        token says more than a certificate. Raises AuthenticationError, which has what the client may hear; then it is
        logged."""
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
        """The clients that are no longer admitted, and why: a token has ended, or its key was removed from the file."""
        believed = {"", *(key.print for key in self._keys.now().values())} if self._keys is not None else {""}
        now, found = time.time(), dict[Principal, str]()
        for each in principals:
            if each.until_s <= now:
                found[each] = "the token has expired"
            elif each.signer not in believed:
                found[each] = "the key of the token is believed no more"
        return found

    def refused(self, peer: str, port: str, why: str, said: str = "") -> None:
        """Log it; the same of the same host once in ten seconds. ``said`` is what the client has chosen: it stands in
        the line, short and escaped, and makes no other one of it."""
        self.on_refused(peer, port, why)
        if self._throttle.allows(Principal(peer).host, why):
            shown = f": {said[:_SAID_MAX]!r}" if said else ""
            logger.warning("%s: %s is refused over TLS: %s%s", port, peer, why, shown)


def names_shown(certificate: Mapping[str, Any] | None) -> Names | None:
    """From what ``ssl`` says of a client's certificate; None if there is none."""
    return names_of(certificate) if certificate else None


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
