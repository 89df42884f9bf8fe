# SPDX-License-Identifier: Apache-2.0
"""The bookie as a real process: kill -9, clean stop, a failed sync, memory while data streams through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import TransportError
from bk_core.metadata.port import MetadataStore
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import Reason
from tests.kit.lanes import Lane, Listener, lane_to

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper]

ROOT = Path(__file__).parents[2]

# A bookie whose syncs fail once the file named by the first argument exists.
FAILING_SYNCS = """
import os, sys
from pathlib import Path
from typing import Any
from bookie_server.config import BookieConfig
from bookie_server.main import run
trigger, real = Path(sys.argv[1]), os.fdatasync
def fdatasync(fd):
    if trigger.exists():
        raise OSError(5, "made to fail")
    real(fd)
os.fdatasync = fdatasync
sys.exit(run(BookieConfig(data_dir=Path(sys.argv[2]), metadata_service_uri=sys.argv[3], port=0, bookie_id="b1",
    listen_address="127.0.0.1", advertised_address="127.0.0.1", allow_loopback=True)))
"""

# A bookie whose disk refuses reads while that file exists.
FAILING_READS = FAILING_SYNCS.replace(
    "os.fdatasync = fdatasync\n",
    """
def refusing(read):
    def call(*arguments):
        if trigger.exists():
            raise OSError(5, "made to fail")
        return read(*arguments)
    return call
os.pread, os.preadv = refusing(os.pread), refusing(os.preadv)
""",
)

PLAIN = FAILING_SYNCS.replace("os.fdatasync = fdatasync\n", "")


class Process:
    """A bookie process with its data in ``path``; killed at the end of the test."""

    def __init__(self, path: Path, uri: str, script: str = PLAIN) -> None:
        self.path, self.uri, self.script = path, uri, script
        self.trigger = path.with_name("fail")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.script, str(self.trigger), str(self.path), self.uri],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        line = self._process.stdout.readline()
        assert line.startswith("ready b1 "), line

    def signal(self, number: int) -> int:
        """Send it; the exit code."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self._process.wait(20)
        self._process.stdout.close()
        self._process = None
        return code

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def end(self) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)


@pytest.fixture
def store(zookeeper_store: MetadataStore) -> MetadataStore:
    return zookeeper_store


@pytest.fixture
def process(store: MetadataStore, tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "data", store.uri)
    yield made
    made.end()


async def append_until_broken(lane: Lane, ledger: int, seed: int) -> int:
    """Append frames of one entry until the connection breaks; how many were acked."""
    listener = Listener()
    session = lane.attach(ledger, listener)
    sent = 0
    acked = 0
    while not any(words[0] == "broken" for words in listener.said):
        for _ in range(20):
            lane.send(session, ledger, sent, [payload(seed, sent)])
            sent += 1
        await asyncio.sleep(0.002)
        acked = max((words[2] for words in listener.said if words[0] == "acked"), default=acked)
    return acked


def reached(least: int, said: list[tuple[Any, ...]]) -> bool:
    return max((words[2] for words in said if words[0] == "acked"), default=0) >= least


def payload(seed: int, entry: int) -> bytes:
    return b"%d/%d " % (seed, entry) * (1 + entry % 30)


@pytest.mark.rule("S6")
async def test_failed_sync_ends_the_bookie_with_code_74(store: MetadataStore, process: Process) -> None:
    process.script = FAILING_SYNCS
    process.start()

    lane = lane_to(store, "b1")
    await lane.write(7, 0, [b"durable"])
    process.trigger.touch()
    listener = Listener()
    session = lane.attach(7, listener)
    lane.send(session, 7, 1, [b"never acked"])
    await listener.until(lambda said: bool(said))
    assert listener.said[0][0] in ("ended", "broken")
    if listener.said[0][0] == "ended":
        assert listener.said[0][2:] == (0, Reason.STORAGE_FAILED)
        with pytest.raises((RefusedError, TransportError)):
            await lane.fence(7)
    assert await asyncio.to_thread(process.wait) == 74
    assert store.writable_bookies() == {}
    await lane.transport.close()
    process.trigger.unlink()
    process.start()
    lane = lane_to(store, "b1")
    assert (await lane.read(7, 0, 0))[0] == {0: b"durable"}
    await lane.transport.close()


@pytest.mark.rule("MUST4")
async def test_disk_that_refuses_reads_makes_entries_unknown_and_no_more(
    store: MetadataStore, process: Process
) -> None:
    """EIO says nothing of what was stored. Appends, and entries that can be read, go on; after a start all is there."""
    process.script = FAILING_READS
    process.start()

    lane = lane_to(store, "b1")
    await lane.write(7, 0, [b"a", b"b"])
    process.trigger.touch()
    entries, trailer = await lane.read(7, 0, 4)
    assert entries == {}
    assert [(gap.first, gap.last) for gap in trailer.unknown] == [(0, 1)]
    assert all(gap.first >= 2 for gap in trailer.absent)
    await lane.write(7, 2, [b"c"])
    process.trigger.unlink()
    assert (await lane.read(7, 2, 2))[0] == {2: b"c"}
    await lane.transport.close()
    assert await asyncio.to_thread(process.signal, signal.SIGTERM) == 0
    process.start()
    lane = lane_to(store, "b1")
    assert (await lane.read(7, 0, 2))[0] == {0: b"a", 1: b"b", 2: b"c"}
    await lane.transport.close()


async def test_memory_stays_bounded_while_data_streams_through(store: MetadataStore, process: Process) -> None:
    """Two writers that outrun the disk, and readers of it all. The bound of the product is 400 MB."""
    process.start()
    total, size = 400, 1 << 20
    body = os.urandom(size)

    async def write(lane: Lane, ledger: int) -> None:
        listener = Listener()
        session = lane.attach(ledger, listener)
        for entry in range(total):
            lane.send(session, ledger, entry, [body], lac=entry - 1, before=entry * size)
            if entry % 64 == 63:
                await listener.until(partial(reached, entry - 40))
        await listener.acked(session, total)

    lane = lane_to(store, "b1")
    await asyncio.gather(write(lane, 1), write(lane, 2))

    async def read(ledger: int) -> None:
        first = 0
        while first < total:
            parts = lane.link.read(ledger, first, total - 1, bytes_max=32 << 20, deadline_s=10)
            async for part in parts:
                if isinstance(part, ReadTrailer):
                    assert not part.absent
                    first = part.answered_through + 1

    await asyncio.gather(read(1), read(2), read(1))
    assert process.peak_bytes() < 400e6
    await lane.transport.close()
