# SPDX-License-Identifier: Apache-2.0
"""How the writers of one process share what they may hold in memory (RULES P3). Pure.

A writer takes bytes before it queues them and gives them back once no bookie needs them any more. It is refused only
when taking would exceed the budget, and then by these rules:

- Who holds nothing may take what one entry needs, whatever the others hold: nobody stands still for others.
- Who holds less than an equal share may take what is free. A share is the budget by those who hold something and one
  more, so that whoever comes finds room.
- Who holds more may take what is free too, but leaves the last eighth of the budget to those below their share.

So one busy writer may use nearly all of it while the others are quiet. When others come they find the eighth, the busy
one gets nothing new while that is in use, and what it gives back is theirs, until all who want more hold equal shares.
No order of waiting is needed: below its share a writer can be refused only while another is above its own.
"""

from __future__ import annotations

from collections import OrderedDict

from bk_core.errors import InvalidArgumentError

LEFT_FOR_OTHERS = 8
"""One part in so many of the budget is not for those above their share."""
AT_ONCE = 64
"""One part in so many of what may be taken is given beyond what was asked for, so that not every entry has to ask."""
WOKEN_MAX = 16
"""Writers that are looked at when bytes come back. The others look again when entries of their own are confirmed."""


class SharedBudget:
    """Who holds how many bytes. Members are numbers that the caller chose; one that holds nothing is unknown here."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._held: dict[int, int] = {}
        self._waiting: OrderedDict[int, int] = OrderedDict()  # member → what it asked for

    def held(self, member: int) -> int:
        return self._held.get(member, 0)

    def resize(self, bytes_max: int) -> None:
        """From now on. Who holds more than the new budget allows keeps it, and gets nothing new."""
        if bytes_max <= 0:
            raise InvalidArgumentError("a budget must be positive", value=f"bytes_max={bytes_max}")
        self.bytes_max = bytes_max

    def take(self, member: int, wanted: int, *, spare: int = 0, waits: bool = False) -> int:
        """Bytes given to ``member``: 0, or ``wanted`` and up to ``spare`` more. ``waits``: give_back is to name it when
        asking again is worth while."""
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
        """What ``member`` may take now."""
        held, free = self.held(member), self.bytes_max - self.bytes
        share = self.bytes_max // (len(self._held) + (member not in self._held) + 1)
        return min(free, max(share - held, free - self.bytes_max // LEFT_FOR_OTHERS))

    def give_back(self, member: int, size: int) -> list[int]:
        """``member`` holds ``size`` bytes less; returns members that may get what they wait for now."""
        left = self.held(member) - size
        assert left >= 0, (member, size, left)
        self.bytes -= size
        if left:
            self._held[member] = left
        else:
            self._held.pop(member, None)
        return self._to_wake()

    def leave(self, member: int) -> list[int]:
        """``member`` is gone, with all that it held and waited for."""
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
