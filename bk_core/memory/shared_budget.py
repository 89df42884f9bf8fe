# SPDX-License-Identifier: Apache-2.0
"""Shares the memory budget of a process fairly among its writers (P3). Pure.

A writer takes bytes before it queues entries and gives them back once no bookie needs them. It is refused only if
taking would exceed the budget, by these rules:

- A writer that holds nothing may take what one entry needs, whatever the others hold, so that no writer ever stops.
- A writer that holds less than an equal share may take free bytes. The share is the budget divided by one more than the
  number of writers that hold bytes, so that the next writer finds room.
- A writer above its share may take free bytes too, but leaves the last eighth of the budget to those below their share.

So one busy writer may use nearly all of the budget while the others are quiet. When the others start to write, they
find the last eighth free. While the eighth is in use, the busy writer gets nothing new, and the bytes that it gives
back go to the others, until all that want more hold equal shares. Waiting writers need no order: a writer below its
share is refused only while another one is above its share.
"""

from __future__ import annotations

from collections import OrderedDict

from bk_core.errors import InvalidArgumentError

LEFT_FOR_OTHERS = 8
"""The part of the budget, one eighth, that is not given to writers above their share."""
AT_ONCE = 64
"""A request may get up to 1/64 of the writer's room even if it asks for less, so that not every entry needs a
request."""
WOKEN_MAX = 16
"""Limits the waiting writers that are checked when bytes come back. The rest try again when their own entries are
confirmed."""


class SharedBudget:
    """The bytes that each member holds. Members are numbers that the caller chooses."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._held: dict[int, int] = {}
        self._waiting: OrderedDict[int, int] = OrderedDict()  # member → bytes it wants

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def held(self, member: int) -> int:
        return self._held.get(member, 0)

    def resize(self, bytes_max: int) -> None:
        """Change the budget. Members that hold more than it allows keep their bytes and get nothing new."""
        if bytes_max <= 0:
            raise InvalidArgumentError("a budget must be positive", value=f"bytes_max={bytes_max}")
        self.bytes_max = bytes_max

    def take(self, member: int, wanted: int, *, spare: int = 0, waits: bool = False) -> int:
        """Take ``wanted`` bytes, and up to ``spare`` more if there is room. Return the bytes taken, 0 if refused. With
        ``waits``, a later ``give_back`` names a refused member when it may try again."""
        self._waiting.pop(member, None)
        room = self._room(member)
        if wanted <= room:
            given = max(wanted, min(wanted + spare, room // AT_ONCE))
        elif member not in self._held:
            given = wanted
        else:
            if waits:
                self._waiting[member] = wanted
            return 0
        self._held[member] = self.held(member) + given
        self.bytes += given
        return given

    def _room(self, member: int) -> int:
        """Return how many bytes ``member`` may take now."""
        held, free = self.held(member), self.bytes_max - self.bytes
        share = self.bytes_max // (len(self._held) + (member not in self._held) + 1)
        return min(free, max(share - held, free - self.bytes_max // LEFT_FOR_OTHERS))

    def give_back(self, member: int, size: int) -> list[int]:
        """Give back ``size`` bytes. Return the waiting members that may try again."""
        left = self.held(member) - size
        assert left >= 0, (member, size, left)
        self.bytes -= size
        if left:
            self._held[member] = left
        else:
            self._held.pop(member, None)
        return self._to_wake()

    def leave(self, member: int) -> list[int]:
        """Give back all bytes of ``member`` and end its waiting. Return the same as :meth:`give_back`."""
        self._waiting.pop(member, None)
        return self.give_back(member, self.held(member))

    def _to_wake(self) -> list[int]:
        woken: list[int] = []
        promised = 0
        for _ in range(min(len(self._waiting), WOKEN_MAX)):
            member, wanted = next(iter(self._waiting.items()))
            if wanted + promised <= self._room(member):
                del self._waiting[member]
                woken.append(member)
                promised += wanted
            else:
                self._waiting.move_to_end(member)
        return woken
