# SPDX-License-Identifier: Apache-2.0
"""Connections are shared within a process and never across a fork (RULES K4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from bk_core.errors import InvalidArgumentError
from bk_spark.clients import ProcessCache, client_config
from bk_spark.option_table import Use
from bk_spark.options import parse_options


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def in_child(check: Callable[[], bool]) -> bool:
    """What ``check`` says in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.rule("K4")
def test_one_configuration_has_one_connection() -> None:
    cache: ProcessCache[Connection] = ProcessCache(4, Connection.close)
    first = cache.get("a", Connection)
    assert cache.get("a", Connection) is first
    assert cache.get("b", Connection) is not first
    assert ["a" in cache, "c" in cache, in_child(lambda: "a" in cache)] == [True, False, False]


@pytest.mark.rule("K4")
def test_a_child_begins_with_nothing_and_closes_nothing() -> None:
    cache: ProcessCache[Connection] = ProcessCache(4, Connection.close)
    parents = cache.get("a", Connection)
    assert in_child(lambda: len(cache) == 0 and cache.get("a", Connection) is not parents and not parents.closed)
    assert cache.get("a", Connection) is parents


@pytest.mark.rule("K4")
def test_a_child_is_not_blocked_by_a_lock_its_parent_held() -> None:
    cache: ProcessCache[Connection] = ProcessCache(4, Connection.close)
    entered, leave = threading.Event(), threading.Event()

    def slow() -> Connection:
        entered.set()
        leave.wait(10)
        return Connection()

    thread = threading.Thread(target=cache.get, args=("a", slow))
    thread.start()
    entered.wait(10)
    try:
        assert in_child(lambda: cache.get("a", Connection) is not None)
    finally:
        leave.set()
        thread.join()


def test_the_least_used_connection_is_closed_when_there_are_too_many() -> None:
    cache: ProcessCache[Connection] = ProcessCache(2, Connection.close)
    a, b = cache.get("a", Connection), cache.get("b", Connection)
    cache.get("a", Connection)
    cache.get("c", Connection)
    assert (a.closed, b.closed) == (False, True)
    cache.discard(a)
    assert a.closed
    assert cache.get("a", Connection) is not a


def settings(**pairs: str) -> dict[str, str]:
    return {"metadataserviceuri": "zk://h/ledgers", "path": "e", **{f"bookkeeper.{k}": v for k, v in pairs.items()}}


def test_client_settings_become_the_clients_configuration() -> None:
    config = client_config(parse_options(settings(addTimeoutMs="5000", metadata_timeout_s="2.5"), Use.READ))
    assert (config.add_timeout_ms, config.metadata_timeout_s) == (5000, 2.5)


@pytest.mark.parametrize(
    ("pairs", "hint"),
    [
        ({"addTimeoutM": "1"}, r"did you mean bookkeeper\.addTimeoutMs\?"),
        ({"addTimeoutMs": "soon"}, "not a number"),
        ({"addTimeoutMs": "0"}, "must be positive"),
    ],
)
def test_a_bad_client_setting_is_refused(pairs: dict[str, str], hint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=hint):
        client_config(parse_options(settings(**pairs), Use.READ))
