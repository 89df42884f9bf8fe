# SPDX-License-Identifier: Apache-2.0
"""The asyncio client. ``bk_core.blocking`` has the same names without ``await``."""

from bk_core.client.bookkeeper import BookKeeper, connect
from bk_core.client.config import ClientConfig
from bk_core.client.detached import DetachedReader
from bk_core.client.reader import LedgerReader
from bk_core.client.writer import LedgerWriter

__all__ = ["BookKeeper", "ClientConfig", "DetachedReader", "LedgerReader", "LedgerWriter", "connect"]
