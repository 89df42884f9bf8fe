# SPDX-License-Identifier: Apache-2.0
"""gRPC does not survive a fork: the child has its memory without its threads. What a child must know about that.

Whether a gRPC channel was made before the fork decides. If so the child cannot use gRPC at all: calls of its own fail
or never end, and setting gRPC up again ends the process by a signal. So a new connection is refused at once, and what
the parent made is never touched: not closed, and not freed either, because freeing a channel is a call into gRPC.
"""

from __future__ import annotations

import ctypes
import os
import weakref

from bk_core.errors import ForkedHandleError

WAY_OUT = "start the child with multiprocessing's spawn or forkserver, or fork before the parent connects"

_used = False  # by this process
_used_before_fork = False
_made: weakref.WeakSet[object] = weakref.WeakSet()
"""What holds gRPC objects in this process, or held them and was not collected yet."""


def check_can_connect() -> None:
    """Raises ForkedHandleError in a child, or a child of a child, of a process that had used gRPC."""
    if _used_before_fork:
        raise ForkedHandleError(
            "this process was forked from one that had connected to bookies, and gRPC does not survive that",
            remedy=WAY_OUT,
        )


def holds_grpc(thing: object) -> None:
    """``thing`` will hold gRPC objects: in a forked child it must never be freed. Raises as check_can_connect."""
    global _used
    check_can_connect()
    _used = True
    _made.add(thing)


def _in_child() -> None:
    global _used, _used_before_fork
    _used_before_fork, _used = _used_before_fork or _used, False
    if _used_before_fork:
        for thing in list(_made):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # one reference too many: it outlives the interpreter


os.register_at_fork(after_in_child=_in_child)
