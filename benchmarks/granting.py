# SPDX-License-Identifier: Apache-2.0
"""What mode ``secure`` costs beside ``open``: ``python -m benchmarks.granting check SESSIONS`` or ``calls ROUNDS``.

``check`` attaches so many sessions on the stream of a bookie, with a grant for each, and prints how many microseconds
of a processor one of them takes more than in ``open``. Nothing else is in it: no socket, no machine, no disk.
``calls`` lets a client append to a bookie, both in this process and over TLS, and prints for an entry that is waited
for, and for a frame of 1 MB, how many calls it takes more than in ``open``.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, mode
from typing import Any, cast

import numpy as np

from benchmarks.profiling import Calls
from bk_core import client
from bk_core.client.config import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ledger_key
from bk_core.metadata import open_store
from bk_core.security.grants import Grant
from bk_core.security.roles import OPEN, SECURE, Line, Right, Role, RolesTable, scope_of
from bk_core.wire.proto import lane_pb2
from bookie_server.engine.engine import BookieEngine
from bookie_server.engine.loop import new_loop
from bookie_server.main import Bookie
from bookie_server.services.authority import Authority, GrantKeys
from bookie_server.services.lane_streams import AddStream, BookieFacts
from bookie_server.services.principal import Principal, Proof
from tests.kit import memory_store as memory_store  # for memory://
from tests.kit.certificates import Authority as Certificates
from tests.kit.lanes import bookie_config

IDENTITY = "CN=client,O=Example"
ROUNDS_OF_CHECK = 7
FRAME_ENTRIES, ENTRY_BYTES = 1_000, 1_000


# --- a grant that is checked ---


class _Nobody:
    """An engine that takes everything."""

    def open_stream(self, _: object) -> int:
        return 1

    def feed(self, _: object) -> None: ...


async def check(sessions: int, folder: Path) -> float:
    """Microseconds a session."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.initialize_cluster()
    keys = GrantKeys(_keys(folder))
    authority = Authority(store, keys, store.instance_id())
    now_ms = authority.now_ms()
    span = now_ms - 1_000, now_ms + 600_000
    grants = [
        keys.now().sign(Grant(store.instance_id(), IDENTITY, number, Right.WRITE, *span)) for number in range(sessions)
    ]
    plain = [_attach(number) for number in range(sessions)]
    shown = [_attach(number, grant) for number, grant in enumerate(grants)]
    instance_id = store.instance_id()
    took = [
        _attached_s(shown, instance_id, authority) - _attached_s(plain, instance_id, None)
        for _ in range(ROUNDS_OF_CHECK)
    ]
    authority.close()
    return median(took) / sessions * 1e6


def _attach(number: int, *grants: bytes) -> bytes:
    attach = lane_pb2.Attach(session=number + 1, ledger_id=number, ledger_key=ledger_key(b""), mode=lane_pb2.WRITE)
    return lane_pb2.AddRequest(attach=[attach], grants=grants).SerializeToString()


def _attached_s(messages: list[bytes], instance_id: str, authority: Authority | None) -> float:
    facts = BookieFacts(
        bookie_id="b",
        instance_id=instance_id,
        incarnation="",
        in_flight_bytes_max=0,
        read_only=lambda: False,
        authority=authority,
    )
    stream = AddStream(cast(BookieEngine, _Nobody()), facts, Principal("here", IDENTITY, Proof.CERTIFICATE))
    began = time.process_time()
    for message in messages:
        stream.take(message, None)
    took = time.process_time() - began
    assert not stream.waiting, "a grant was refused"
    if stream._looking is not None:
        stream._looking.cancel()
    return took


def _keys(folder: Path) -> Path:
    path = folder / "keys"
    path.write_text(f"{secrets.token_hex(32)}\n", encoding="ascii")
    path.chmod(0o600)
    return path


# --- calls ---


async def calls(rounds: int, folder: Path, security: str) -> tuple[int, int]:
    """Of an entry that is waited for, and of a frame."""
    uri, certificates = f"memory://{uuid.uuid4().hex}", Certificates(folder / "pki")
    settings: dict[str, Any] = {"security": security}
    if security == SECURE:
        settings["grant_keys_path"] = _keys(folder)
    config = bookie_config(folder, uri, scrub_bytes_per_s=1, **certificates.issue("server").settings(), **settings)
    bookie = await Bookie.start(config, open_store(uri), init_cluster=True)
    store = open_store(uri)
    store.write_roles(RolesTable().granted(Line(IDENTITY, Role("writer"), scope_of("cluster"))), None)
    assert bookie._engine is not None
    bookie._engine.logs[0]._committer._inline_s = math.inf  # this disk is fast, however busy the machine is
    lengths = np.full(FRAME_ENTRIES, ENTRY_BYTES, dtype=np.uint32)
    batch = EntryBatch(lengths=lengths, payload=memoryview(bytes(FRAME_ENTRIES * ENTRY_BYTES)))
    own = ClientConfig(**certificates.issue("client").settings(), security=security)
    async with await client.connect(uri, config=own) as bookkeeper:
        ledger = await bookkeeper.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)

        async def append_frame() -> None:
            await ledger.wait_confirmed(await ledger.append_batch(batch))

        found = await _usual(rounds, lambda: ledger.append(bytes(100))), await _usual(rounds, append_frame)
        await ledger.close()
    await bookie.stop()
    store.close()
    return found


async def _usual(rounds: int, act: Callable[[], Awaitable[object]]) -> int:
    """Of most rounds: in others a timer fires, or something comes in parts."""
    counted = []
    for _ in range(rounds):
        await act()
        with Calls() as calls:
            await act()
        counted.append(calls.count)
    return mode(counted)


def main(what: str, number: str) -> None:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=new_loop) as runner:
        if what == "check":
            print(runner.run(check(int(number), Path(folder))))
            return
        found = []
        for security in (OPEN, SECURE):
            (Path(folder) / security).mkdir()
            found.append(runner.run(calls(int(number), Path(folder) / security, security)))
        print(*(secured - opened for opened, secured in zip(*found, strict=True)), *found[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
