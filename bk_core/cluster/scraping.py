# SPDX-License-Identifier: Apache-2.0
"""Reads the numbers of a cluster's bookies at their admin ports, and the reason why a bookie is not ready."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bk_core.cluster.admin_ports import AdminPorts, Numbers, admin_endpoint
from bk_core.cluster.samples import ScrapedBookie
from bk_core.errors import BookKeeperError
from bk_core.model import BookieId, BookieServiceInfo

REACH_S = 1.5


def ask_admin_ports(ports: AdminPorts, infos: Sequence[BookieServiceInfo]) -> dict[BookieId, ScrapedBookie | str]:
    """Return each bookie's facts, or the error as text. This blocks for at most twice the deadline of an answer for
    every 64 bookies."""
    return asyncio.run(_ask_all(ports, infos))


async def _ask_all(ports: AdminPorts, infos: Sequence[BookieServiceInfo]) -> dict[BookieId, ScrapedBookie | str]:
    scraped = await ports.scrape_all(infos)
    told = await asyncio.gather(*(_told(ports, info, scraped[info.bookie_id]) for info in infos))
    return {info.bookie_id: each for info, each in zip(infos, told, strict=True)}


async def _told(ports: AdminPorts, info: BookieServiceInfo, numbers: Numbers | BookKeeperError) -> ScrapedBookie | str:
    if isinstance(numbers, BookKeeperError):
        return " ".join(str(numbers).split())
    endpoint = admin_endpoint(info)
    if endpoint is None or numbers.total("bookie_ready") != 0:
        return ScrapedBookie(numbers)
    try:
        status, why = await ports.get_status(endpoint, "/ready")
    except BookKeeperError:
        return ScrapedBookie(numbers, "its admin port does not say why")
    return ScrapedBookie(numbers, why.strip().removeprefix("not ready: ") if status == 503 else "")
