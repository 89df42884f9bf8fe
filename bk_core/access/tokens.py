# SPDX-License-Identifier: Apache-2.0
"""Tokens on the client's side: their names on the wires, and the error for a refusal. A client passes its token on
(``TokenFile`` in ``secret_files.py``) and does not read into it; bookies do (``bookie_server/ports/access/tokens.py``).
"""

from __future__ import annotations

from bk_core.errors import AuthenticationError

MECHANISM = "token"
"""The name of the mechanism in hello."""

PLUGIN = "bookkeeper-token"
"""The name of the plug-in in Apache's AUTH request."""

TOKEN_BYTES_MAX = 4096
"""Limits a token, in bytes: it must also fit into the head of a request to an admin port."""


def not_let_in(whom: str, why: str, *, has_token: bool) -> AuthenticationError:
    """Return the error for a server (``whom``: "bookie …") that refuses this client because of ``why``, which may end
    with a remedy after ``; ``."""
    why, _, remedy = why.partition("; ")
    if not remedy:
        mine = "renew the file at token_path" if has_token else "give token_path, or a certificate where that counts"
        remedy = f"{mine} (its log says more of the reason)"
    return AuthenticationError(f"{whom} does not let this client in", value=why, remedy=remedy)
