# SPDX-License-Identifier: Apache-2.0
"""Protects forked children from gRPC, which does not survive a fork, because a child has gRPC's memory without its
threads.

If a gRPC channel was made before the fork, the child cannot use gRPC. Its calls fail or never end, and setting up gRPC
again ends the process by a signal. So the child may open no connection, and it never touches the parent's channels. It
neither closes nor frees them, because freeing a channel is a call into gRPC.
"""

from __future__ import annotations

import ctypes
import os
import weakref

from bk_core.errors import ForkedHandleError

WAY_OUT = "start the child with multiprocessing's spawn or forkserver, or fork before the parent connects"

_used = False  # whether this process used gRPC
_used_before_fork = False
_made: weakref.WeakSet[object] = weakref.WeakSet()
"""The objects of this process that hold gRPC objects and are still referred to."""


def check_can_connect() -> None:
    """Raise ForkedHandleError in a child or grandchild of a process that used gRPC before the fork."""
    if _used_before_fork:
        raise ForkedHandleError(
            "this process was forked after its parent had connected to bookies, and gRPC does not survive that",
            remedy=WAY_OUT,
        )


def holds_grpc(thing: object) -> None:
    """Register an object that will hold gRPC objects, so that a forked child never frees it. Raises ForkedHandleError
    as :func:`check_can_connect` does."""
    global _used
    check_can_connect()
    _used = True
    _made.add(thing)


def _in_child() -> None:
    global _used, _used_before_fork
    _used_before_fork, _used = _used_before_fork or _used, False
    if _used_before_fork:
        for thing in list(_made):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # one reference too many, so it is never freed


os.register_at_fork(after_in_child=_in_child)
