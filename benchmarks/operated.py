# SPDX-License-Identifier: Apache-2.0
"""Processes that are looked at, or look: ``python -m benchmarks.operated WHAT URI …``.

``bookies URI FOLDER COUNT`` runs so many small bookies in one process and says ``ready``. ``audit URI`` lets an auditor
look at all ledgers once, and prints seconds, the peak of its memory in bytes, and how many ledgers it marked.
``count APPENDS`` appends to a bookie in this process. It prints how many bytecodes of an append count something, the
nanoseconds of a processor that such a bytecode takes, and those of an append.
"""

from __future__ import annotations

import asyncio
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

from bk_core import client
from bk_core.metadata import open_store
from bk_core.metrics import Histogram
from bookie_server.autorecovery.auditor import Auditor
from bookie_server.autorecovery.presence import Presence
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from bookie_server.config import BookieConfig
from bookie_server.main import Bookie

SMALL_SEGMENT_BYTES = 16 << 20
COUNTS = re.compile(r"\b_?counts\b|\bstats\.|\.observe\(|\bself\.times\b")
BYTECODES_OF_AN_UPDATE = 30
"""The call with its arguments, and what Histogram.observe runs."""
COUNTING_FILES = ("bk_core/metrics.py", "bk_core/client/metrics.py")


def _config(folder: Path, uri: str) -> BookieConfig:
    return BookieConfig(
        data_dir=folder,
        metadata_service_uri=uri,
        port=0,
        listen_address="127.0.0.1",
        advertised_address="127.0.0.1",
        allow_loopback=True,
        segment_size_bytes=SMALL_SEGMENT_BYTES,
        stop_grace_s=0.1,
    )


async def run_bookies(uri: str, folder: Path, count: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        for number in range(count):
            bookie = await Bookie.start(_config(folder / f"b{number}", uri), open_store(uri))
            stack.push_async_callback(bookie.stop)
        print("ready", flush=True)
        await stop.wait()


def audit(uri: str) -> None:
    with closing(open_store(uri)) as store:
        config = AutoRecoveryConfig(lost_bookie_delay_s=0)
        presence = Presence(store, 0)
        presence.look()  # absent since
        auditor = Auditor(store, "bench", presence, config)
        began = time.perf_counter()
        auditor.look()
        seconds = time.perf_counter() - began
        assert auditor.elected
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, auditor.marked)


# --- what counting costs ---


class Bytecodes:
    """How many run, and how many of them in lines that count. Threads that are traced already are watched, too."""

    def __init__(self) -> None:
        self._lines = Counter[tuple[str, int]]()

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and frame.f_lineno is not None:
            self._lines[frame.f_code.co_filename, frame.f_lineno] += 1
        return self.trace

    @contextmanager
    def watched(self) -> Iterator[None]:
        self._lines.clear()
        sys.settrace(self.trace)
        yield
        sys.settrace(None)

    @property
    def counting(self) -> int:
        return sum(
            number
            for (path, line), number in self._lines.items()
            if path.endswith(COUNTING_FILES)
            or (("/bk_core/" in path or "/bookie_server/" in path) and COUNTS.search(getline(path, line)))
        )


def bytecode_ns() -> float:
    """What one of them takes of a processor where something is counted: a histogram's update is the dearest part."""
    histogram, turns = Histogram((0.001, 0.01, 0.1, 1.0)), range(100_000)
    began = time.process_time_ns()
    for _ in turns:
        histogram.observe(0.02)
    return (time.process_time_ns() - began) / len(turns) / BYTECODES_OF_AN_UPDATE


async def count(appends: int) -> None:
    from tests.kit import memory_store as memory_store  # for memory://

    bytecodes, uri = Bytecodes(), f"memory://{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder, closing(open_store(uri)) as store:
        store.initialize_cluster()
        threading.settrace(bytecodes.trace)  # threads that begin from here on
        bookie = await Bookie.start(_config(Path(folder), uri), open_store(uri))
        async with await client.connect(uri) as bookkeeper:
            ledger = await bookkeeper.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            await ledger.append(b"warm")
            with bytecodes.watched():
                await asyncio.create_task(_append(ledger, appends))
            counting = bytecodes.counting / appends
            await ledger.close()
        threading.settrace(None)
        await bookie.stop()
        print(counting, bytecode_ns(), await _append_ns(Path(folder) / "again", uri, 20 * appends))


async def _append_ns(folder: Path, uri: str, appends: int) -> float:
    """Of a processor, for an append, client and bookie together."""
    bookie = await Bookie.start(_config(folder, uri), open_store(uri))
    async with (
        await client.connect(uri) as bookkeeper,
        await bookkeeper.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger,
    ):
        await _append(ledger, appends // 10)
        began = time.process_time_ns()
        await _append(ledger, appends)
        took_ns = time.process_time_ns() - began
    await bookie.stop()
    return took_ns / appends


async def _append(ledger: client.LedgerWriter, appends: int) -> None:
    for _ in range(appends):
        await ledger.append(bytes(100))


def main(what: str, *rest: str) -> None:
    if what == "bookies":
        uri, folder, number = rest
        asyncio.run(run_bookies(uri, Path(folder), int(number)))
    elif what == "audit":
        audit(*rest)
    else:
        asyncio.run(count(int(*rest)))


if __name__ == "__main__":
    main(*sys.argv[1:])
