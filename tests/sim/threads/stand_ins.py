# SPDX-License-Identifier: Apache-2.0
"""Replacements for ``threading``, ``time`` and ``queue.SimpleQueue`` in the product while threads take turns.

They behave as those of the standard library, even where that is inconvenient: a notification may go to a waiter whose
time has just run out. Threads that are no part of the run (a test that checks afterwards) find every lock free.
"""

from __future__ import annotations

import concurrent.futures._base as futures
import contextlib
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tests.sim.threads.baton import Turn, Turns

PRODUCT = ("bk_core.", "bookie_server.")
EPOCH_S = 1_760_000_000.0


class Lock:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._owner: Turn | None = None
        self._depth = 0
        self._waiting: list[Turn] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._turns.me()
        if me is None:
            return True
        self._turns.point("acquire")
        return self._take(me, blocking, timeout)

    def _take(self, me: Turn, blocking: bool, timeout: float) -> bool:
        end = None if timeout < 0 else self._turns.now + timeout
        while self._owner is not None:
            if not blocking or (end is not None and self._turns.now >= end):
                return False
            self._waiting.append(me)
            self._turns.block("a lock", None if end is None else end - self._turns.now)
            if me in self._waiting:
                self._waiting.remove(me)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        me = self._turns.me()
        if me is None or self._turns.ending:
            return
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._free()
        self._turns.point("release")

    def _free(self) -> None:
        self._owner, self._depth = None, 0
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._turns.wake(each)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._turns.me()
        if me is not None and self._owner is me:
            self._depth += 1
            return True
        return super().acquire(blocking, timeout)

    def release(self) -> None:
        if self._turns.me() is not None and not self._turns.ending:
            if self._owner is not self._turns.me():
                raise RuntimeError("cannot release un-acquired lock")
            if self._depth > 1:
                self._depth -= 1
                return
        super().release()


class Condition:
    def __init__(self, turns: Turns, lock: Lock | None = None) -> None:
        self._turns = turns
        self._lock = lock or RLock(turns)
        self._waiters: deque[Turn] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    acquire = property(lambda self: self._lock.acquire)
    release = property(lambda self: self._lock.release)

    def wait(self, timeout: float | None = None) -> bool:
        me = self._turns.me()
        assert me is not None
        self._check(me)
        depth = self._lock._depth
        self._waiters.append(me)
        self._lock._free()
        heard = self._turns.block("a condition", timeout)
        self._lock._take(me, True, -1)
        self._lock._depth = depth
        if not heard:
            with contextlib.suppress(ValueError):
                self._waiters.remove(me)
        return heard

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._turns.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._turns.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        me = self._turns.me()
        if me is None:
            return
        self._check(me)
        while self._waiters and n > 0:
            # a waiter whose time has run out is woken already, as with the real one
            self._turns.wake(self._waiters.popleft())
            n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def _check(self, me: Turn) -> None:
        if self._lock._owner is not me and not self._turns.ending:
            raise RuntimeError("cannot wait on or notify an un-acquired lock")


class Event:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._flag = False
        self._waiting: list[Turn] = []

    def is_set(self) -> bool:
        self._turns.point("is set?")
        return self._flag

    def set(self) -> None:
        self._turns.point("set")
        self._flag = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._turns.wake(each)

    def clear(self) -> None:
        self._turns.point("clear")
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        me = self._turns.me()
        assert me is not None
        self._turns.point("wait")
        if not self._flag:
            self._waiting.append(me)
            self._turns.block("an event", timeout)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._flag


class SimpleQueue:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._items: deque[Any] = deque()
        self._waiting: deque[Turn] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._turns.point("put")
        self._items.append(item)
        if self._waiting:
            self._turns.wake(self._waiting.popleft())

    def get(self) -> Any:
        me = self._turns.me()
        assert me is not None
        self._turns.point("get")
        while not self._items:
            self._waiting.append(me)
            self._turns.block("a queue")
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Thread:
    """A thread. Daemon or not makes no difference, because every thread must end."""

    def __init__(
        self,
        turns: Turns,
        target: Callable[..., Any],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self._turns, self._target, self.name, self._args, self._kwargs = turns, target, name, args, kwargs or {}
        self.daemon = bool(daemon)
        self._turn: Turn | None = None

    def start(self) -> None:
        if self._turn is not None:
            raise RuntimeError("threads can only be started once")
        self._turn = self._turns.spawn(self.name, lambda: self._target(*self._args, **self._kwargs))
        self._turn.owner = self
        self._turns.point("start")

    @property
    def ident(self) -> int | None:
        return None if self._turn is None else id(self._turn)

    def is_alive(self) -> bool:
        self._turns.point("is alive?")
        return self._turn is not None and not self._turn.done

    def join(self, timeout: float | None = None) -> None:
        if self._turn is None:
            raise RuntimeError("cannot join thread before it is started")
        self._turns.join(self._turn, timeout)


class _Threading(ModuleType):
    """The module ``threading`` of a run."""

    def __init__(self, turns: Turns) -> None:
        super().__init__("threading")
        self._turns = turns

    def Lock(self) -> Lock:  # noqa: N802 - the standard library's names
        return Lock(self._turns)

    def RLock(self) -> RLock:  # noqa: N802 - threading's own name
        return RLock(self._turns)

    def Condition(self, lock: Lock | None = None) -> Condition:  # noqa: N802 - threading's own name
        return Condition(self._turns, lock)

    def Event(self) -> Event:  # noqa: N802 - threading's own name
        return Event(self._turns)

    def Thread(self, **options: Any) -> Thread:  # noqa: N802 - threading's own name
        return Thread(self._turns, **options)

    def get_ident(self) -> int:
        me = self._turns.me()
        return id(me) if me is not None else threading.get_ident()

    def current_thread(self) -> Any:
        me = self._turns.me()
        return me.owner if me is not None else threading.current_thread()


class _Time(ModuleType):
    """The module ``time`` of a run."""

    def __init__(self, turns: Turns) -> None:
        super().__init__("time")
        self._turns = turns

    def monotonic(self) -> float:
        return self._turns.now

    def time(self) -> float:
        return EPOCH_S + self._turns.now

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        self._turns.block("sleep", seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextlib.contextmanager
def replaced(turns: Turns) -> Iterator[None]:
    """Replace the modules in the product's loaded modules, and in the futures of the standard library, within this
    block."""
    threads, clock = _Threading(turns), _Time(turns)
    new: dict[Any, Any] = {threading: threads, time: clock, queue.SimpleQueue: lambda: SimpleQueue(turns)}
    before: list[tuple[ModuleType, str, Any]] = []
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(PRODUCT)]
    for module in [*modules, futures]:
        for name in ("threading", "time", "SimpleQueue"):
            old = vars(module).get(name)
            if old is threading or old is time or old is queue.SimpleQueue:
                before.append((module, name, old))
                setattr(module, name, new[old])
    try:
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)
