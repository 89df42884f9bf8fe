# SPDX-License-Identifier: Apache-2.0
"""Makes the ids of new ledgers as Apache's clients do, so that both can work on one cluster.

An id is the number of an ephemeral sequential node, which is deleted once the id is used. A client that makes many
ledgers reserves several ids in one transaction, and uses them in order. Unused ids are lost; their nodes end with the
session.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from bk_core.errors import MetadataError, MetadataUnavailableError, Outcome
from bk_core.metadata.layout import SHORT_IDS_END, Layout
from bk_core.metadata.tree.tree import (
    WRITE_TRIES,
    Create,
    NodeExistsError,
    NoNodeError,
    Tree,
    TreeError,
    ensure_path,
)

RESERVED_MAX = 16
"""The maximum number of ids that one request to the store reserves."""
_RESERVED_S = 0.25  # the seconds for which the ids of one reservation last, at the rate of the last second
_TOGETHER_S = 1.0
"""The number of seconds that a thread waits while another thread requests ids from the store. Then it sends a request
itself."""
_HOB = re.compile(r"HOB-([0-9]{10})")
_KEPT_FOLDERS = 3
_TRIES = 8


class NewId(NamedTuple):
    """An id that no other client gets, with the path of the node to delete when the id is used."""

    number: int
    node: str


class IdGenerator:
    """Makes ids for new ledgers. No other client gets the same id, unless it creates a ledger with a given id. Any
    thread may call it.

    Once the 31-bit ids of ``idgen`` are used up, ``idgen-long`` gives ids of 63 bits. A client that began before
    continues with ``idgen`` until it finds them used up, which is safe because its numbers never repeat. ``clock``
    returns seconds.
    """

    def __init__(self, tree: Tree, root: str, clock: Callable[[], float] | None = None) -> None:
        self._tree, self._root, self._clock = tree, root, clock or time.monotonic
        self._asking = threading.Lock()  # held while one thread requests ids; other threads wait at most _TOGETHER_S
        self._lock = threading.Lock()  # guards the fields below
        self._reserve: deque[NewId] = deque()
        self._is_long: bool | None = None  # whether the 31-bit ids are used up, or None if that is not known yet
        self._taken_at: deque[float] = deque(maxlen=round(RESERVED_MAX / _RESERVED_S))

    def next(self, layout: Layout) -> NewId:
        """Return a new id for a cluster of this layout."""
        made = self._take()
        if made is not None:
            return made
        alone = self._asking.acquire(timeout=_TOGETHER_S)
        try:
            made = self._take()
            if made is None:
                made, *more = self._ask(layout, self._wanted())
                with self._lock:
                    self._reserve.extend(more)
                    self._taken_at.append(self._clock())
            return made
        finally:
            if alone:
                self._asking.release()

    def _take(self) -> NewId | None:
        with self._lock:
            if not self._reserve:
                return None
            self._taken_at.append(self._clock())
            return self._reserve.popleft()

    def _wanted(self) -> int:
        """Return the number of ids to request. It is one, unless many ids were taken in the last second."""
        with self._lock:
            since = self._clock() - 1.0
            return max(1, round(_RESERVED_S * sum(at > since for at in self._taken_at)))

    def release(self, made: NewId) -> None:
        """Delete the node of an id that was used or is not needed. If the delete fails, the node ends with the
        session."""
        with contextlib.suppress(TreeError, MetadataUnavailableError):
            self._tree.delete(made.node)

    def _ask(self, layout: Layout, count: int) -> list[NewId]:
        if layout is Layout.FLAT:
            return self._sequence(self._root, count) or _used_up()
        long_folder = f"{self._root}/idgen-long"
        if layout is Layout.HIERARCHICAL and self._is_long is None:  # once, as Apache's clients do
            self._is_long = self._tree.exists(long_folder) is not None
        if layout is not Layout.LONG_HIERARCHICAL and not self._is_long:
            made = self._sequence(f"{self._root}/idgen", count)
            if made or layout is not Layout.HIERARCHICAL:
                return made or _used_up()
            self._is_long = True
        return self._long(long_folder, count)

    def _long(self, folder: str, count: int) -> list[NewId]:
        ensure_path(self._tree, folder)
        for _ in range(_TRIES):
            highs = sorted(int(match[1]) for name in self._tree.children(folder) if (match := _HOB.fullmatch(name)))
            if not highs:
                self._make_high(folder, 1)
                continue
            lows = self._sequence(f"{folder}/{_high_name(highs[-1])}", count)
            if lows:
                return [NewId(highs[-1] << 32 | low.number, low.node) for low in lows]
            self._make_high(folder, highs[-1] + 1)
            self._prune(folder, highs[: -(_KEPT_FOLDERS - 1)])
        return _used_up()

    def _make_high(self, folder: str, high: int) -> None:
        with contextlib.suppress(NodeExistsError):  # another client made it first
            self._tree.create(f"{folder}/{_high_name(high)}")

    def _prune(self, folder: str, highs: list[int]) -> None:
        for high in highs:
            with contextlib.suppress(TreeError, MetadataUnavailableError):
                self._tree.delete(f"{folder}/{_high_name(high)}")

    def _sequence(self, folder: str, count: int) -> list[NewId]:
        """Return the next ``count`` numbers of this folder, or fewer when its 31-bit numbers are almost used up. Return
        an empty list once they are used up."""
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                nodes = self._create(f"{folder}/ID-", count)
            except NoNodeError:
                ensure_path(self._tree, folder)
                continue
            except MetadataUnavailableError as error:
                if error.outcome is Outcome.NOT_APPLIED:
                    raise
                lost = error  # a number may be lost; request another one
                continue
            return self._valid(nodes)
        raise lost or MetadataError("The folder of ledger ids is deleted again and again", value=folder)

    def _create(self, prefix: str, count: int) -> list[str]:
        if count == 1:
            return [self._tree.create(prefix, ephemeral=True, sequential=True)]
        return self._tree.multi([Create(prefix, ephemeral=True, sequential=True)] * count)

    def _valid(self, nodes: list[str]) -> list[NewId]:
        valid = list[NewId]()
        for node in nodes:
            digits = node.rpartition("ID-")[2]  # after an overflow ZooKeeper writes a negative number
            if digits.isdigit() and int(digits) < SHORT_IDS_END:
                valid.append(NewId(int(digits), node))
            else:
                self.release(NewId(-1, node))
        return valid


def _high_name(high: int) -> str:
    return f"HOB-{high:010d}"


def _used_up() -> NoReturn:
    raise MetadataError("This cluster has used up its ledger ids", remedy="use the layout hierarchical")
