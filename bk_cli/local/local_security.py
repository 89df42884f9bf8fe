# SPDX-License-Identifier: Apache-2.0
"""Sets up mode ``secure`` for a cluster on this machine (docs/security.md). It makes an authority that signs a
certificate for each role, the key of the bookies' grants, and the settings of each process.

All files are below one folder that only its owner may enter. The next start uses them again, and renews a certificate
that ends soon.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bk_cli.local.cluster_layout import HOST
from bk_core.access.roles import SECURE, Line, Role, RolesTable
from bk_core.errors import DataDirectoryError, PackageMismatchError
from bk_core.installing import how_to_install

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ADMIN, CLIENT, BOOKIE, ZOOKEEPER = "admin", "client", "bookie", "zookeeper"
ROLES: Mapping[str, Role] = {ADMIN: Role.ADMIN, CLIENT: Role.WRITER, BOOKIE: Role.BOOKIE}
"""The role of each identity, on the whole cluster. All bookies are one identity, so that more of them can be added."""

HOSTS = (HOST, "localhost")
AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 365
RENEW_DAYS = 30


class LocalSecurity:
    """The files in the folder ``path``. ``hosts`` are the names and addresses of the bookies. Call :meth:`prepare`
    first."""

    def __init__(self, path: Path, hosts: tuple[str, ...] = HOSTS) -> None:
        self.path, self._hosts = path, hosts
        self.ca = path / "ca.crt"
        self.grant_keys = path / "grant.keys"

    def certificate(self, who: str) -> Path:
        return self.path / f"{who}.crt"

    def key(self, who: str) -> Path:
        return self.path / f"{who}.key"

    @property
    def zookeeper_pem(self) -> Path:
        """ZooKeeper's certificate and its key, in one file."""
        return self.path / "zookeeper.pem"

    @staticmethod
    def identity(who: str) -> str:
        """Return the identity that bookies and ZooKeeper read in the certificate."""
        return f"CN={who},O=bk-local"

    def prepare(self) -> None:
        """Make missing files, and renew certificates that end soon. Raises PackageMismatchError if the package that
        makes certificates is missing, and DataDirectoryError if files cannot be written."""
        if find_spec("cryptography") is None:
            raise PackageMismatchError(
                "a package that makes certificates is missing",
                value="cryptography",
                remedy=how_to_install("auth"),
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_certificates()
            if not self.grant_keys.exists():
                _write(self.grant_keys, f"{secrets.token_hex(32)}\n".encode())
        except OSError as error:
            raise DataDirectoryError(
                "the certificates of this cluster cannot be made",
                value=f"{error.filename}: {error.strerror}",
                remedy=f"check the permissions of {self.path}",
            ) from error

    def _make_certificates(self) -> None:
        authority = _Authority(self.path)
        for who in (*ROLES, ZOOKEEPER):
            if not authority.has_signed(self.certificate(who), self.key(who)):
                authority.sign(who, self.certificate(who), self.key(who), self._hosts)
        _write(self.zookeeper_pem, self.certificate(ZOOKEEPER).read_bytes() + self.key(ZOOKEEPER).read_bytes())

    # --- the settings of processes ---

    def settings(self, who: str) -> dict[str, Any]:
        """Return the settings of a client or a command."""
        return {
            "tls_ca_path": str(self.ca),
            "tls_certificate_path": str(self.certificate(who)),
            "tls_key_path": str(self.key(who)),
            "tls_zookeeper": True,
            "security": SECURE,
            "zookeeper_acl": "; ".join(f"{each}=x509:{self.identity(each)}" for each in ROLES),
        }

    def bookie_settings(self) -> dict[str, Any]:
        return {**self.settings(BOOKIE), "grant_keys_path": str(self.grant_keys)}

    def spark_options(self) -> dict[str, str]:
        return {
            name.replace("_", "."): value if isinstance(value, str) else "true"
            for name, value in self.settings(CLIENT).items()
        }

    def environment(self, who: str, uri: str) -> dict[str, str]:
        """Return the environment variables for ``bk``."""
        told = {name: value if isinstance(value, str) else "1" for name, value in self.settings(who).items()}
        return {f"BK_{name.upper()}": value for name, value in {"metadata_service_uri": uri, **told}.items()}

    def save_environments(self, uri: str) -> None:
        """Write the files that a shell reads to use ``bk`` as the administrator or as a client."""
        for who in (ADMIN, CLIENT):
            lines = [f"export {name}={shlex.quote(value)}\n" for name, value in self.environment(who, uri).items()]
            _write(self.environment_path(who), "".join(lines).encode())

    def environment_path(self, who: str) -> Path:
        return self.path / f"{who}.env"

    def roles(self) -> RolesTable:
        """Return the first table of roles."""
        return RolesTable(tuple(Line(self.identity(who), role) for who, role in ROLES.items()))


class _Authority:
    """The authority that signs certificates. Its own certificate and key are read from ``path``, or made."""

    def __init__(self, path: Path) -> None:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        certificate, key = path / "ca.crt", path / "ca.key"
        found = _read_certificate(certificate) if key.exists() else None
        if found is None or _ends_within(found, CERTIFICATE_DAYS):
            _make_authority(certificate, key)
            found = _read_certificate(certificate)
        assert found is not None
        self._certificate = found
        self._key: Any = load_pem_private_key(key.read_bytes(), password=None)

    def has_signed(self, certificate: Path, key: Path) -> bool:
        """Return whether this authority signed the certificate, the certificate does not end soon, and its key
        exists."""
        from cryptography.exceptions import InvalidSignature

        found = _read_certificate(certificate) if key.exists() else None
        if found is None or _ends_within(found, RENEW_DAYS):
            return False
        try:
            found.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def sign(self, who: str, certificate: Path, key: Path, hosts: tuple[str, ...]) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID

        own = _new_key()
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            _builder(_name(who), self._certificate.subject, own, CERTIFICATE_DAYS)
            .add_extension(issuer, critical=False)
            .add_extension(both, critical=False)
            .add_extension(x509.SubjectAlternativeName([*map(_host, hosts)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write_pair(certificate, signed, key, own)


def _make_authority(certificate: Path, key: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    own, name = _new_key(), _name("authority")
    identifier = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
    signed = (
        _builder(name, name, own, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(_signs_certificates(), critical=True)
        .sign(own, hashes.SHA256())
    )
    _write_pair(certificate, signed, key, own)


def _signs_certificates() -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(who: str) -> x509.Name:
    """Return the name that :meth:`LocalSecurity.identity` gives as text. RFC 2253 writes its parts in reverse order."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "bk-local"), x509.NameAttribute(NameOID.COMMON_NAME, who)]
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _host(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _read_certificate(path: Path) -> x509.Certificate | None:
    """Return the certificate, or None if there is none that can be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _ends_within(certificate: x509.Certificate, days: int) -> bool:
    return certificate.not_valid_after_utc < datetime.now(UTC) + timedelta(days=days)


def _write_pair(certificate: Path, signed: x509.Certificate, key: Path, own: EllipticCurvePrivateKey) -> None:
    """Write the key and then the certificate. In the other order, a crash could leave a certificate without its key."""
    from cryptography.hazmat.primitives import serialization as s

    certificate.unlink(missing_ok=True)
    _write(key, own.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    _write(certificate, signed.public_bytes(s.Encoding.PEM))


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    partial = path.with_name(f"{path.name}.new")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
