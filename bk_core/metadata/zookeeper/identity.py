# SPDX-License-Identifier: Apache-2.0
"""Reads the credentials by which this process identifies itself to ZooKeeper. Their file is read again for each
connection.

A TLS certificate is an identity by itself, of scheme ``x509``, if ZooKeeper's X509AuthenticationProvider is on.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import logging
import os
from dataclasses import dataclass, field
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_core.installing import how_to_install

logger = logging.getLogger(__name__)
_BYTES_MAX = 16_384
"""The number of bytes that are read of a file of credentials."""


@dataclass(frozen=True, slots=True)
class Credential:
    """One line of a file of credentials: a scheme, a user and a password."""

    scheme: str
    user: str
    password: str = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the identity in an ACL."""
        if self.scheme == "sasl":
            return f"sasl:{self.user}"
        digest = hashlib.sha1(f"{self.user}:{self.password}".encode(), usedforsecurity=False).digest()
        return f"digest:{self.user}:{base64.b64encode(digest).decode('ascii')}"


class ZooKeeperIdentity:
    """The credentials in the file at ``path``, for the sessions of one process. Raises InvalidArgumentError if they
    cannot be used."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._read = read_credentials(path)
        if os.stat(path).st_mode & 0o004:
            logger.warning("every user of this host may read %s, which holds a password; chmod 600 prevents that", path)

    def __repr__(self) -> str:
        return f"ZooKeeperIdentity({self.path!r})"

    @property
    def credentials(self) -> tuple[Credential, ...]:
        """The credentials that were read last."""
        return self._read

    def refresh(self) -> None:
        """Read the file again. If it cannot be used, for example because it is being written, keep the old
        credentials."""
        try:
            self._read = read_credentials(self.path)
        except InvalidArgumentError as error:
            logger.warning("the old credentials for ZooKeeper are kept: %s", error)

    @property
    def digests(self) -> set[tuple[str, str]]:
        """The credentials of scheme ``digest``, as kazoo's ``auth_data``."""
        return {("digest", f"{each.user}:{each.password}") for each in self._read if each.scheme == "digest"}

    @property
    def sasl(self) -> dict[str, Any] | None:
        """Kazoo's options for SASL, or None if the file has no ``sasl`` line."""
        for each in self._read:
            if each.scheme == "sasl":
                return {"mechanism": "DIGEST-MD5", "username": each.user, "password": each.password}
        return None

    def __str__(self) -> str:
        return f"{', '.join(f'{each.scheme}:{each.user}' for each in self._read)} of {self.path}"


def read_credentials(path: str) -> tuple[Credential, ...]:
    """Return the credentials in a file of lines ``digest:USER:PASSWORD`` or ``sasl:USER:PASSWORD``. Empty lines and
    comments (``#``) are skipped. Raises InvalidArgumentError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable("The credentials for ZooKeeper cannot be read", f"{path}: {error}") from error
    lines = [(number, line.strip("\r\n")) for number, line in enumerate(text.split("\n"), 1)]
    found = tuple(_credential(path, *each) for each in lines if each[1].strip() and not each[1].startswith("#"))
    if not found:
        raise _unusable("The file for the credentials for ZooKeeper is empty", path)
    if sum(each.scheme == "sasl" for each in found) > 1:
        raise _unusable("A session with ZooKeeper has one identity of scheme sasl", path)
    if any(each.scheme == "sasl" for each in found) and importlib.util.find_spec("puresasl") is None:
        raise InvalidArgumentError(
            "SASL needs the package pure-sasl, which is not installed",
            value=f"zookeeper_auth_path={path}",
            remedy=how_to_install("sasl"),
        )
    return found


def _credential(path: str, number: int, line: str) -> Credential:
    scheme, _, rest = line.partition(":")
    user, colon, password = rest.partition(":")
    if scheme not in ("digest", "sasl") or not user or not colon or not password:
        raise _unusable("A line of the credentials for ZooKeeper cannot be read", f"{path}, line {number}")
    return Credential(scheme, user, password)


def _unusable(what: str, value: str) -> InvalidArgumentError:  # the value shows no line: a line has a password
    return InvalidArgumentError(
        what, value=f"zookeeper_auth_path={value}", remedy="write digest:USER:PASSWORD or sasl:USER:PASSWORD into it"
    )
