# SPDX-License-Identifier: Apache-2.0
"""Tokens on the client's side: a file that holds one, and what it is called on the wires. A client carries its token
and does not look into it; bookies do (``bookie_server/services/tokens.py``)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bk_core.errors import AuthenticationError

MECHANISM = "token"
"""Its name in hello."""

PLUGIN = "bookkeeper-token"
"""The name of the plug-in in Apache's AUTH."""

TOKEN_BYTES_MAX = 4096
"""The longest token that anybody takes: it also fits the head of a request to an admin port."""

_TOKEN = re.compile(rb"[\w-]+(?:\.[\w-]+){2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with this client's token, and nothing else. It is read anew for each connection, so that whoever renews it
    needs to tell nobody."""

    path: str

    def read(self) -> bytes:
        """Raises AuthenticationError. What the file holds is in no message."""
        try:
            with open(self.path, "rb") as file:
                token = file.read(2 * TOKEN_BYTES_MAX).strip()
        except OSError as error:
            raise AuthenticationError(
                "this client's token cannot be read",
                value=f"{self.path}: {error.strerror}",
                remedy="check token_path, and who may read the file",
            ) from error
        if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
            raise AuthenticationError(
                "the file of this client's token holds no token",
                value=f"{self.path}: {len(token)} bytes",
                remedy=f"three parts with dots between them (a JWT), at most {TOKEN_BYTES_MAX} bytes",
            )
        return token


def not_let_in(whom: str, why: str, *, has_token: bool) -> AuthenticationError:
    """The error for a server (bookie …) that refuses this client, and says ``why``, with a remedy behind ``; `` or
    without."""
    why, _, remedy = why.partition("; ")
    if not remedy:
        mine = "renew the file at token_path" if has_token else "give token_path, or a certificate"
        remedy = f"{mine} (its log says more of the reason)"
    return AuthenticationError(f"{whom} does not let this client in", value=why, remedy=remedy)
