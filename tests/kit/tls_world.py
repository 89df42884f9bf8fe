# SPDX-License-Identifier: Apache-2.0
"""A bookie whose ports speak TLS, and clients of it on each lane."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bk_core.access.secret_files import TokenFile
from bk_core.access.tls import Tls
from bk_core.metadata import open_store
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bookie_server.main import Bookie
from tests.kit.certificates import Authority, Files
from tests.kit.lanes import Lane, bookie_config


class TlsWorld:
    """One bookie with TLS. ``server`` has the files of the bookie; ``authority`` can sign further certificates."""

    def __init__(self, bookie: Bookie, authority: Authority, server: Files, uri: str) -> None:
        self.bookie, self.authority, self.server = bookie, authority, server
        self._store = open_store(uri)

    @property
    def instance_id(self) -> str:
        return self._store.instance_id()

    @asynccontextmanager
    async def lane(
        self, name: str, tls: Tls | None, *, token: Path | None = None, forget_tls: bool = False
    ) -> AsyncIterator[Lane]:
        """Open a client's lane to the bookie. With ``forget_tls`` the registration does not say that the bookie uses
        TLS."""
        shown = TokenFile(str(token)) if token is not None else None
        caller = Caller(self.instance_id, lanes=(name,), tls=tls, token=shown, connect_timeout_s=5)
        transport = LaneTransport(caller)
        infos = list(self._store.writable_bookies().values())
        if forget_tls:
            infos = [
                replace(each, endpoints=tuple(replace(e, extensions=()) for e in each.endpoints)) for each in infos
            ]
        transport.update_bookies(infos)
        try:
            yield Lane(name, transport, self.bookie.bookie_id)
        finally:
            await transport.close()

    async def ask(self, name: str, tls: Tls | None, **more: Any) -> None:
        """Make one call to the bookie as a client. Raises the client's error."""
        async with self.lane(name, tls, **more) as lane:
            await lane.link.bookie_info(deadline_s=5)


@asynccontextmanager
async def tls_bookie(
    tmp_path: Path, authority: Authority | None = None, server: Files | None = None, **settings: Any
) -> AsyncIterator[TlsWorld]:
    signs = authority or Authority(tmp_path / "pki")
    files = server or signs.issue("server")
    uri = f"memory://{uuid.uuid4().hex}"
    config = bookie_config(tmp_path, uri, **files.settings(), **settings)
    bookie = await Bookie.start(config, open_store(uri), init_cluster=True)
    try:
        async with asyncio.timeout(40):
            yield TlsWorld(bookie, signs, files, uri)
    finally:
        await bookie.stop()
    assert bookie._engine is not None
    assert not bookie._engine._streams
