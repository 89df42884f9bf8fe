# SPDX-License-Identifier: Apache-2.0
"""Connections of one process, shared by its tasks and planning calls (RULES K3, K4).

Spark forks its Python workers and reuses them, so a connection is worth keeping and must never cross a fork: caches are
keyed by process and configuration, and a child begins with empty ones. Nothing connects before the first use.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bk_core.errors import BookKeeperError, InvalidArgumentError
from bk_core.model import BookieId, BookieServiceInfo, LedgerId, LedgerMetadata
from bk_spark.errors import unknown_option
from bk_spark.option_table import CLIENT_PREFIX
from bk_spark.options import BkOptions, normalise
from bk_spark.task_plan import TaskPlan

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper, DetachedReader
    from bk_core.client import ClientConfig

CLIENTS_MAX = 8
READERS_MAX = 8
FALLBACK_JITTER_S = 1.0
TASK_DEFAULTS: Mapping[str, int] = {
    "window_bytes_max": 8 << 20,
    "slow_bookie_bytes_max": 24 << 20,
    "frame_bytes": 2 << 20,
}
"""Less than the client's own: many tasks share a machine, and each stays below 128 MiB (RULES K5). Frames are larger:
a task has whole columns to write, and what a frame costs, writers, bookies and readers pay once for twice the rows."""

T = TypeVar("T")


class ProcessCache(Generic[T]):
    """At most ``size_max`` things of this process, the least recently used closed first.

    In a forked child it is empty and what the parent holds is not closed: its sockets belong to the parent.
    """

    def __init__(self, size_max: int, close: Callable[[T], None]) -> None:
        self._size_max, self._close = size_max, close
        self._start_empty()
        os.register_at_fork(after_in_child=self._start_empty)

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._things: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The thing of ``key``, made if need be. ``make`` runs at most once at a time."""
        full_key = (os.getpid(), key)
        with self._lock:
            thing = self._things.get(full_key)
            if thing is None:
                thing = self._things[full_key] = make()
            self._things.move_to_end(full_key)
            surplus = [self._things.popitem(last=False)[1] for _ in range(len(self._things) - self._size_max)]
        for old in surplus:
            self._close(old)
        return thing

    def discard(self, thing: T) -> None:
        """Forget and close ``thing``; the next :meth:`get` makes another."""
        with self._lock:
            for key in [key for key, value in self._things.items() if value is thing]:
                del self._things[key]
        self._close(thing)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return (os.getpid(), key) in self._things

    def __len__(self) -> int:
        return len(self._things)


def _close_quietly(thing: Any) -> None:
    try:
        thing.close()
    except BookKeeperError:
        return  # it is replaced because it is of no use any more


_clients: ProcessCache[BookKeeper] = ProcessCache(CLIENTS_MAX, _close_quietly)
_readers: ProcessCache[DetachedReader] = ProcessCache(READERS_MAX, _close_quietly)


def client_config(options: BkOptions) -> ClientConfig:
    """The client's configuration from the ``bookkeeper.*`` pairs.

    Raises InvalidArgumentError for an unknown key, naming the nearest, and for a value it cannot take.
    """
    from bk_core.client import ClientConfig

    known = {normalise(field.name): field for field in fields(ClientConfig)}
    values: dict[str, int | float] = dict(TASK_DEFAULTS)
    for key, text in options.client_settings:
        if key not in known:
            raise unknown_option(CLIENT_PREFIX + key, [CLIENT_PREFIX + _camel(f.name) for f in known.values()])
        try:
            values[known[key].name] = int(text) if text.strip().isdigit() else float(text)
        except ValueError:
            raise InvalidArgumentError(
                "a client setting is not a number", value=f"{CLIENT_PREFIX}{_camel(known[key].name)}={text!r}"
            ) from None
    return ClientConfig(**values)  # type: ignore[arg-type]  # ClientConfig checks what it is given


def client(options: BkOptions) -> BookKeeper:
    """This process's session with the cluster. Raises MetadataUnavailableError within 10 seconds."""
    from bk_core.blocking import connect

    config = client_config(options)
    key = (options.metadata_service_uri, options.client_settings)
    return _clients.get(key, lambda: connect(options.metadata_service_uri, config=config))


def is_connected(options: BkOptions) -> bool:
    """Whether this process has the session that :func:`client` would give."""
    return (options.metadata_service_uri, options.client_settings) in _clients


def discard(broken: BookKeeper) -> None:
    """Close a session that failed for good, so that the next :func:`client` opens a new one."""
    _clients.discard(broken)


def detached_reader(plan: TaskPlan, options: BkOptions) -> DetachedReader:
    """A reader of entries that asks no metadata store while one listed replica of each entry answers (RULES K3).

    Kept for the next task of this process that reads from the same cluster.
    """
    from bk_core.blocking import DetachedReader

    config = client_config(options)

    def refresh(ledger_id: LedgerId) -> tuple[LedgerMetadata, Mapping[BookieId, BookieServiceInfo]]:
        if not is_connected(options):
            time.sleep(random.uniform(0, FALLBACK_JITTER_S))  # a thousand tasks must not connect at the same moment
        bookkeeper = client(options)
        metadata = replace(bookkeeper.read_metadata(ledger_id).value, password=options.ledger_password)
        return metadata, bookie_infos(bookkeeper)

    key = (options.metadata_service_uri, options.client_settings, options.ledger_password, plan.instance_id)
    reader = _readers.get(
        key, lambda: DetachedReader(plan.bookies, instance_id=plan.instance_id, config=config, refresh=refresh)
    )
    reader.update_bookies(plan.bookies)
    return reader


def bookie_infos(bookkeeper: BookKeeper) -> dict[BookieId, BookieServiceInfo]:
    """Endpoints of all bookies that can be read from now."""
    return {**bookkeeper.store.read_only_bookies(), **bookkeeper.store.writable_bookies()}


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
