# SPDX-License-Identifier: Apache-2.0
"""``bk ledger explain``: what is asked of bookies. The command itself runs in ``tests/e2e/test_ledger_explain.py``."""

from __future__ import annotations

from bk_cli.explain.ledger_findings import LedgerSeen, recovery_verdict
from bk_cli.explain.ledger_seen import _ask_all
from bk_core.client.config import ClientConfig
from bk_core.metadata.records import legacy_service_info
from bk_core.model import DigestType, Fragment, LedgerMetadata
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.connection import AnswerReader
from bk_core.wire.bookie_rpc.runs import WireAnswer
from bk_core.wire.bookie_rpc.status import Status
from tests.kit.apache_bookie import ApacheServer


async def test_a_bookie_that_cannot_read_its_lac_can_still_be_fenced() -> None:
    """A recovery asks for the last entry. Apache's READ_LAC fails for the writer's LAC, too."""

    def without_lac(said: bytes) -> list[bytes]:
        (item,) = AnswerReader(3).read(said).items
        if not isinstance(item, WireAnswer) or not item.response.HasField("readLacResponse"):
            return [said]
        item.response.status = item.response.readLacResponse.status = Status.EIO
        return [v3.framed(item.response)]

    servers = [await ApacheServer().start() for _ in range(3)]
    infos = [legacy_service_info(f"127.0.0.1:{server.port}") for server in servers]
    for server in servers:
        server.lie = without_lac
    names = tuple(info.bookie_id for info in infos)
    value = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        fragments=(Fragment(0, names),),
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    try:
        copies = await _ask_all(infos, ClientConfig().caller(""), 7, value)
    finally:
        for server in servers:
            await server.stop()
    verdict = recovery_verdict(LedgerSeen(7, value, 1, 1, 2, dict.fromkeys(names, "writable"), copies))
    assert not verdict.stuck, verdict
