# SPDX-License-Identifier: Apache-2.0
"""Shares the memory budget of a process fairly among its writers (P3). Pure.

A writer takes bytes before it queues entries, and gives them back once no bookie needs the entries. These rules decide
whether it may take bytes:

- A writer that holds nothing may take the bytes of one entry, even if the budget is used up, so that no writer ever
  stops.
- A writer that holds less than an equal share may take free bytes. The share is the budget divided by one more than the
  number of writers that hold bytes, so that there are free bytes for the next writer.
- A writer above its share may also take free bytes, but leaves the last eighth of the budget to writers below their
  share.

So one busy writer may use nearly all of the budget while the other writers are quiet. When the quiet writers start to
write, they find the last eighth free. While the eighth is in use, the busy writer gets no more bytes. The bytes that it
gives back go to the other writers, until all writers that want more hold equal shares. Waiting writers need no order,
because a writer below its share is refused only while another writer is above its share.
"""

from __future__ import annotations

from collections import OrderedDict

from bk_core.errors import InvalidArgumentError

LEFT_FOR_OTHERS = 8
"""One part in 8 of the budget is left to writers below their share."""
AT_ONCE = 64
"""A request may get up to one part in 64 of the bytes that its writer may take, even if it wants fewer bytes, so that
not every entry needs a request."""
WOKEN_MAX = 16
"""The maximum number of waiting writers that are checked when bytes are given back. Further writers try again when
their entries are confirmed."""


class SharedBudget:
    """A budget of ``bytes_max`` bytes, and the bytes of it that each member holds. A member is a writer. Its number is
    chosen by the caller."""

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
        """Change the budget. If it is now exceeded, members keep their bytes and get no more."""
        if bytes_max <= 0:
            raise InvalidArgumentError("a budget must be positive", value=f"bytes_max={bytes_max}")
        self.bytes_max = bytes_max

    def take(self, member: int, wanted: int, *, spare: int = 0, waits: bool = False) -> int:
        """Take ``wanted`` bytes, and up to ``spare`` more if the budget allows. Return the number of bytes taken, which
        is 0 if the request is refused. With ``waits``, a later ``give_back`` returns a refused member once it may try
        again."""
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
        """Return the number of bytes that ``member`` may take now by its share and the free bytes. It may be
        negative."""
        held, free = self.held(member), self.bytes_max - self.bytes
        share = self.bytes_max // (len(self._held) + (member not in self._held) + 1)
        return min(free, max(share - held, free - self.bytes_max // LEFT_FOR_OTHERS))

    def give_back(self, member: int, size: int) -> list[int]:
        """Give back ``size`` bytes of a member. Return the waiting members that may try again."""
        left = self.held(member) - size
        assert left >= 0, (member, size, left)
        self.bytes -= size
        if left:
            self._held[member] = left
        else:
            self._held.pop(member, None)
        return self._to_wake()

    def leave(self, member: int) -> list[int]:
        """Give back all bytes of ``member`` and end its waiting. Return the waiting members that may try again."""
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
