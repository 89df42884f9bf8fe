# SPDX-License-Identifier: Apache-2.0
"""What of the blocking client is written by hand, as bases of its classes: what does more than wait for the method of
the same name of the asyncio client. ``scripts/blocking.py`` writes the rest and leaves out what stands here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from bk_core import client
from bk_core.client.ahead import WantedRange
from bk_core.client.loop_thread import BlockHandle, Connection
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import WindowFullError
from bk_core.model import EntryId

if TYPE_CHECKING:
    from bk_core.blocking_logs import NamedLog
    from bk_core.logs.machines.transactions import PublishOptions
    from bk_core.logs.model.head import NewExtent, Published, PublishId

T = TypeVar("T")


class LedgerWriterBase(BlockHandle[client.LedgerWriter]):
    """Appends without a task on the loop for each, as long as the window has room."""

    def append(self, payload: Bytes) -> EntryId:
        """Append one entry; returns its id once an ack quorum has it on disk and every entry before it is confirmed.

        Raises what append_nowait does, except WindowFullError: it waits for room, in turn with others that wait.
        LedgerFencedError and other errors of unknown outcome: the entry may be part of the ledger.
        """
        try:
            return self._inner.append_future(payload).result()
        except WindowFullError:
            return self._thread.call(self._inner.append(payload))


class BookKeeperBase(Connection[client.BookKeeper]):
    """What the asyncio client has as functions of its own, because logs stand above it (docs/decisions/0002)."""

    def log(self, name: str, *, password: bytes = b"") -> NamedLog:
        """A named log; nothing is read or made yet. Raises InvalidArgumentError for a bad name."""
        from bk_core import blocking_logs  # only who asks for a log pays for the import
        from bk_core.logs import named_log

        return blocking_logs.NamedLog(named_log.NamedLog(self._inner, name, password=password), self._thread)

    def publish_to_logs(
        self,
        ledgers: Mapping[str, Sequence[NewExtent]],
        publish_id: PublishId,
        *,
        password: bytes = b"",
        options: PublishOptions | None = None,
    ) -> dict[str, Published]:
        """As :func:`bk_core.logs.named_log.publish_to_logs`."""
        from bk_core.logs import named_log  # as above
        from bk_core.logs.machines.transactions import APPEND

        how = APPEND if options is None else options
        return self._thread.call(
            named_log.publish_to_logs(self._inner, ledgers, publish_id, password=password, options=how)
        )

    def begin(self, work: Callable[[client.BookKeeper], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start what needs the asyncio client, on its own loop, and do not wait for it: many things can be watched by
        one thread. Cancelling the future cancels it there; so does closing the client. Raises ClientClosedError."""
        return self._thread.begin(work(self._inner))


class DetachedReaderBase(Connection[client.DetachedReader]):
    """Hands out what comes in lists piece by piece: a turn of the loop each would cost more than the piece."""

    def read_all(
        self, wanted: Iterable[WantedRange], *, prefer: int = 0
    ) -> Generator[tuple[int, EntryBatch], None, None]:
        """The entries of all ranges, in order, with the number of their range: many small ledgers are asked for ahead.
        Raises as :meth:`read`, after what comes before."""
        with closing(self._thread.iterate(self._inner.read_all(wanted, prefer=prefer))) as lists:
            for ready in lists:
                yield from ready
