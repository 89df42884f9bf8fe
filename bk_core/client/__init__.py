# SPDX-License-Identifier: Apache-2.0
"""The asyncio client. ``bk_core.blocking`` has the same names without ``await``.

Each name is imported when it is first used, so that a command which needs only ``ClientConfig`` does not wait for the
import of the whole client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bk_core.client.bookkeeper import BookKeeper, connect
    from bk_core.client.config import ClientConfig
    from bk_core.client.detached import DetachedReader
    from bk_core.client.reading.reader import LedgerReader
    from bk_core.client.writing.writer import LedgerWriter

__all__ = ["BookKeeper", "ClientConfig", "DetachedReader", "LedgerReader", "LedgerWriter", "connect"]

_HOMES = {
    "BookKeeper": "bookkeeper",
    "ClientConfig": "config",
    "DetachedReader": "detached",
    "LedgerReader": "reading.reader",
    "LedgerWriter": "writing.writer",
    "connect": "bookkeeper",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
