# SPDX-License-Identifier: Apache-2.0
"""The way to the index: questions that are asked on the thread that owns it (RULES S10).

Whoever maintains a data directory reads and tells the index only so, one question at a time: nothing of the index is
held between two of them. Simulators, tests and a start ask directly; the server hops to its loop for each
(``bookie_server/engine/index_hop.py``), so a question must be quick, and must not touch the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from bookie_server.storage.index.index import LedgerIndex

T = TypeVar("T")


class Stopping(BaseException):
    """The bookie stops: what was asked or given was not done. No error, and not to be handled on the way."""


class IndexPort(Protocol):
    """Where questions are asked."""

    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        """What ``question`` says of the index, asked on its thread; exceptions come through.

        In the server BookKeeperError when the loop did not come to it in time, and :class:`Stopping` when the loop has
        ended: the question was not asked and will not be, and the index has not changed.
        """
        ...


class DirectIndexPort:
    """For whoever is on the index's thread."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index

    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        return question(self._index)
