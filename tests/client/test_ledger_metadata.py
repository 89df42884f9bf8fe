# SPDX-License-Identifier: Apache-2.0
"""Password and custom metadata from ``create_ledger`` through close and recovery, over bookies in this process."""

from __future__ import annotations

import time

import pytest

from bk_core.errors import LedgerFencedError, WrongPasswordError
from bk_core.model import DigestType
from tests.kit.memory_cluster import memory_cluster

CUSTOM = {"application": b"tests", "binary": bytes(range(256)), "empty": b""}


@pytest.mark.parametrize("digest", list(DigestType))
@pytest.mark.parametrize("password", [b"", b"secret", bytes(range(256)) * 16], ids=["none", "text", "every byte"])
async def test_what_a_ledger_was_created_with_is_there_after_its_recovery(password: bytes, digest: DigestType) -> None:
    async with memory_cluster(4) as cluster:
        client, other = cluster.client(), cluster.client()
        given = dict(CUSTOM)
        ledger = await client.create_ledger(password=password, digest_type=digest, custom_metadata=given)
        given.clear()  # the caller's own dict is not kept
        assert ledger.metadata.custom_metadata == CUSTOM
        await ledger.append(b"first")
        cluster.kill(ledger.metadata.last_fragment.ensemble[1])
        await ledger.append(b"second")
        for wrong in (password + b"x", password[:-1] if password else b"\x00"):
            with pytest.raises(WrongPasswordError):
                await other.open_ledger(ledger.ledger_id, recover=True, password=wrong)
        await ledger.append(b"third")  # a wrong password has fenced nobody
        reader = await other.open_ledger(ledger.ledger_id, recover=True, password=password)
        found = [value async for batch in reader.read(0, 2) for value in batch.to_list()]
        assert found == [b"first", b"second", b"third"]
        metadata = (await client.read_metadata(ledger.ledger_id)).value
        assert metadata.is_closed
        assert (metadata.password, metadata.digest_type) == (password, digest)
        assert dict(metadata.custom_metadata) == CUSTOM
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"fourth")


async def test_a_ledger_says_when_it_was_created_and_that_stays() -> None:
    async with memory_cluster(4) as cluster:
        client = cluster.client()
        before_ms = int(time.time() * 1000)
        ledger = await client.create_ledger()
        created_ms = ledger.metadata.ctime_ms
        assert created_ms is not None
        assert before_ms <= created_ms <= time.time() * 1000
        await ledger.append(b"first")
        cluster.kill(ledger.metadata.last_fragment.ensemble[0])
        await ledger.append(b"second")
        await ledger.close()
        assert (await client.read_metadata(ledger.ledger_id)).value.ctime_ms == created_ms
