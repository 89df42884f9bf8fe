# SPDX-License-Identifier: Apache-2.0
"""Detects that a handle is used after a fork (K4). The handle's sockets and threads belong to the parent process."""

from __future__ import annotations

import os

from bk_core.after_fork import WAY_OUT
from bk_core.errors import ForkedHandleError

generation = 0
"""The number of forks between the process that imported this module and this process."""


def _forked() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


class ForkGuard:
    """Remembers in which process a handle was made."""

    __slots__ = ("made_in",)

    def __init__(self) -> None:
        self.made_in = generation

    @property
    def forked(self) -> bool:
        return self.made_in != generation

    def check(self, what: str) -> None:
        """Raise ForkedHandleError in a child of the process that made the handle."""
        if self.made_in != generation:
            raise ForkedHandleError(f"{what} was made before this process was forked", remedy=WAY_OUT)
