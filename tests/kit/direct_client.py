# SPDX-License-Identifier: Apache-2.0
"""A raw client of the direct lane, which sends any bytes, right or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

from bk_core.model import DIRECT
from bk_core.wire.lane.direct_messages import preamble
from bk_core.wire.proto import lane_pb2
from bookie_server.main import Bookie
from tests.kit.lanes import lane_port

HEAD = struct.Struct("<II")
ANSWERS: dict[str, Any] = {
    "Add": lane_pb2.AddResponse,
    "Read": lane_pb2.ReadResponse,
    "Control": lane_pb2.ControlResponse,
}


class DirectClient:
    """One stream of the lane."""

    def __init__(self, stream: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.stream, self.reader, self.writer = stream, reader, writer

    def send(self, rest: bytes = b"", frames: bytes = b"") -> None:
        self.writer.write(HEAD.pack(len(frames), len(rest)) + frames + rest)

    async def answer(self) -> tuple[bytes, Any]:
        """Return the frames and the rest of the next message. Raises IncompleteReadError at the end of the
        connection."""
        frames, rest = HEAD.unpack(await self.reader.readexactly(HEAD.size))
        return await self.reader.readexactly(frames), ANSWERS[self.stream].FromString(
            await self.reader.readexactly(rest)
        )

    async def is_over(self, within_s: float) -> bool:
        """Return whether the bookie ends the connection within this time without an answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                with contextlib.suppress(ConnectionError):
                    assert await self.reader.read(1) == b""
                return True
        return False


@contextlib.asynccontextmanager
async def direct(bookie: Bookie, stream: str, first: bytes | None = None) -> AsyncIterator[DirectClient]:
    """Open a connection that begins with the stream's preamble, or with ``first``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", lane_port(bookie, DIRECT))
    try:
        writer.write(preamble(stream) if first is None else first)
        yield DirectClient(stream, reader, writer)
    finally:
        writer.transport.abort()
