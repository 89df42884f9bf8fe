# SPDX-License-Identifier: Apache-2.0
"""Chooses from a seed what happens to which bookie when, and keeps account of copies that may be gone. Pure.

An entry is acknowledged once ``ACK_QUORUM`` bookies have it. So fewer copies than that may be destroyed until
auto-recovery has made all copies again. :class:`Account` refuses a disturbance after which a loss would not be the
product's fault. Copies count as gone until the trial itself has seen that everything is healed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

BOOKIES = 6
ACK_QUORUM = 2
SHAPES = ((3, 3, 2), (4, 3, 2), (3, 2, 2), (4, 4, 2))
"""E, Qw and Qa of the ledgers. The account relies on Qa."""
AWAY_MAX = BOOKIES - max(e for e, _, _ in SHAPES)
"""The maximum number of bookies that may be away at once. With more of them away no writer could go on."""
COMPANION = 0.6
"""The share of turns in which a second bookie is disturbed too."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of disturbance. ``destroys``: a copy may be gone until it is healed. ``absent``: the bookie does not serve
    meanwhile. ``apache``: it also happens to Apache's bookies. ``whole``: it happens to all bookies, one by one.
    ``companion``: it may accompany another disturbance."""

    name: str
    destroys: bool = False
    absent: bool = True
    apache: bool = False
    whole: bool = False
    companion: bool = False
    lasts_s: tuple[float, float] = (1.0, 3.0)


KILL = Kind("kill", apache=True, companion=True, lasts_s=(0.2, 12.0))
FREEZE = Kind("freeze", apache=True, companion=True, lasts_s=(1.0, 8.0))
PARTITION = Kind("partition", apache=True, companion=True, lasts_s=(1.0, 14.0))
CLOCK = Kind("clock", absent=False, companion=True, lasts_s=(3.0, 10.0))
FILL = Kind("fill", absent=False, lasts_s=(1.0, 5.0))
WIPE = Kind("wipe", destroys=True, lasts_s=(0.2, 10.0))
REPLACE = Kind("replace", destroys=True)
CORRUPT = Kind("corrupt", destroys=True, absent=False)
CORRUPT_STOPPED = Kind("corrupt stopped", destroys=True)
DRAIN = Kind("drain", destroys=True)
ROLLING = Kind("rolling", apache=True, whole=True)

KINDS = (KILL, FREEZE, PARTITION, CLOCK, FILL, WIPE, REPLACE, CORRUPT, CORRUPT_STOPPED, DRAIN, ROLLING)
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a bookie. ``small`` says that its disk can be filled."""

    number: int
    ours: bool = True
    small: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """A disturbance of the bookie at ``slot``. It begins ``after_s`` after the turn, and lasts ``lasts_s``. ``chance``
    decides its details."""

    kind: Kind
    slot: int
    after_s: float
    lasts_s: float
    chance: float

    def __str__(self) -> str:
        return self.kind.name if self.kind.whole else f"{self.kind.name} {self.slot}"


class TooManyGoneError(Exception):
    """Raised for a disturbance after which a loss would not be the product's fault."""


@dataclass(slots=True)
class Account:
    """The bookies whose copies may be gone, and those that do not serve."""

    gone: set[int] = field(default_factory=set)
    away: set[int] = field(default_factory=set)

    def begin(self, act: Act) -> None:
        """Note the begin of a disturbance. Raises TooManyGoneError, and notes nothing, if it is not allowed."""
        gone = {*self.gone, act.slot} if act.kind.destroys else self.gone
        away = {*self.away, act.slot} if act.kind.absent or act.kind.destroys else self.away
        if act.slot in self.gone | self.away or (act.kind.whole and (self.gone or self.away)):
            raise TooManyGoneError(f"{act}: {sorted(self.gone | self.away)} are disturbed already")
        if len(gone) > ACK_QUORUM - 1 or len(away) > AWAY_MAX:
            raise TooManyGoneError(f"{act}: gone {sorted(gone)}, away {sorted(away)}")
        self.gone, self.away = set(gone), set(away)

    def back(self, act: Act) -> None:
        """Note that the bookie serves again. Its copies may still be gone."""
        self.away.discard(act.slot)

    def healed(self) -> None:
        """Note that every copy of every ledger was seen to be complete."""
        if self.away:
            raise TooManyGoneError(f"{sorted(self.away)} do not serve yet")
        self.gone.clear()


@dataclass(frozen=True, slots=True)
class Turn:
    """The main disturbance of a round."""

    number: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.number} ({self.kind.name})"


def deal(seed: int, number: int, kinds: Sequence[Kind]) -> Turn:
    """Return the turn with this number. Every kind comes once before any kind comes again."""
    deck = random.Random(f"{seed}/deck/{number // len(kinds)}").sample(kinds, len(kinds))
    return Turn(number, deck[number % len(kinds)])


def turn_of(rng: random.Random, kind: Kind, slots: Sequence[Slot], companions: Collection[Kind]) -> list[Act]:
    """Return the disturbances of one turn: ``kind``, and often at about the same time one of another bookie that
    destroys nothing."""
    main = _act(rng, kind, rng.choice([slot for slot in slots if _fits(kind, slot)]), 0.0)
    others = [slot for slot in slots if slot.number != main.slot]
    if kind.whole or rng.random() >= COMPANION or not companions:
        return [main]
    second = rng.choice(sorted(companions, key=lambda each: each.name))
    fitting = [slot for slot in others if _fits(second, slot)]
    return [main, _act(rng, second, rng.choice(fitting), rng.uniform(0.0, 4.0))] if fitting else [main]


def _act(rng: random.Random, kind: Kind, slot: Slot, after_s: float) -> Act:
    return Act(kind, slot.number, after_s, rng.uniform(*kind.lasts_s), rng.random())


def _fits(kind: Kind, slot: Slot) -> bool:
    return (slot.ours or kind.apache) and (slot.small or kind is not FILL)
