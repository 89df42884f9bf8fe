# SPDX-License-Identifier: Apache-2.0
"""Calls functions (*questions*) with the index, on the thread that owns it (RULES S10).

Maintenance reads and changes the index only in this way, one question at a time, and keeps no reference into it between
two questions. Simulators, tests and a start call directly. The server runs each question on its loop
(``bookie_server/engine/index_hop.py``), so a question must be quick and must not use the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from bookie_server.storage.index.index import LedgerIndex

T = TypeVar("T")


class Stopping(BaseException):
    """The bookie is stopping, so the question was not asked or the copies were not written. This is not an error; only
    the threads handle it."""


class IndexPort(Protocol):
    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        """Call ``question`` with the index, on the index's thread. Returns its result and raises its exceptions.

        In the server it raises BookKeeperError if the loop did not answer in time, and :class:`Stopping` if the loop
        has ended. In both cases the question is not called, also not later, and the index has not changed.
        """
        ...


class DirectIndexPort:
    """The port for callers on the index's thread."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index

    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        return question(self._index)
