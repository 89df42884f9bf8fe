# SPDX-License-Identifier: Apache-2.0
"""A bookie of mode ``secure``, and clients of it."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bk_cli.local.children import free_ports
from bk_core.access.roles import Line, Right, Role, RolesTable, scope_of
from bk_core.client import BookKeeper, ClientConfig, connect
from bk_core.metadata import open_store
from bk_core.model import LedgerId
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.wallet import Ask, Held, Wallet
from bookie_server.main import Bookie
from tests.kit.certificates import Authority, Files
from tests.kit.lanes import Lane, bookie_config
from tests.kit.metadata_worlds import a_ledger_on

KEY_HEX = "5a" * 32


class FullWallet(Wallet):
    """It has this for everything, and asks nobody."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._always = held

    def now(self, ledger_id: LedgerId, right: Right) -> Held | None:
        return self._always

    async def get(self, ledger_id: LedgerId, right: Right, ask: Ask, *, fresh: bool = False) -> Held:
        return self._always


class SecureWorld:
    def __init__(self, bookie: Bookie, authority: Authority, uri: str) -> None:
        self.bookie, self._authority = bookie, authority
        self.store, self._uri = open_store(uri), uri
        self.instance_id = self.store.instance_id()
        self._files: dict[str, Files] = {}

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def files(self, who: str) -> Files:
        if who not in self._files:
            self._files[who] = self._authority.issue(who)
        return self._files[who]

    def ledger(self, custom_metadata: dict[str, bytes] | None = None) -> LedgerId:
        value = a_ledger_on((self.bookie.bookie_id,), custom_metadata=custom_metadata or {})
        return self.store.create_ledger(value)[0]

    def _change(self, change: Callable[[RolesTable], RolesTable]) -> None:
        found = self.store.read_roles()
        table = RolesTable() if found is None else found.value
        self.store.write_roles(change(table), None if found is None else found.version)
        if self.bookie._authority._kept_s > 1:
            self.bookie._authority._table = None  # as if seconds had passed

    def give(self, role: str, identity: str, on: str = "cluster") -> None:
        self._change(lambda table: table.granted(Line(f"{identity},O=Example", Role(role), scope_of(on))))

    def take(self, role: str, identity: str, on: str = "cluster") -> None:
        self._change(lambda table: table.revoked(Line(f"{identity},O=Example", Role(role), scope_of(on))))

    def shorten(self, *, life_ms: int, kept_s: float) -> None:
        self.bookie._authority._life_ms, self.bookie._authority._kept_s = life_ms, kept_s

    @asynccontextmanager
    async def lane(
        self, name: str, who: str, *, secure: bool = True, wallet: Held | None = None
    ) -> AsyncIterator[Lane]:
        """``wallet``: the client shows this, whatever it needs."""
        its = (Wallet() if wallet is None else FullWallet(wallet)) if secure else None
        caller = Caller(self.instance_id, lanes=(name,), tls=self.files(who).tls(), connect_timeout_s=5, wallet=its)
        transport = LaneTransport(caller)
        transport.update_bookies(list(self.store.writable_bookies().values()))
        try:
            yield Lane(name, transport, self.bookie.bookie_id)
        finally:
            await transport.close()

    @asynccontextmanager
    async def client(self, who: str) -> AsyncIterator[BookKeeper]:
        config = ClientConfig(**self.files(who).settings(), security="secure")
        client = await connect(self._uri, config=config)
        try:
            yield client
        finally:
            await client.close()

    def ask_admin(self, who: str | None, method: str, path: str) -> int:
        """The status. Blocks."""
        tls = self.files("anybody").trust() if who is None else self.files(who).tls()
        context: ssl.SSLContext = tls.client()
        connection = http.client.HTTPSConnection("127.0.0.1", self.bookie._admin.port, context=context, timeout=10)
        try:
            query = "?level=INFO&logger=bk_core.nothing" if method == "PUT" else ""
            connection.request(method, path + query)
            return connection.getresponse().status
        finally:
            connection.close()


@asynccontextmanager
async def secure_bookie(tmp_path: Path, *, admin: bool = False, **settings: Any) -> AsyncIterator[SecureWorld]:
    authority = Authority(tmp_path / "pki")
    (tmp_path / "keys").write_text(KEY_HEX + "\n")
    (tmp_path / "keys").chmod(0o600)
    uri = f"memory://{uuid.uuid4().hex}"
    given = {"security": "secure", "grant_keys_path": tmp_path / "keys", **settings}
    if admin:
        given |= {"admin_port": free_ports(1)[0], "admin_writes": "any"}
    config = bookie_config(tmp_path, uri, **authority.issue("server").settings(), **given)
    bookie = await Bookie.start(config, open_store(uri), init_cluster=True)
    try:
        async with asyncio.timeout(60):
            yield SecureWorld(bookie, authority, uri)
    finally:
        await bookie.stop()
