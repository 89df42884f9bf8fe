# SPDX-License-Identifier: Apache-2.0
"""Makes the methods of the blocking client from the methods of the asyncio client.

Each function takes a method of an asyncio class and returns a method for its handle, with the same parameters and the
same docstring. The new method calls the method of this name on the asyncio object of the handle.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from bk_core.blocking.loop_thread import BlockingIterator, Handle, LoopThread
from bk_core.client.reading.batch_iterator import BatchIterator

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
H = TypeVar("H")
A = TypeVar("A")


def waits_for(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Handle[S], P], T]:
    """Return a method that runs ``method`` on the thread of the client's loop, and waits for its result."""

    @wraps(method)
    def wait(self: Handle[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._thread.call(getattr(self._inner, method.__name__)(*args, **kwargs))
        return result

    return wait


def opens(
    handle: Callable[[A, LoopThread], H], method: Callable[Concatenate[S, P], Coroutine[Any, Any, A]]
) -> Callable[Concatenate[Handle[S], P], H]:
    """Return a method that waits for ``method``, and makes a blocking ``handle`` of what it returns."""

    @wraps(method)
    def open_handle(self: Handle[S], /, *args: P.args, **kwargs: P.kwargs) -> H:
        return handle(self._thread.call(getattr(self._inner, method.__name__)(*args, **kwargs)), self._thread)

    return open_handle


def iterates_over(
    method: Callable[Concatenate[S, P], BatchIterator[T]],
) -> Callable[Concatenate[Handle[S], P], BlockingIterator[T]]:
    """Return a method that returns the items of ``method``'s iterator in a blocking iterator."""

    @wraps(method)
    def iterate(self: Handle[S], /, *args: P.args, **kwargs: P.kwargs) -> BlockingIterator[T]:
        return BlockingIterator(self._thread, getattr(self._inner, method.__name__)(*args, **kwargs))

    signature = inspect.signature(method)
    returns = signature.return_annotation.replace("BatchIterator", "BlockingIterator")
    iterate.__dict__["__signature__"] = signature.replace(return_annotation=returns)
    return iterate
