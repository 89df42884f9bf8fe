# SPDX-License-Identifier: Apache-2.0
"""Secrets that an option names instead of holding: by a file, or by a variable of the environment. No message has the
secret, or a part of it."""

from __future__ import annotations

import os

from bk_core.errors import InvalidArgumentError

SECRET_BYTES_MAX = 64 << 10


def secret_of_file(path: str, option: str) -> bytes:
    """What the file has, without the end of its last line. ``option`` is what named it. Raises InvalidArgumentError."""
    try:
        with open(path, "rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"the file of {option} cannot be read",
            value=f"{path}: {getattr(error, 'strerror', None) or type(error).__name__}",
            remedy="it is read where the option is given: in Spark on the driver",
        ) from None
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if not secret or len(secret) > SECRET_BYTES_MAX:
        what = "is empty" if not secret else f"has more than {SECRET_BYTES_MAX} bytes"
        raise InvalidArgumentError(f"the file of {option} {what}", value=path, remedy="write the secret into it, alone")
    return secret


def secret_of_variable(name: str, option: str) -> bytes:
    """What this variable of the environment has. Raises InvalidArgumentError if it is not set, or empty."""
    secret = os.environ.get(name, "")
    if not secret:
        raise InvalidArgumentError(
            f"the variable of {option} is not set",
            value=name,
            remedy="set it for the process that is given the option: in Spark for the driver, before it starts",
        )
    return os.fsencode(secret)
