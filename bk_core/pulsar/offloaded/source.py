# SPDX-License-Identifier: Apache-2.0
"""Yields the entries of offloaded ledgers in order, in batches as if from bookies.

A block has no list of its entries, so a range that begins within a block is read from the block's begin. A block is
read with one request, or with several requests if it is large. The next request runs while the caller uses the entries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, Protocol, TypeAlias

from bk_core.entries.batch import EntryBatch
from bk_core.pulsar.model.offload import INDEX, OffloadedCopy
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.offloaded.access import OffloadStorage
from bk_core.pulsar.offloaded.blocks import (
    INDEX_BYTES_MAX,
    BlockParser,
    OffloadFormatError,
    OffloadIndex,
    parse_index,
)
from bk_core.pulsar.offloaded.storage import REQUESTS_AT_ONCE, Storage, StoredObject, corrupt, shown_place, unavailable

REQUEST_BYTES = 8 << 20
"""The maximum number of bytes in one request. A read of a range holds about twice as much, because one request runs
ahead."""
OBJECTS_SHOWN = 3
"""The maximum number of objects that an error names."""
INDEXES_KEPT = 64
"""The maximum number of copies whose indexes are cached, so that the next range of the same ledger needs no request for
them."""

MARGIN_S = 1.0
"""The number of seconds that a step may take beyond the timeout of its storage, whose own error says more."""

_Step: TypeAlias = "EntryBatch | Future[Any] | partial[Any]"
_Steps: TypeAlias = Generator[_Step, Any, None]


class CopiedRange(Protocol):
    """The entries ``first`` to ``last``, both inclusive, of a ledger that has a copy."""

    @property
    def topic(self) -> object: ...
    @property
    def ledger_id(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def copy(self) -> OffloadedCopy | None: ...


@dataclass(frozen=True, slots=True)
class CopyRange:
    """A range for readers that have no :class:`TopicRange`."""

    topic: TopicName
    ledger_id: int
    first: int
    last: int
    copy: OffloadedCopy


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a ledger, and the data object that contains it. ``first`` and ``last`` are the first and the last
    entry of the block."""

    stored: StoredObject
    index: OffloadIndex
    number: int
    first: int
    last: int

    @property
    def begin(self) -> int:
        return int(self.index.offsets[self.number])

    @property
    def end(self) -> int:
        return self.begin + int(self.index.lengths[self.number])

    def requests(self) -> Iterator[tuple[_Block, int, int]]:
        """Yield this block with the offset and the size of each request for its bytes."""
        for offset in range(self.begin, self.end, REQUEST_BYTES):
            yield self, offset, min(REQUEST_BYTES, self.end - offset)


class OffloadedReads:
    """Reads ranges of offloaded ledgers with the same settings. Threads may share it. The constructor sends no
    request."""

    def __init__(self, how: OffloadStorage) -> None:
        self._how, self._lock = how, Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._storages: dict[tuple[str, str, str, str], Storage] = {}
        self._opened: OrderedDict[tuple[int, tuple[str, ...]], list[_Block]] = OrderedDict()

    async def read(self, wanted: CopiedRange) -> AsyncGenerator[EntryBatch, None]:
        """Yield the entries of a range. Raises OffloadMissingError, OffloadUnavailableError, CorruptOffloadError."""
        steps, said = self._steps(wanted), _Said(wanted, self._how)
        while (step := said.next_step(steps)) is not None:
            if isinstance(step, EntryBatch):
                yield step
            elif isinstance(step, partial):
                await said.note_async(asyncio.to_thread(step))
            else:
                await said.note_async(asyncio.wait_for(asyncio.wrap_future(step), self._how.timeout_s + MARGIN_S))

    def batches(self, wanted: CopiedRange) -> Iterator[EntryBatch]:
        """Yield the same entries as :meth:`read`, on a thread that may block."""
        steps, said = self._steps(wanted), _Said(wanted, self._how)
        while (step := said.next_step(steps)) is not None:
            if isinstance(step, EntryBatch):
                yield step
            elif isinstance(step, partial):
                said.note(step)
            else:
                said.note(partial(step.result, self._how.timeout_s + MARGIN_S))

    def _steps(self, wanted: CopiedRange) -> _Steps:
        """Yield the batches of a range and, between them, the steps that the caller must do: wait for a future, or call
        a function. The caller sends the result of each step back."""
        assert wanted.copy is not None
        of = _ledger_of(wanted)
        storage = yield from self._storage(wanted.copy)
        blocks = yield from self._blocks(storage, wanted, of)
        needed = [each for each in blocks if each.last >= wanted.first and each.first <= wanted.last]
        ahead = deque[tuple[_Block, int, Future[memoryview]]]()
        requests = (request for each in needed for request in each.requests())
        try:
            parser, found = None, wanted.first
            while found <= wanted.last:
                while len(ahead) < 2 and (request := next(requests, None)) is not None:
                    block, offset, size = request
                    ahead.append((block, offset, storage.begin_read(block.stored, offset, size, of)))
                if not ahead:
                    raise corrupt(of, wanted.copy.objects[-1], f"it ends before entry {wanted.last}")
                block, offset, future = ahead.popleft()
                data = yield future
                if offset == block.begin:
                    parser = BlockParser(block.index, block.number, block.last, wanted.first)
                assert parser is not None, "a block is requested from its begin"
                batch = yield partial(_parsed, parser, data, offset + len(data) == block.end, of, block.stored.name)
                found = parser.next_entry
                if batch is not None:
                    yield batch if found <= wanted.last + 1 else batch.slice(0, wanted.last + 1 - batch.first_entry_id)
        finally:
            for _, _, unused in ahead:
                unused.cancel()

    def _blocks(self, storage: Storage, wanted: CopiedRange, of: str) -> Generator[Any, Any, list[_Block]]:
        """Return the blocks of a ledger in order, from the cache or from the index objects. Together they have all
        entries of the ledger."""
        assert wanted.copy is not None
        copy, key = wanted.copy, (wanted.ledger_id, wanted.copy.objects)
        with self._lock:
            if (known := self._opened.get(key)) is not None:
                self._opened.move_to_end(key)
                return known
        opening = [(storage.begin_open(name + INDEX, of), storage.begin_open(name, of)) for name in copy.objects]
        parts = list[tuple[StoredObject, OffloadIndex]]()
        for of_index, of_data in opening:
            index_object, stored = (yield of_index), (yield of_data)
            if index_object.bytes > INDEX_BYTES_MAX:
                raise corrupt(of, index_object.name, f"an index of {index_object.bytes} bytes is too large")
            data = yield storage.begin_read(index_object, 0, index_object.bytes, of)
            parts.append((stored, _index(data, wanted.ledger_id, index_object, stored, of)))
        found = _joined(parts, copy, of)
        with self._lock:
            self._opened[key] = found
            while len(self._opened) > INDEXES_KEPT:
                self._opened.popitem(last=False)
        return found

    def _storage(self, copy: OffloadedCopy) -> Generator[Any, Any, Storage]:
        """Return the storage of a copy. A thread of the pool makes it, because that blocks."""
        key = copy.driver, copy.bucket, copy.region, copy.endpoint
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="offloaded")
            pool, found = self._pool, self._storages.get(key)
        if found is None:
            found = yield pool.submit(Storage, copy, self._how, pool)
            with self._lock:
                if pool is self._pool:
                    self._storages[key] = found
        return found

    def close(self) -> None:
        """Forget all storages and indexes. Requests that have begun end within their timeout. A read that is not
        finished then raises ClientClosedError."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._storages.clear()
            self._opened.clear()
        if pool is not None:
            pool.shutdown(wait=False)


class _Said:
    """The result of the last step. :meth:`next_step` sends it to the generator of the steps."""

    def __init__(self, wanted: CopiedRange, how: OffloadStorage) -> None:
        self._wanted, self._how = wanted, how
        self._value: Any = None
        self._error: Exception | None = None

    def next_step(self, steps: _Steps) -> _Step | None:
        """Return the next step, or None after the last one. Raises the errors of the steps."""
        value, error, self._value, self._error = self._value, self._error, None, None
        try:
            return steps.send(value) if error is None else steps.throw(error)
        except StopIteration:
            return None

    def note(self, call: Callable[[], Any]) -> None:
        try:
            self._value = call()
        except Exception as error:
            self._fail(error)

    async def note_async(self, call: Awaitable[Any]) -> None:
        try:
            self._value = await call
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            copy, of = self._wanted.copy, _ledger_of(self._wanted)
            assert copy is not None
            name = f"{shown_place(copy, self._how)}: {', '.join(copy.objects[:OBJECTS_SHOWN])}"
            error = unavailable(name, of, f"no answer within {self._how.timeout_s:g} s")
        self._error = error


def _parsed(parser: BlockParser, data: memoryview, is_end: bool, of: str, name: str) -> EntryBatch | None:
    try:
        found = parser.feed(data)
        if is_end:
            parser.finish()
    except OffloadFormatError as error:
        raise corrupt(of, name, str(error)) from error
    return found


def _index(data: memoryview, ledger_id: int, index_object: StoredObject, stored: StoredObject, of: str) -> OffloadIndex:
    try:
        index = parse_index(data, ledger_id)
    except OffloadFormatError as error:
        raise corrupt(of, index_object.name, str(error)) from error
    if stored.bytes != index.object_bytes:
        raise corrupt(of, stored.name, f"it has {stored.bytes} bytes, and its index says {index.object_bytes}")
    return index


def _joined(parts: list[tuple[StoredObject, OffloadIndex]], copy: OffloadedCopy, of: str) -> list[_Block]:
    """Return the blocks of all objects of a copy, in order. A block ends before the first entry of the next block.
    Raises CorruptOffloadError if they are not in order."""
    begins = [
        (stored, index, number, int(first)) for stored, index in parts for number, first in enumerate(index.firsts)
    ]
    firsts = [first for *_, first in begins]
    if firsts[0] != 0 or any(a >= b for a, b in pairwise([*firsts, copy.last_entry + 1])):
        why = f"the blocks begin at entries {firsts[:20]}, of entries 0 to {copy.last_entry}"
        raise corrupt(of, parts[0][0].name + INDEX, why)
    lasts = [*(first - 1 for first in firsts[1:]), copy.last_entry]
    return [_Block(*begin, last) for begin, last in zip(begins, lasts, strict=True)]


def _ledger_of(wanted: CopiedRange) -> str:
    return f"ledger {wanted.ledger_id} of {wanted.topic}"
