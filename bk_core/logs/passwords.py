# SPDX-License-Identifier: Apache-2.0
"""Reads the passwords of many logs from a file, for the worker that does the upkeep of all logs of a cluster."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

from bk_core.errors import InvalidArgumentError


def passwords_of(path: Path | None, otherwise: bytes = b"") -> Callable[[str], bytes]:
    """Return a function from the name of a log to its password. The TOML file ``path`` maps names of logs to passwords;
    logs that it does not name have the password ``otherwise``. Raises InvalidArgumentError."""
    found: dict[str, bytes] = {}
    if path is not None:
        try:
            texts = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidArgumentError(
                "the file of passwords cannot be read", value=f"{path}: {type(error).__name__}"
            ) from error
        for name, text in texts.items():
            if not isinstance(text, str):
                raise InvalidArgumentError(
                    "a password is a text", value=f"{path}: {name}", remedy='write "name.of.log" = "password"'
                )
            found[name] = text.encode("utf-8")
    return lambda name: found.get(name, otherwise)
