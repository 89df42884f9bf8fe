# SPDX-License-Identifier: Apache-2.0
"""Each call of the asyncio client has a twin without ``await``, with the same parameters, defaults and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bk_core import blocking, client
from bk_core.blocking import logs, topics
from bk_core.client.detached import DetachedReader
from bk_core.logs.leading.leader import LogLeader
from bk_core.logs.named_log import NamedLog
from bk_core.pulsar.topic import Topic
from tests.kit.memory_cluster import memory_cluster

TWINS = {
    client.BookKeeper: blocking.BookKeeper,
    client.LedgerWriter: blocking.LedgerWriter,
    client.LedgerReader: blocking.LedgerReader,
    DetachedReader: blocking.DetachedReader,
    NamedLog: logs.NamedLog,
    LogLeader: logs.LogLeader,
    Topic: topics.Topic,
}
INTERNAL = {
    client.BookKeeper: {
        *("at_close", "bookies_for_repair", "check_open", "choose_bookies", "digester_of"),
        *("new_session", "recover_ledger", "refresh_bookies", "tell_deleted"),
    },
    client.LedgerWriter: {"append_future", "end", "hold", "release"},
    client.LedgerReader: {"end", "read_parts", "reading", "tailing"},
    NamedLog: {"compactor"},
    LogLeader: {"take_over"},
}
"""Public names of the asyncio classes that only the client itself uses. They have no twin."""
OTHER_WORDS = {
    client.BookKeeper: {"close"},
    client.LedgerWriter: {"append"},
    DetachedReader: {"close", "read_all"},
}
"""Calls that do more than their twins, and have docstrings of their own."""


def public(cls: type) -> set[str]:
    """Return the names of the public methods, properties and declared attributes of a class."""
    return {name for name in {*vars(cls), *inspect.get_annotations(cls)} if not name.startswith("_")}


def parameters(method: Callable[..., Any]) -> dict[str, Any]:
    """Names and defaults, without ``self``; functions are as good as each other."""
    found = {name: each.default for name, each in inspect.signature(method).parameters.items() if name != "self"}
    return {name: "a function" if inspect.isfunction(default) else default for name, default in found.items()}


def shared(cls: type) -> Iterator[tuple[str, Any, Any]]:
    """Yield the methods and properties of a class that have a twin, each with its name and its twin."""
    for name in public(cls) & set(dir(TWINS[cls])) & set(dir(cls)):
        yield name, getattr(cls, name), getattr(TWINS[cls], name)


each_class = pytest.mark.parametrize("cls", TWINS, ids=lambda cls: cls.__name__)


@each_class
def test_every_call_for_users_has_a_twin(cls: type) -> None:
    assert public(cls) - set(dir(TWINS[cls])) == INTERNAL.get(cls, set())


@pytest.mark.rule("K4")
@each_class
def test_both_clients_have_the_same_defaults(cls: type) -> None:
    methods = [(name, method, twin) for name, method, twin in shared(cls) if inspect.isfunction(method)]
    assert methods
    assert {name for name, method, twin in methods if parameters(method) != parameters(twin)} == set()


@each_class
def test_both_clients_have_the_same_docstrings(cls: type) -> None:
    different = {name for name, member, twin in shared(cls) if inspect.getdoc(member) != inspect.getdoc(twin)}
    assert different == OTHER_WORDS.get(cls, set())


def test_help_shows_what_a_read_returns() -> None:
    assert inspect.signature(blocking.LedgerReader.read).return_annotation == "BlockingIterator[EntryBatch]"
    assert inspect.signature(client.LedgerReader.read).return_annotation == "BatchIterator[EntryBatch]"


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
