# SPDX-License-Identifier: Apache-2.0
"""Bookies on a thread of this process, with a metadata store in memory. They serve commands and blocking clients that
need a URI but no processes."""

from __future__ import annotations

import asyncio
import threading
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bk_core.metadata import open_store
from bookie_server.main import Bookie
from tests.kit.lanes import bookie_config
from tests.kit.memory_store import MemoryStore as MemoryStore  # for memory://

START_S = 30.0


class ServedCluster:
    """A cluster, as a context manager. Every client in this process reaches it under ``uri``."""

    def __init__(self, folder: Path, bookies: int = 4, **settings: Any) -> None:
        self.uri = f"memory://{uuid.uuid4().hex}"
        self._folder, self._count, self._settings = folder, bookies, settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="served bookies", daemon=True)
        self._store = open_store(self.uri)

    def __enter__(self) -> Self:
        self._store.initialize_cluster()
        self._thread.start()
        self._bookies = [self._run(self._start(number)) for number in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for bookie in self._bookies:
            self._run(bookie.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()
        self._store.close()

    def add(self) -> str:
        """Start another bookie, and return its id."""
        bookie = self._run(self._start(len(self._bookies)))
        self._bookies.append(bookie)
        return str(bookie.bookie_id)

    def stop_one(self) -> str:
        """Stop the newest bookie, and return its id."""
        bookie = self._bookies.pop()
        self._run(bookie.stop())
        return str(bookie.bookie_id)

    async def _start(self, number: int) -> Bookie:
        return await Bookie.start(bookie_config(self._folder / str(number), self.uri, **self._settings))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)
