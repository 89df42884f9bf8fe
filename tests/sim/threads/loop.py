# SPDX-License-Identifier: Apache-2.0
"""asyncio's own loop with a selector and a clock of ours. It waits by giving its turn away."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, cast

from tests.sim.threads.baton import Abandoned, Turn, Turns
from tests.sim.threads.stand_ins import replaced


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._selector = self
        self._clock_resolution = 1e-9
        self._woken = False
        self._sleeper: Turn | None = None
        self._executor_threads = 0

    def time(self) -> float:
        return self._turns.now

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until another thread wakes this loop, at most ``timeout`` seconds."""
        if self._woken or (timeout is not None and timeout <= 0):
            self._turns.point("turn of the loop")
        else:
            self._sleeper = self._turns.me()
            self._turns.block("something to do", timeout)
            self._sleeper = None
        self._woken = False
        return []

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None:
        self._woken = True
        if self._sleeper is not None:
            self._turns.wake(self._sleeper)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        self._turns.point("call the loop")
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self._turns.point("called the loop")
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run each call on a thread of its own."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                answer = func(*args)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(answer)

        self._executor_threads += 1
        self._turns.spawn(f"executor-{self._executor_threads}", run)
        return asyncio.wrap_future(done, loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._turns.ending and not isinstance(error, Abandoned):
            self._turns.fail(f"the loop was told: {context.get('message')}: {error!r}")


async def a_while(random: Random, mean_s: float) -> None:
    """Wait for some turns of the loop, in which threads stay busy, or for a time, which passes when no thread is
    busy."""
    if random.random() < 0.7:
        for _ in range(int(random.expovariate(1 / 50))):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(random.expovariate(1 / mean_s))


def run_under(turns: Turns, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Run ``main`` on a loop of this run, to the end of all its threads."""

    def root() -> None:
        loop = SimLoop(turns)
        try:
            loop.run_until_complete(main())
        finally:
            if turns.ending:
                _forget_tasks(loop)
            else:
                _end_tasks(loop)
            loop.close()

    with replaced(turns):
        turns.run(root)


def _forget_tasks(loop: SimLoop) -> None:
    """Drop the tasks of a machine that stopped, where they are. Otherwise Python warns of those that never began, in
    some later test."""
    for task in asyncio.all_tasks(loop):
        coroutine = cast(Coroutine[Any, Any, Any], task.get_coro())
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()


def _end_tasks(loop: SimLoop) -> None:
    """End the tasks as asyncio.run does."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()

    async def ended() -> None:
        await asyncio.gather(*left, return_exceptions=True)

    loop.run_until_complete(ended())
    loop.run_until_complete(loop.shutdown_asyncgens())
