# SPDX-License-Identifier: Apache-2.0
"""Questions to the index, asked on the thread that owns it (RULES S10).

Maintenance reads and changes the index only in this way, one question at a time, and holds nothing of it between two
questions. Simulators, tests and a start ask directly. The server hops to its loop for each question
(``bookie_server/engine/index_hop.py``), so a question must be quick and must not touch the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from bookie_server.storage.index.index import LedgerIndex

T = TypeVar("T")


class Stopping(BaseException):
    """The bookie stops, so the question was not asked or the copies were not written. Not an error; only the threads
    handle it."""


class IndexPort(Protocol):
    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        """Returns what ``question`` returns for the index, called on the index's thread; its exceptions come through.

        In the server it raises BookKeeperError if the loop did not answer in time, and :class:`Stopping` if the loop
        has ended. In both cases the question was not asked and never will be, and the index has not changed.
        """
        ...


class DirectIndexPort:
    """For callers on the index's thread."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index

    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        return question(self._index)
