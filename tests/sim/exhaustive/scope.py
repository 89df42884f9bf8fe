# SPDX-License-Identifier: Apache-2.0
"""The limits of a search: the shape of the cluster, and a budget for each kind of trouble."""

from __future__ import annotations

from dataclasses import dataclass

BUDGETS = ("crash", "suspect", "cut", "timer", "timeout", "append", "close", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A small world. A number says how often something may happen on one path; 0 means never.

    ``crashable``: the bookies that may crash. If the write set is the whole ensemble, bookies differ only in name, so
    one of them stands for all. A bookie that cannot crash (any more) commits at once, because only a crash tells a
    later commit from a later answer.

    ``acks_at_once``: an ack that reaches its client is handled at once. More acks sooner is the stricter case of every
    check as long as no ensemble change voids acks. If one may, acks are steps.

    ``store_at_once``: calls to the store are carried out when they are made. If only one client uses the store, nothing
    can come between.
    """

    name: str
    says: str
    bookies: int = 3
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    entries: int = 1
    recoverers: int = 1
    attempts: int = 2
    window: int = 4  # entries that a recovery requests at once
    crashes: int = 0
    crashable: tuple[int, ...] = (2,)
    suspects: int = 0  # the writer's session breaks and its reconnect budget runs out
    suspectable: tuple[int, ...] = (0,)
    cuts: int = 0  # a session breaks
    timers: int = 0  # retry and budget timers that fire; others are free
    timeouts: int = 0  # a fence or a recovery read gets no answer in time
    closes: int = 0  # the writer may close
    lost_answers: int = 0  # lost answers of the metadata store
    delayed: bool = False  # the writer changes ensembles only when an ack quorum needs it
    degraded: bool = False  # without spares the writer goes on while it has ack quorums
    acks_at_once: bool = True
    store_at_once: bool = True
    states: int | None = None  # the number of states; None: not exhausted yet
    seconds: float = 60.0

    @property
    def budget(self) -> tuple[int, ...]:
        """The budgets in the order of BUDGETS. The first entry is appended before the search begins."""
        return (
            *(self.crashes, self.suspects, self.cuts, self.timers, self.timeouts),
            *(max(self.entries - 1, 0), self.closes, self.lost_answers),
        )
