# SPDX-License-Identifier: Apache-2.0
"""One bookie and a transport to it, on each lane, for the contract suite, with short functions to use it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.entries.frame import decode_frame, encode_frame, split_frames
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import legacy_service_info
from bk_core.model import BOOKIE_RPC, DIRECT, DigestType, LedgerId
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LANES, LaneTransport
from bk_core.transport.port import Link, NewSession, ReadPart, Transport
from bk_core.wire.bookie_rpc.status import reason_of, refused_add
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.config import BookieConfig
from bookie_server.main import Bookie
from tests.kit.apache_bookie import ApacheBookie, ApacheServer
from tests.kit.canaries import PASSWORD
from tests.kit.memory_bookie import MemoryNetwork

KEY = ledger_key(PASSWORD)
DEADLINE_S = 20.0

_FIRST, *_OTHERS = LANES
ON_EACH_LANE = pytest.mark.parametrize(
    "lane", [_FIRST, *(pytest.param(lane, marks=pytest.mark.long) for lane in _OTHERS)]
)
"""Runs a test that takes seconds on each lane. With ``pytest --few`` only the first lane is tried."""


def digester(ledger_id: LedgerId, digest_type: DigestType = DigestType.CRC32C) -> Digester:
    return Digester(digest_type, PASSWORD, ledger_id)


def frame(
    ledger_id: LedgerId, first: int, entries: Sequence[bytes], *, session: int = 0, lac: int = -1, before: int = -1
) -> bytes:
    """Make a frame of these entries. ``before`` is the ledger's length before the frame; if it is negative, a length is
    invented."""
    return bytes(
        encode_frame(
            EntryBatch.from_list(entries),
            digester=digester(ledger_id),
            ledger_id=ledger_id,
            first_entry_id=first,
            lac=lac,
            length_before=first * 10 if before < 0 else before,
            session=session,
        )
    )


class Listener:
    """Collects the callbacks of sessions in order."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._news = asyncio.Event()

    def on_acked(self, session: int, frames: int) -> None:
        self._hear("acked", session, frames)

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        self._hear("ended", session, frames, reason)

    def on_broken(self, session: int, message: str) -> None:
        self._hear("broken", session, message)

    def _hear(self, *words: Any) -> None:
        self.said.append(words)
        self._news.set()

    async def until(self, wanted: Callable[[list[tuple[Any, ...]]], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not wanted(self.said):
                self._news.clear()
                await self._news.wait()

    async def acked(self, session: int, frames: int) -> None:
        await self.until(lambda said: ("acked", session, frames) in said)

    async def ended(self, session: int) -> tuple[int, Reason]:
        """Wait until the session has ended. Return the number of durable frames, and why it ended."""
        await self.until(lambda said: any(words[:2] == ("ended", session) for words in said))
        return next((words[2], words[3]) for words in self.said if words[:2] == ("ended", session))

    async def settled(self, session: int, frames: int) -> None:
        """Wait until so many frames are durable, or the session has ended."""
        await self.until(
            lambda said: ("acked", session, frames) in said or any(words[:2] == ("ended", session) for words in said)
        )

    async def broken(self, session: int) -> None:
        await self.until(lambda said: any(words[:2] == ("broken", session) for words in said))


class Lane:
    """A transport and its only bookie. On Apache's wire (``apaches``) some reasons share one status, and a bookie does
    not name its software, or the entry that carries the greatest LAC."""

    def __init__(self, name: str, transport: Transport, bookie_id: str) -> None:
        self.name, self.transport, self.bookie_id = name, transport, bookie_id
        self.apaches = name == BOOKIE_RPC
        self._session = 0

    @property
    def link(self) -> Link:
        return self.transport.link(self.bookie_id)

    def said(self, reason: Reason) -> Reason:
        """Return the reason that a client gets if the bookie refuses an add for this reason."""
        return reason_of(refused_add(reason)) if self.apaches else reason

    def attach(self, ledger_id: LedgerId, listener: Listener, **options: Any) -> int:
        self._session += 1
        mode, key, deferred = (
            options.get("mode", AttachMode.WRITE),
            options.get("key", KEY),
            options.get("deferred", False),
        )
        self.link.attach(NewSession(ledger_id, key, mode, self._session, listener, deferred=deferred))
        return self._session

    def send(self, session: int, ledger_id: LedgerId, first: int, entries: Sequence[bytes], **said: int) -> None:
        self.link.send(session, frame(ledger_id, first, entries, session=session, **said))

    async def write(
        self,
        ledger_id: LedgerId,
        first: int,
        entries: Sequence[bytes],
        *,
        lac: int = -1,
        before: int = -1,
        **options: Any,
    ) -> None:
        """Attach a session, send one frame, wait until it is durable, and detach."""
        listener = Listener()
        session = self.attach(ledger_id, listener, **options)
        self.send(session, ledger_id, first, entries, lac=lac, before=before)
        await listener.acked(session, 1)
        self.link.detach(session)

    async def refused(self, ledger_id: LedgerId, first: int) -> Reason:
        """Send an entry that the bookie must refuse. Return its reason."""
        listener = Listener()
        session = self.attach(ledger_id, listener)
        self.send(session, ledger_id, first, [b"new"])
        durable, reason = await listener.ended(session)
        assert durable == 0
        self.link.detach(session)
        return reason

    async def read(
        self, ledger_id: LedgerId, first: int, last: int, *, bytes_max: int = 1 << 20, fence_key: bytes | None = None
    ) -> tuple[dict[int, bytes], ReadTrailer]:
        """Read entries, and verify them. Return them by id, and the trailer."""
        entries: dict[int, bytes] = {}
        async for part in self.link.read(
            ledger_id, first, last, bytes_max=bytes_max, fence_key=fence_key, deadline_s=DEADLINE_S
        ):
            if not isinstance(part, ReadPart):
                return entries, part
            for _, one in split_frames(part.frames):
                batch = decode_frame(one, digester=digester(ledger_id), verify_digests=True)
                entries.update(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))
        raise AssertionError("an answer without a trailer")

    async def fence(self, ledger_id: LedgerId, key: bytes = KEY) -> LacEvidence:
        return await self.link.fence(ledger_id, key, deadline_s=DEADLINE_S)


@contextlib.asynccontextmanager
async def open_lane(name: str, data_dir: Path) -> AsyncIterator[Lane]:
    if name == "memory":
        network = MemoryNetwork("b1:3181")
        transport: Transport = network.transport()
        yield Lane(name, transport, "b1:3181")
        await transport.close()
        return
    if name == BOOKIE_RPC:
        server = await ApacheServer(ApacheBookie(asyncio.get_running_loop().call_later, compares=True)).start()
        there = LaneTransport(Caller())
        there.update_bookies([legacy_service_info(f"127.0.0.1:{server.port}")])
        try:
            yield Lane(name, there, f"127.0.0.1:{server.port}")
        finally:
            await there.close()
            await server.stop()
        return
    async with running_bookie(data_dir) as (bookie, store):
        lane = lane_to(store, bookie.bookie_id, name)
        try:
            yield lane
        finally:
            await lane.transport.close()


def lane_to(store: MetadataStore, bookie_id: str, *names: str) -> Lane:
    """Make a client of a registered bookie, which uses the best of these lanes. A caller closes its transport."""
    transport = LaneTransport(Caller(store.instance_id(), lanes=names))
    transport.update_bookies([*store.writable_bookies().values(), *store.read_only_bookies().values()])
    return Lane(names[0] if names else DIRECT, transport, bookie_id)


@contextlib.asynccontextmanager
async def running_bookie(
    data_dir: Path, within_s: float = 60.0, **settings: Any
) -> AsyncIterator[tuple[Bookie, MetadataStore]]:
    """Run a bookie in a cluster of its own, whose store is in memory. The block is cancelled after ``within_s``
    seconds."""
    uri = f"memory://{uuid.uuid4().hex}"
    with contextlib.closing(open_store(uri)) as store:
        store.initialize_cluster()
        bookie = await Bookie.start(bookie_config(data_dir, uri, **settings))
        try:
            async with asyncio.timeout(within_s):
                yield bookie, store
        finally:
            await bookie.stop()


def bookie_config(data_dir: Path, uri: str, **changes: Any) -> BookieConfig:
    """Return the settings of a small bookie on a free port of loopback."""
    values: dict[str, Any] = {
        "data_dir": data_dir / "bookie",
        "metadata_service_uri": uri,
        "port": 0,
        "listen_address": "127.0.0.1",
        "advertised_address": "127.0.0.1",
        "allow_loopback": True,
        "segment_size_bytes": 32 << 20,
        "stop_grace_s": 0.1,
    }
    return BookieConfig(**{**values, **changes})


def lane_port(bookie: Bookie, lane: str) -> int:
    """Return the port on which a lane of a bookie listens."""
    (port,) = [service.port for service in bookie._services if service.endpoint("").protocol == lane]
    return port


Story = Callable[[Lane], Coroutine[Any, Any, None]]


def on_each_lane(story: Story) -> Callable[..., None]:
    """Make a test of the contract: the same story on every lane."""

    @pytest.mark.parametrize("lane", ["memory", *LANES])
    async def test(lane: str, tmp_path: Path) -> None:
        async with asyncio.timeout(30), open_lane(lane, tmp_path) as opened:
            await story(opened)

    wraps(story)(test)
    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look at the story's arguments
    return test
