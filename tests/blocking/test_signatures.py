# SPDX-License-Identifier: Apache-2.0
"""A call without ``await`` has the parameters and defaults of its twin with ``await``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from bk_core import blocking, client
from bk_core.blocking import logs
from bk_core.client.detached import DetachedReader
from bk_core.logs.leading.leader import LogLeader
from bk_core.logs.named_log import NamedLog
from tests.kit.memory_cluster import memory_cluster

TWINS = {
    client.BookKeeper: blocking.BookKeeper,
    client.LedgerWriter: blocking.LedgerWriter,
    client.LedgerReader: blocking.LedgerReader,
    DetachedReader: blocking.DetachedReader,
    NamedLog: logs.NamedLog,
    LogLeader: logs.LogLeader,
}


def parameters(method: Callable[..., Any]) -> dict[str, Any]:
    """Names and defaults, without ``self``; functions are as good as each other."""
    found = {name: each.default for name, each in inspect.signature(method).parameters.items() if name != "self"}
    return {name: "a function" if inspect.isfunction(default) else default for name, default in found.items()}


def shared(cls: type, twin: type) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name in vars(twin) and inspect.isfunction(vars(twin)[name])
    ]


@pytest.mark.rule("K4")
@pytest.mark.parametrize("cls", TWINS, ids=lambda cls: cls.__name__)
def test_both_clients_have_the_same_defaults(cls: type) -> None:
    twin = TWINS[cls]
    names = shared(cls, twin)
    assert names
    different = {name for name in names if parameters(getattr(cls, name)) != parameters(vars(twin)[name])}
    assert different == set()


async def test_what_is_left_out_is_what_the_documents_promise() -> None:
    """A ledger of 3/3/2 with CRC32C; a log likewise, of codec raw, that rolls at 1 GiB or an hour."""
    made = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
    create, lead = parameters(client.BookKeeper.create_ledger), parameters(NamedLog.lead)
    assert {name: create[name] for name in made} == made
    assert (create["digest_type"].name, create["password"], create["ledger_id"]) == ("CRC32C", b"", None)
    assert {name: lead[name] for name in made} == made
    assert (lead["roll_bytes"], lead["roll_age_s"], lead["codec"]) == (1 << 30, 3600.0, "raw")

    async with memory_cluster() as cluster:
        bookkeeper = cluster.client()
        async with await NamedLog(bookkeeper, "a-log").lead() as leader:
            await leader.append(b"x")
        writer = await bookkeeper.create_ledger()
        record = writer.metadata
        await writer.close()
        assert (record.ensemble_size, record.write_quorum_size, record.ack_quorum_size) == (3, 3, 2)
