# SPDX-License-Identifier: Apache-2.0
"""Makes the contexts of TLS, explains why a handshake failed, and reads the identity from a certificate.

Code that connects or accepts gets a context from a :class:`Tls` for each connection. The Tls checks whether its files
have changed and uses the new ones for new connections, so a renewed certificate needs no restart. This file touches no
sockets.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from bk_core.errors import InvalidArgumentError, TlsError

logger = logging.getLogger(__name__)

HTTPS, NONE = "https", "none"
ENDPOINT_IDENTIFICATIONS = (HTTPS, NONE)
"""The values of ``tls_endpoint_identification``. With HTTPS a server's certificate must have the name of its host.
Kafka uses the same words."""

IDENTITY_RULES = ("subject", "dns", "spiffe")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPaths:
    """The PEM files of a process. They are the trusted authorities, and the process's certificate with its key, which a
    client may leave out. With ``verify_host`` a server's certificate must have the name of its host. With
    ``client_auth`` a server admits only clients with a certificate. The constructor raises InvalidArgumentError if only
    one of certificate and key is given."""

    ca_path: str
    certificate_path: str = ""
    key_path: str = ""
    verify_host: bool = True
    client_auth: bool = True

    def __post_init__(self) -> None:
        if not self.ca_path or bool(self.certificate_path) is not bool(self.key_path):
            given = [name for name in ("ca", "certificate", "key") if getattr(self, f"{name}_path")]
            raise InvalidArgumentError(
                "the files of TLS do not fit together",
                value=f"given: {', '.join(f'tls_{name}_path' for name in given)}",
                remedy="tls_ca_path is always needed, and tls_certificate_path and tls_key_path go together",
            )

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(path for path in (self.ca_path, self.certificate_path, self.key_path) if path)


class Pem(NamedTuple):
    """The content of the PEM files. ``certificate`` and ``key`` are None for a client without a certificate."""

    authorities: bytes
    certificate: bytes | None
    key: bytes | None

    def __repr__(self) -> str:
        return "Pem(…)"  # a key must not appear in a log or a traceback


class _Loaded(NamedTuple):
    client: ssl.SSLContext
    pem: Pem
    server: ssl.SSLContext | None = None
    lenient: ssl.SSLContext | None = None


class Tls:
    """Has the TLS contexts of a process, for connections as a client and, if it has a certificate, as a server. Any
    thread may use it. The constructor raises InvalidArgumentError for files that cannot be used."""

    def __init__(self, paths: TlsPaths) -> None:
        self.paths = paths
        self._lock = threading.Lock()
        self._stamps = _stamps(paths)
        self._failed: object = None  # the stamps of files that could not be used, so that the warning is logged once
        self._loaded = _load(paths)

    def client(self) -> ssl.SSLContext:
        """Return the context for a connection to a server."""
        return self._now().client

    def client_of(self, protocol: str) -> ssl.SSLContext:
        """Return a new client context that announces ``protocol`` by ALPN. Some servers require that."""
        made = _load(self.paths).client
        made.set_alpn_protocols([protocol])
        return made

    def server(self, *, lenient: bool = False) -> ssl.SSLContext:
        """Return the context for an accepted connection. With ``lenient`` the client may connect without a certificate,
        and the caller must check the identity of each operation that needs one."""
        now = self._now()
        server = now.lenient if lenient else now.server
        assert server is not None, "a server has a certificate"
        return server

    def pem(self) -> Pem:
        """Return the bytes of the files, for gRPC, which makes its own contexts."""
        return self._now().pem

    def _now(self) -> _Loaded:
        with self._lock:
            stamps = _stamps(self.paths)
            if stamps != self._stamps:
                try:
                    self._loaded = _load(self.paths)
                    self._stamps = stamps
                    logger.info("the files of TLS have changed; new connections use the new files")
                except InvalidArgumentError as error:
                    if self._failed != stamps:
                        self._failed = stamps
                        logger.warning(
                            "the files of TLS have changed and cannot be used, so the old ones are used: %s", error
                        )
            return self._loaded


def _stamps(paths: TlsPaths) -> list[tuple[int, ...] | None]:
    """Return a stamp for each file. The stamp changes when the file, or a link to it, is replaced."""
    found: list[tuple[int, ...] | None] = []
    for path in paths.all:
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev))
    return found


def _load(paths: TlsPaths) -> _Loaded:
    """Read the files and make the contexts. Raises InvalidArgumentError."""
    files = [_read(path) for path in paths.all]
    client = _context(ssl.PROTOCOL_TLS_CLIENT, paths)
    client.check_hostname = paths.verify_host
    client.verify_mode = ssl.CERT_REQUIRED
    if not paths.certificate_path:
        return _Loaded(client, Pem(files[0], None, None))
    server, lenient = _context(ssl.PROTOCOL_TLS_SERVER, paths), _context(ssl.PROTOCOL_TLS_SERVER, paths)
    server.verify_mode = ssl.CERT_REQUIRED if paths.client_auth else ssl.CERT_NONE
    lenient.verify_mode = ssl.CERT_OPTIONAL if paths.client_auth else ssl.CERT_NONE
    for each in (server, lenient):
        each.num_tickets = 0  # no session is resumed, because it could keep an identity that has ended
    return _Loaded(client, Pem(*files), server, lenient)


def _context(kind: Any, paths: TlsPaths) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    path = paths.ca_path
    try:
        context.load_verify_locations(cafile=path)
        if paths.certificate_path:
            path = f"{paths.certificate_path} and {paths.key_path}"
            context.load_cert_chain(paths.certificate_path, paths.key_path, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = getattr(error, "reason", None) or str(error)
        raise InvalidArgumentError(
            "a file of TLS cannot be used",
            value=f"{path}: {why}",
            remedy="write PEM files: whole certificates, and the unencrypted key of this certificate",
        ) from error
    return context


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgumentError(
            "a file of TLS cannot be read", value=f"{path}: {error.strerror}", remedy="check path and permissions"
        ) from error


def _no_password() -> NoReturn:
    raise ValueError("the key is encrypted")  # without this OpenSSL asks for a password on the terminal


# --- why a handshake failed ---

_VERIFICATION: Mapping[int, tuple[str, str]] = {
    9: ("its certificate is not valid yet", "compare the clocks of both hosts, or wait"),
    10: ("its certificate has expired", "give it a new one; no restart is needed"),
    18: ("its certificate is self-signed", "give it one of the cluster's authority, or add it to tls_ca_path"),
    23: ("its certificate was revoked", "give it a new one"),
}
_UNKNOWN_AUTHORITY = "its certificate is of an authority that is not known here"
_ANOTHER_HOST = "its certificate is of another host"
_VERIFICATION_OF_HOST = (62, 64)
_VERIFICATION_OF_AUTHORITY = (2, 7, 19, 20, 21, 27)

_NEED_CERTIFICATE = ("it wants a certificate of the client", "give tls_certificate_path and tls_key_path")
_NO_TLS = ("the server there does not speak TLS", "configure TLS there; this end never falls back to plain")
_ALERTS: Mapping[str, tuple[str, str]] = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _NEED_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": (
        "it does not know the authority of this end's certificate",
        "use a certificate of the cluster's authority (tls_certificate_path), or add the authority there",
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "this end's certificate has expired, it says",
        "renew the file at tls_certificate_path",
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": ("it refuses this end's certificate", "its log says why"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": ("it refuses this end's certificate", "its log says why"),
    "TLSV1_ALERT_ACCESS_DENIED": ("it refuses this end's identity", "its log says why"),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": ("it refuses the handshake", "its log says why; it may want a certificate"),
    "TLSV1_ALERT_PROTOCOL_VERSION": ("it does not speak a version of TLS that is secure enough", "use TLS 1.2 or 1.3"),
    "UNSUPPORTED_PROTOCOL": ("it does not speak a version of TLS that is secure enough", "use TLS 1.2 or 1.3"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("it gave no certificate", "give it one (tls_certificate_path)"),
}
_ENDED = ("it ended the connection during the handshake", "it may not speak TLS on this port, or not trust this end")


class NoTlsError(ConnectionError):
    """The error for an end of a connection that says that it does not support TLS."""


def explained(error: BaseException) -> tuple[str, str]:
    """Return why a handshake or a connection failed, and a remedy. The reason calls the other end "it"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in _VERIFICATION_OF_HOST:
            remedy = "give it a certificate with this name or address (subjectAltName), or correct advertised_address"
            return f"{_ANOTHER_HOST}: {error.verify_message.rstrip('.')}", remedy
        if code in _VERIFICATION_OF_AUTHORITY:
            return _UNKNOWN_AUTHORITY, "give it a certificate of the cluster's authority, or correct tls_ca_path"
        return _VERIFICATION.get(code, (f"its certificate is not accepted: {error.verify_message}", ""))
    if isinstance(error, NoTlsError):
        return str(error), _NO_TLS[1]
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return _ENDED
    reason = str(getattr(error, "reason", "") or "")
    return _ALERTS.get(reason, (reason or str(error) or "no answer in time", "look at the log of the other end"))


def failure(what: str, where: str, error: BaseException) -> TlsError:
    """Return the error for a failed handshake. ``what`` names the server, such as "ZooKeeper", and ``where`` is
    host:port."""
    why, remedy = explained(error)
    made = TlsError(f"TLS with {what} at {where} failed", value=why, remedy=remedy)
    made.__cause__ = error
    return made


# --- identities ---


class Names(NamedTuple):
    """The names in a certificate. ``subject`` is in the form of RFC 2253; ``dns`` and ``uris`` are from
    subjectAltName."""

    subject: str
    dns: Sequence[str] = ()
    uris: Sequence[str] = ()


_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "domainComponent": "DC",
    "userId": "UID",
}


def names_of(certificate: Mapping[str, Any]) -> Names:
    """Return the names in a certificate. ``certificate`` has the form of ``SSLSocket.getpeercert``."""
    parts = [
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in certificate.get("subject", ())
    ]
    others = certificate.get("subjectAltName", ())
    return Names(
        ",".join(reversed(parts)),
        [value for kind, value in others if kind == "DNS"],
        [value for kind, value in others if kind == "URI"],
    )


def _escaped(value: str) -> str:
    """Return a value of a subject, escaped so that one value cannot pass for several parts."""
    escaped = "".join(f"\\{each}" if each in ',+"\\<>;' else each for each in value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    return f"{escaped[:-1]}\\ " if escaped.endswith(" ") and len(value) > 1 else escaped


@dataclass(frozen=True, slots=True)
class Admission:
    """Decides which clients may connect. ``rule`` says which name in a certificate is the identity. Identities that
    match one of ``patterns``, in which ``*`` stands for any text, are admitted. Without patterns all identities are."""

    rule: str = "subject"
    patterns: tuple[str, ...] = ()

    def admit(self, names: Names) -> str:
        """Return the identity in a certificate. Raises TlsError if the certificate has none, or if the identity is not
        admitted."""
        identity = self._identity(names)
        if not self.lets_in(identity):
            raise TlsError(
                "this identity is not let in", value=identity, remedy="the bookie's tls_clients must list it"
            )
        return identity

    def lets_in(self, identity: str) -> bool:
        return not self.patterns or any(fnmatch.fnmatchcase(identity, _literal(each)) for each in self.patterns)

    def _identity(self, names: Names) -> str:
        found = [names.subject] if names.subject else []
        if self.rule == "dns":
            found = list(names.dns[:1])
        elif self.rule == "spiffe":
            found = [each for each in names.uris if each.startswith("spiffe://")]
        if len(found) != 1 or not found[0].isprintable():  # a line break would forge lines of logs
            raise TlsError(
                f"a certificate has no identity by the rule {self.rule}",
                value=f"its subject is {names.subject!r}",
                remedy="look at tls_identity",
            )
        return found[0]


def _literal(pattern: str) -> str:
    """Return a pattern for fnmatch in which only ``*`` is special, because a subject may have brackets and question
    marks."""
    return "".join(f"[{each}]" if each in "[?" else each for each in pattern)
