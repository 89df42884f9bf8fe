# SPDX-License-Identifier: Apache-2.0
"""Reads secrets from the file or the environment variable that an option names. No message contains a secret or a part
of a secret."""

from __future__ import annotations

import logging
import os
import re
import stat
from dataclasses import dataclass

from bk_core.access.tokens import TOKEN_BYTES_MAX
from bk_core.errors import AuthenticationError, InvalidArgumentError

logger = logging.getLogger(__name__)

SECRET_BYTES_MAX = 64 << 10
"""The maximum size of a file with a secret, in bytes, so that a wrong path does not load a large file."""


def secret_of_file(path: str, option: str) -> bytes:
    """Return the content of a file without its last line break. ``option`` is the option that named the file. Raises
    InvalidArgumentError."""
    try:
        with open(path, "rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"the file of {option} cannot be read",
            value=f"{path}: {getattr(error, 'strerror', None) or type(error).__name__}",
            remedy="it is read on the host where the option is given, in Spark on the driver",
        ) from None
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if not secret or len(secret) > SECRET_BYTES_MAX:
        what = "is empty" if not secret else f"has more than {SECRET_BYTES_MAX} bytes"
        raise InvalidArgumentError(f"the file of {option} {what}", value=path, remedy="write the secret into it, alone")
    return secret


def secret_of_variable(name: str, option: str) -> bytes:
    """Return the value of an environment variable. Raises InvalidArgumentError if it is not set, or empty."""
    secret = os.environ.get(name, "")
    if not secret:
        raise InvalidArgumentError(
            f"the variable of {option} is not set",
            value=name,
            remedy="set it for the process that gets the option, in Spark for the driver, before it starts",
        )
    return os.fsencode(secret)


_told: set[str] = set()  # paths about which the warning was logged already

_TOKEN = re.compile(rb"[\w-]+(?:\.[\w-]+){2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that contains this client's token and nothing else. The file is read for each connection, so a renewed
    token needs no restart."""

    path: str

    def read(self) -> bytes:
        """Read the token. Raises AuthenticationError if the file cannot be read or has no token. The error shows
        nothing of the file's content."""
        try:
            with open(self.path, "rb") as file:
                token = file.read(2 * TOKEN_BYTES_MAX).strip()
                mode = os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise AuthenticationError(
                "this client's token cannot be read",
                value=f"{self.path}: {error.strerror}",
                remedy="check token_path and the file's permissions",
            ) from error
        if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
            raise AuthenticationError(
                "the file of this client's token holds no token",
                value=f"{self.path}: {len(token)} bytes",
                remedy=f"write a token of three parts with dots between them (a JWT), at most {TOKEN_BYTES_MAX} bytes",
            )
        if mode & stat.S_IROTH and self.path not in _told:
            _told.add(self.path)
            logger.warning(
                "every user of this host may read %s and so act as this client; chmod o-r prevents that", self.path
            )
        return token
