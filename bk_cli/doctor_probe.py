# SPDX-License-Identifier: Apache-2.0
"""What ``bk doctor --spark`` runs in a Spark worker. Sent to it by value: the worker may lack our package.

So this file imports only the standard library, and nothing of ours at its top.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def probe(endpoints: list[tuple[str, int]], batches: Iterable[Any]) -> Iterator[Any]:
    """One row of JSON about this worker: interpreter, versions, and which endpoints it reaches."""
    import pyarrow

    for _ in batches:
        pass
    found: dict[str, object] = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "pyarrow": pyarrow.__version__,
        "package": _package_version(),
        "unreachable": [text for host, port in endpoints if (text := _trouble(host, port))],
    }
    yield pyarrow.RecordBatch.from_pydict({"found": [json.dumps(found)]})


def _package_version() -> str | None:
    try:
        import bk_core
    except ImportError:
        return None
    return bk_core.__version__


def _trouble(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=3.0).close()
        return ""
    except OSError as error:
        return f"{host}:{port}: {error}"
