# SPDX-License-Identifier: Apache-2.0
"""Tokens on the client's side: what they are called on the wires, and what a refusal is. A client carries its token
(``TokenFile`` in ``secret_files.py``) and does not look into it. Bookies do (``bookie_server/ports/access/tokens.py``).
"""

from __future__ import annotations

from bk_core.errors import AuthenticationError

MECHANISM = "token"
"""Its name in hello."""

PLUGIN = "bookkeeper-token"
"""The name of the plug-in in Apache's AUTH."""

TOKEN_BYTES_MAX = 4096
"""The longest token that anybody takes: it also fits the head of a request to an admin port."""


def not_let_in(whom: str, why: str, *, has_token: bool) -> AuthenticationError:
    """The error for a server (bookie …) that refuses this client, and says ``why``, with a remedy behind ``; `` or
    without."""
    why, _, remedy = why.partition("; ")
    if not remedy:
        mine = "renew the file at token_path" if has_token else "give token_path, or a certificate where that counts"
        remedy = f"{mine} (its log says more of the reason)"
    return AuthenticationError(f"{whom} does not let this client in", value=why, remedy=remedy)
