# SPDX-License-Identifier: Apache-2.0
"""Has the names of the token mechanisms on the wires, and the error of a client that a server refuses. A client sends
its token (``TokenFile`` in ``secret_files.py``) without parsing it. Bookies parse it
(``bookie_server/ports/access/tokens.py``).
"""

from __future__ import annotations

from bk_core.errors import AuthenticationError

MECHANISM = "token"
"""The name of the token mechanism in hello, on our own lanes."""

PLUGIN = "bookkeeper-token"
"""The name of the authentication plug-in for tokens in Apache's AUTH request."""

TOKEN_BYTES_MAX = 4096
"""The maximum size of a token in bytes. A token must also fit into the head of a request to an admin port."""


def not_let_in(whom: str, why: str, *, has_token: bool) -> AuthenticationError:
    """Return the error for a server that refuses this client. ``whom`` names the server, such as "bookie
    10.0.0.1:3181". ``why`` is the reason, and may have a remedy after ``; ``."""
    why, _, remedy = why.partition("; ")
    if not remedy:
        mine = "renew the file at token_path" if has_token else "give token_path, or a certificate where that counts"
        remedy = f"{mine} (its log says more of the reason)"
    return AuthenticationError(f"{whom} does not let this client in", value=why, remedy=remedy)
