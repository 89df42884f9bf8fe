# SPDX-License-Identifier: Apache-2.0
"""Records whether a writer still takes entries, and how it ended."""

from __future__ import annotations

import asyncio

from bk_core.client.running import fork
from bk_core.client.running.fork import ForkGuard
from bk_core.client.running.metrics import ClientMetrics
from bk_core.errors import BookKeeperError, ClientClosedError, LedgerClosedError
from bk_core.model import LedgerId


class WriterEnd:
    """The state of one writer's end.

    - ``error`` is the error that ended the writer, or None. Once it is set, it never changes.
    - ``is_closing`` says that a close or an abandon has begun. From then on the writer takes no entry.
    - ``was_abandoned`` says that the application ended the writer without a close.
    - ``closed`` is a future that is done once the ledger is closed, or that fails with ``error``.

    ``guard`` refuses calls in a forked child, and ``counts`` counts writers that failed. Any thread may call
    :meth:`check_open`; the loop makes all other calls.
    """

    def __init__(
        self, ledger_id: LedgerId, guard: ForkGuard, closed: asyncio.Future[None], counts: ClientMetrics
    ) -> None:
        self._ledger_id, self._guard, self._counts = ledger_id, guard, counts
        self.error: BookKeeperError | None = None
        self.is_closing = self.was_abandoned = False
        self.closed = closed

    @property
    def is_open(self) -> bool:
        """Whether the writer takes entries, that is, whether :meth:`check_open` raises nothing."""
        return self.error is None and not self.is_closing and self._guard.made_in == fork.generation

    def check_open(self) -> None:
        """Check that the writer takes entries. Raises ForkedHandleError, the error that ended the writer, or
        LedgerClosedError."""
        self._guard.check("this ledger")
        if self.error is not None:
            raise self.error
        if self.is_closing:
            raise self.closed_error()

    def closed_error(self) -> LedgerClosedError:
        """Return the error for calls that come after a close has begun."""
        return LedgerClosedError(
            f"ledger {self._ledger_id} is closed", remedy="a closed ledger cannot be reopened: create another"
        )

    def note_closed(self) -> None:
        """Note that the ledger is closed in the metadata store."""
        if not self.closed.done():
            self.closed.set_result(None)

    def fail(self, error: BookKeeperError) -> None:
        """Note the error that ends the writer, unless an earlier error has ended it. Count the writer as failed unless
        the application ended it."""
        if self.error is None:
            self.error = error
            if not isinstance(error, ClientClosedError):
                failed = self._counts.writers_failed
                failed[error.code] = failed.get(error.code, 0) + 1
        if not self.closed.done():
            self.closed.set_exception(error)
            self.closed.exception()  # marks it as retrieved: close() raises ``error``
