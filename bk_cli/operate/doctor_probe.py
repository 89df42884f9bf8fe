# SPDX-License-Identifier: Apache-2.0
"""The function that ``bk doctor --spark`` runs in a Spark worker. It is sent by value, because the worker may lack our
package. So this file imports only the standard library, and nothing of ours at its top."""

from __future__ import annotations

import platform
import socket
import sys


def probe(endpoints: list[tuple[str, int]]) -> dict[str, object]:
    """Describe this worker: its interpreter, its versions, and which endpoints it cannot reach."""
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "pyarrow": _version_of("pyarrow"),
        "package": _version_of("bk_core"),
        "unreachable": [text for host, port in endpoints if (text := _trouble(host, port))],
    }


def _version_of(module: str) -> str | None:
    try:
        return str(__import__(module).__version__)
    except ImportError:
        return None


def _trouble(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=3.0).close()
        return ""
    except OSError as error:
        return f"{host}:{port}: {error}"
