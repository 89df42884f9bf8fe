# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a cluster is secure: whether its bookies refuse a client that has no certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, cast

from bk_core.client import BookKeeper, ClientConfig, connect
from bk_core.errors import BookKeeperError, TlsError
from bk_core.model import BookieId

ANSWER_S = 10.0
_OF_A_CERTIFICATE = ("tls_certificate_path", "tls_key_path", "security")


def not_refusing(uri: str, settings: Mapping[str, Any]) -> dict[BookieId, str]:
    """Return the bookies that do not refuse a read of a client without a certificate, with their answers. ``settings``
    are those of the cluster's clients. If these clients work, the bookies use TLS, because such a client never connects
    without TLS."""
    config = ClientConfig(**{name: value for name, value in settings.items() if name not in _OF_A_CERTIFICATE})
    return {bookie: said for bookie, said in asyncio.run(_ask_all(uri, config)).items() if said is not None}


async def _ask_all(uri: str, config: ClientConfig) -> dict[BookieId, str | None]:
    client = await connect(uri, config=config)
    try:
        await client.refresh_bookies()
        bookies = list(await asyncio.to_thread(client.store.writable_bookies))
        return dict(zip(bookies, await asyncio.gather(*(_told(client, each) for each in bookies)), strict=True))
    finally:
        await client.close()


async def _told(client: BookKeeper, bookie: BookieId) -> str | None:
    try:
        reading = client.transport.link(bookie).read(0, 0, 0, bytes_max=1 << 20, deadline_s=ANSWER_S)
        async with aclosing(cast(Any, reading)) as parts:
            return "".join([str(part) async for part in parts])
    except TlsError:
        return None
    except BookKeeperError as error:
        return str(error)
