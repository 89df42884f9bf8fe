# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made while they run: an authority, and certificates that are correct or wrong in one way."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bk_core.access.tls import Tls, TlsPaths

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Files:
    """The paths of PEM files: a certificate, its key, and the authority that its owner trusts."""

    certificate: Path
    key: Path
    ca: Path

    @property
    def pem(self) -> list[str]:
        """The paths, as arguments of a program."""
        return [str(self.certificate), str(self.key), str(self.ca)]

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a bookie or a client."""
        return {
            "tls_ca_path": str(self.ca),
            "tls_certificate_path": str(self.certificate),
            "tls_key_path": str(self.key),
            **more,
        }

    def tls(self, **more: Any) -> Tls:
        paths = TlsPaths(ca_path=str(self.ca), certificate_path=str(self.certificate), key_path=str(self.key), **more)
        return Tls(paths)

    def trust(self) -> Tls:
        """Return TLS settings for a client without a certificate of its own."""
        return Tls(TlsPaths(ca_path=str(self.ca)))

    def become(self, other: Files) -> None:
        """Write the contents of other files to these paths."""
        for own, its in ((self.certificate, other.certificate), (self.key, other.key), (self.ca, other.ca)):
            own.write_bytes(its.read_bytes())


class Authority:
    """Signs certificates; all files are below ``path``."""

    def __init__(self, path: Path, name: str = "authority") -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder(self._name, self._name, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = path / f"{name}.crt"
        self.ca.write_bytes(_pem(self._certificate))

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = HOSTS,
        uris: Sequence[str] = (),
        begins_h: float = -1,
        ends_h: float = 24,
        self_signed: bool = False,
    ) -> Files:
        """Make a certificate for servers and clients, valid from ``begins_h`` to ``ends_h``, in hours from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        now = datetime.now(UTC)
        names = [*map(_host, hosts), *map(x509.UniformResourceIdentifier, uris)]
        builder = (
            x509.CertificateBuilder(subject if self_signed else self._name, subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(hours=begins_h))
            .not_valid_after(now + timedelta(hours=ends_h))
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(key if self_signed else self._key, hashes.SHA256())
        files = Files(self._path / f"{name}.crt", self._path / f"{name}.key", self._path / f"{name}-ca.crt")
        files.certificate.write_bytes(_pem(certificate))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        files.ca.write_bytes(self.ca.read_bytes())
        return files


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def java_settings(files: Files, provider: str = "JDK") -> dict[str, object]:
    """Return the TLS settings of a client or a bookie of Apache's, as in docs/security.md. ``provider`` is JDK or
    OpenSSL."""
    return {
        "tlsProvider": provider,
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(files.key),
        "tlsCertificatePath": str(files.certificate),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(files.ca),
        "tlsHostnameVerificationEnabled": "true",
    }
