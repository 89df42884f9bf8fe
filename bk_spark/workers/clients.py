# SPDX-License-Identifier: Apache-2.0
"""Connections of one process, shared by its tasks and planning calls (RULES K3, K4).

Spark forks its Python workers and reuses them. So a connection is worth keeping, and must never cross a fork: caches
are keyed by process and configuration, and a child begins with empty ones. Nothing connects before the first use.

A call of the client gives up after its own ``metadataTimeoutS``, so that a wrong address is reported soon. ZooKeeper
takes longer to restart, so :func:`patiently` asks again for as long as option ``metadataTimeout`` says.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bk_core.errors import BookKeeperError, ClientClosedError, InvalidArgumentError, MetadataUnavailableError
from bk_core.model import BookieId, BookieServiceInfo, LedgerId, LedgerMetadata
from bk_spark.errors import unknown_option
from bk_spark.options.options import CLIENT_PREFIX, BkOptions, normalise

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper, DetachedReader
    from bk_core.client import ClientConfig

logger = logging.getLogger("bk_spark.workers.clients")

CLIENTS_MAX = 8
READERS_MAX = 8
FALLBACK_JITTER_S = 1.0
"""The longest random pause, in seconds, before a task connects to the metadata service on its own. It spreads the
connections of many tasks."""
AGAIN_S = 0.5
"""The pause, in seconds, before the metadata service is asked again, in case it refused at once."""
TASK_DEFAULTS: Mapping[str, int] = {
    "window_bytes_max": 8 << 20,
    "slow_bookie_bytes_max": 24 << 20,
    "process_window_bytes_max": 32 << 20,
    "frame_bytes": 3 << 20,
}
"""Client settings for tasks. The windows are smaller than the client's defaults, because many tasks share a machine and
each must stay below 128 MiB (RULES K5). Frames are three times as large, because a task writes whole columns: writers,
bookies and readers then handle a third as many frames."""

T = TypeVar("T")
R = TypeVar("R")


class ProcessCache(Generic[T]):
    """A cache of at most ``size_max`` objects of this process. It closes the least recently used object first. An
    object that has become unusable (``is_usable``) is closed and replaced, so that it is not returned for ever. A
    forked child begins with an empty cache and closes nothing, because the sockets belong to the parent."""

    def __init__(
        self, size_max: int, close: Callable[[T], None], is_usable: Callable[[T], bool] = lambda thing: True
    ) -> None:
        self._size_max, self._close, self._is_usable = size_max, close, is_usable
        self._start_empty()
        os.register_at_fork(after_in_child=self._start_empty)

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._things: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object for ``key``, and make it if there is none. Only one ``make`` runs at a time."""
        full_key = (os.getpid(), key)
        surplus: list[T] = []
        with self._lock:
            thing = self._things.get(full_key)
            if thing is not None and not self._is_usable(thing):
                surplus.append(self._things.pop(full_key))
                thing = None
            if thing is None:
                thing = self._things[full_key] = make()
            self._things.move_to_end(full_key)
            surplus += [self._things.popitem(last=False)[1] for _ in range(len(self._things) - self._size_max)]
        for old in surplus:
            self._close(old)
        return thing

    def discard(self, thing: T) -> None:
        """Forget ``thing``; the next :meth:`get` makes another. It is closed on a thread of its own, because closing a
        broken thing may take long."""
        with self._lock:
            for key in [key for key, value in self._things.items() if value is thing]:
                del self._things[key]
        threading.Thread(target=self._close, args=(thing,), name="bookkeeper-discard", daemon=True).start()

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return (os.getpid(), key) in self._things

    def __len__(self) -> int:
        return len(self._things)


def _close_quietly(thing: Any) -> None:
    try:
        thing.close()
    except BookKeeperError:
        return  # it is replaced because it is unusable


_clients: ProcessCache[BookKeeper] = ProcessCache(CLIENTS_MAX, _close_quietly, attrgetter("is_usable"))
_readers: ProcessCache[DetachedReader] = ProcessCache(READERS_MAX, _close_quietly, attrgetter("is_usable"))


def client_config(options: BkOptions) -> ClientConfig:
    """Return the client's configuration, made from the ``bookkeeper.*`` pairs. Raises InvalidArgumentError for an
    unknown key, naming the nearest, and for a value that is not accepted."""
    from bk_core.client import ClientConfig

    known = {normalise(field.name): field for field in fields(ClientConfig)}
    values: dict[str, int | float | str] = dict(TASK_DEFAULTS)
    for key, text in options.client_settings:
        if key not in known:
            raise unknown_option(CLIENT_PREFIX + key, [CLIENT_PREFIX + _camel(f.name) for f in known.values()])
        if known[key].type == "str":
            values[known[key].name] = text
            continue
        try:
            values[known[key].name] = int(text) if text.strip().isdigit() else float(text)
        except ValueError:
            raise InvalidArgumentError(
                "a client setting is not a number", value=f"{CLIENT_PREFIX}{_camel(known[key].name)}={text!r}"
            ) from None
    return ClientConfig(**values)  # type: ignore[arg-type]  # ClientConfig checks what it is given


def client(options: BkOptions) -> BookKeeper:
    """Return this process's session with the cluster. Raises MetadataUnavailableError within 10 seconds."""
    from bk_core.blocking import connect

    config = client_config(options)
    key = (options.metadata_service_uri, options.client_settings)
    return _clients.get(key, lambda: connect(options.metadata_service_uri, config=config))


def patiently(options: BkOptions, work: Callable[[BookKeeper], R]) -> R:
    """Return the result of ``work`` with this process's client. Try again while the metadata service cannot be reached.

    ``work`` must be safe to repeat even if a failed try took effect: planning makes at most an empty log, the publish
    id settles a publish (RULES N4), and a ledger whose creation got no answer is an orphan that no log names.

    Between tries the client is kept, because it reconnects by itself and open ledger writers depend on it. (The cache
    replaces one that was closed.) After the last try the client is dropped, so that the next caller in this process
    begins a session of its own. Raises what ``work`` raises, and MetadataUnavailableError once ``metadataTimeout`` has
    passed.
    """
    deadline = time.monotonic() + options.metadata_timeout_ms / 1000
    while True:
        bookkeeper = None
        try:
            bookkeeper = client(options)
            return work(bookkeeper)
        except (MetadataUnavailableError, ClientClosedError) as error:
            if time.monotonic() + AGAIN_S >= deadline:
                if bookkeeper is not None:
                    discard(bookkeeper)
                raise
            logger.warning("%s is asked again: %s", options.metadata_service_uri, error)
        time.sleep(AGAIN_S)


def is_connected(options: BkOptions) -> bool:
    """Return whether this process has the session that :func:`client` would return."""
    return (options.metadata_service_uri, options.client_settings) in _clients


def discard(broken: BookKeeper) -> None:
    """Forget an unusable client, so that the next :func:`client` opens a session of its own."""
    _clients.discard(broken)


def detached_reader(
    options: BkOptions, instance_id: str, bookies: Mapping[BookieId, BookieServiceInfo]
) -> DetachedReader:
    """Return a reader of entries. It asks the metadata store only if none of these bookies answers for an entry (RULES
    K3). It is kept for the next task of this process that reads from the same cluster."""
    from bk_core.blocking import DetachedReader

    config = client_config(options)

    def refresh(ledger_id: LedgerId) -> tuple[LedgerMetadata, Mapping[BookieId, BookieServiceInfo]]:
        if not is_connected(options):
            time.sleep(random.uniform(0, FALLBACK_JITTER_S))  # a thousand tasks must not connect at the same moment
        return patiently(options, lambda bookkeeper: _record_of(bookkeeper, ledger_id, options))

    key = (options.metadata_service_uri, options.client_settings, options.ledger_password, instance_id)
    reader = _readers.get(key, lambda: DetachedReader(bookies, instance_id=instance_id, config=config, refresh=refresh))
    reader.update_bookies(bookies)
    return reader


def _record_of(
    bookkeeper: BookKeeper, ledger_id: LedgerId, options: BkOptions
) -> tuple[LedgerMetadata, Mapping[BookieId, BookieServiceInfo]]:
    bookkeeper.store.sync()  # no planned replica answers: ask where they are now (RULES M5)
    metadata = replace(bookkeeper.read_metadata(ledger_id).value, password=options.ledger_password)
    return metadata, bookie_infos(bookkeeper)


def bookie_infos(bookkeeper: BookKeeper) -> dict[BookieId, BookieServiceInfo]:
    """Return the endpoints of all bookies that can be read from now."""
    return {**bookkeeper.store.read_only_bookies(), **bookkeeper.store.writable_bookies()}


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
