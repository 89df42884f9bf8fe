# SPDX-License-Identifier: Apache-2.0
"""A proxy between clients and one bookie that notes every frame of Apache's wire protocol as it passes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tests.interop.jars import KitError

FRAME_MAX = 16 * 1024 * 1024
_SERVE_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Passed:
    """A frame with its length, or (``frame`` empty) the end of a connection."""

    connection: tuple[int, int]  # the proxy's port, and a number
    sender: Literal["client", "bookie"]
    frame: bytes
    label: str


class RecordingProxy:
    """Listens on a free port of loopback. ``label`` names what passes from now on."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self.label = ""
        self._passed: list[Passed] = []
        self._changed = threading.Condition()
        self._connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recording proxy", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        """``host:port``, which is a bookie id as well."""
        return f"127.0.0.1:{self.port}"

    def passed(self) -> list[Passed]:
        """Everything so far, in the order in which it came to the proxy."""
        with self._changed:
            return list(self._passed)

    def wait_for(self, wanted: Callable[[list[Passed]], bool], within_s: float = 10.0) -> None:
        """Wait until what has passed satisfies ``wanted``. Raises KitError at the deadline."""
        with self._changed:
            if not self._changed.wait_for(lambda: wanted(self._passed), within_s):
                raise KitError("the frame that was waited for did not pass", value=f"label {self.label!r}")

    def close(self) -> None:
        """End all connections."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SERVE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving, timeout=_SERVE_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._connections += 1
        number = (self.port, self._connections)
        ends = [writer]
        self._writers.add(writer)
        try:
            up_reader, up_writer = await asyncio.wait_for(asyncio.open_connection(*self._upstream), _SERVE_S)
            ends.append(up_writer)
            self._writers.add(up_writer)
            both = (
                asyncio.create_task(self._pump(number, "client", reader, up_writer)),
                asyncio.create_task(self._pump(number, "bookie", up_reader, writer)),
            )
            await asyncio.wait(both)
        except (OSError, TimeoutError):
            pass  # the bookie is not there: the client hears that its connection ends
        finally:
            for end in ends:
                end.close()
            self._writers.difference_update(ends)
            self._serving.discard(task)

    async def _pump(
        self,
        connection: tuple[int, int],
        sender: Literal["client", "bookie"],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                (size,) = struct.unpack(">i", head)
                # A length that nobody should send goes on alone: the receiver is to drop the connection for it.
                frame = head + (await reader.readexactly(size) if 0 <= size <= FRAME_MAX else b"")
                self._note(Passed(connection, sender, frame, self.label))
                writer.write(frame)
                await writer.drain()
        self._note(Passed(connection, sender, b"", self.label))
        writer.close()  # after what was written; the pump of the other way ends with its connection

    def _note(self, passed: Passed) -> None:
        with self._changed:
            self._passed.append(passed)
            self._changed.notify_all()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SERVE_S)
