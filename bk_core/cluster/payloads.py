# SPDX-License-Identifier: Apache-2.0
"""Shows bytes of users, which are entries and custom metadata of ledgers, as JSON and as text."""

from __future__ import annotations

import base64


def payload_json(payload: bytes) -> dict[str, str]:
    """Return ``{"text": …}`` if the bytes are UTF-8, otherwise ``{"base64": …}``. Both keep every byte."""
    try:
        return {"text": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(payload).decode("ascii")}


def payload_text(payload: bytes) -> str:
    """Return the bytes as one line of text. They are decoded as UTF-8. Bytes that are not UTF-8 and unprintable
    characters are escaped."""
    text = payload.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
