# SPDX-License-Identifier: Apache-2.0
"""The messages under way in the network, as small numbers.

An *item* is the stream of one session with its messages in flight, a request or an answer. A world's network is the
sorted tuple of its items' numbers. The moves of an item, and what each leaves of it, are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bk_core.protocol import events as ev
from bookie_server.machine import events as bev
from tests.sim.exhaustive.canonical import fingerprint
from tests.sim.exhaustive.parts import LOST_ANSWER, NOBODY, WRITER, Suspect, answer_failed
from tests.sim.exhaustive.scope import BUDGETS, Scope

NOTHING = -1  # nothing is left of an item
FREE = -1  # a move that needs no budget
CUT, SUSPECT, TIMEOUT, LOST = (BUDGETS.index(name) for name in ("cut", "suspect", "timeout", "lost"))


@dataclass(frozen=True, slots=True)
class Channel:
    """The stream of one session: numbers of events on their way up, and words on their way down. ``seen``: the bookie
    knows the stream. ``gone``: the client does not listen any more, but its messages may still arrive."""

    bookie: int
    session: int
    client: int
    index: int
    up: tuple[int, ...] = ()
    down: tuple[Any, ...] = ()
    seen: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request on its way to a bookie."""

    bookie: int
    client: int
    event: int


@dataclass(frozen=True, slots=True)
class Tell:
    """An answer on its way to a client. ``store`` says that it comes from the metadata store."""

    client: int
    events: int
    store: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call on its way to the metadata store."""

    client: int
    events: int


Item = Channel | Ask | Tell | Call


class Move(NamedTuple):
    """A move: step ``slot`` with ``events``, and leave ``left`` of the item."""

    slot: int
    events: int
    left: int
    budget: int = FREE


class Items:
    """Numbers of events and items, and the moves that each item allows."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.first_bookie = 1 + scope.recoverers
        self.store_slot = self.first_bookie + scope.bookies
        self.events: list[tuple[Any, ...]] = []
        self._event_numbers: dict[bytes, int] = {}
        self.items: list[Item] = []
        self._item_numbers: dict[Item, int] = {}
        self.moves: list[tuple[Move, ...]] = []
        self.at_once: list[Move | None] = []  # the move that is made as soon as the item exists
        self.requests: list[tuple[int, int] | None] = []  # (client, request number) of asks and tells
        self.sessions: list[tuple[int, int] | None] = []  # (bookie, session) of channels

    # --- numbers ---

    def event(self, *events: Any) -> int:
        key = fingerprint(tuple((type(event).__name__, event) for event in events))
        number = self._event_numbers.get(key)
        if number is None:
            number = self._event_numbers[key] = len(self.events)
            self.events.append(events)
        return number

    def item(self, item: Item) -> int:
        """Return the number of an item, or NOTHING for one that can do nothing any more."""
        if isinstance(item, Channel) and item.gone and not any(self._is_frame(event) for event in item.up):
            return NOTHING
        number = self._item_numbers.get(item)
        if number is None:
            number = self._item_numbers[item] = len(self.items)
            self.items.append(item)
            self.moves.append(())
            self.at_once.append(None)
            self.requests.append(self._request_of(item))
            self.sessions.append((item.bookie, item.session) if isinstance(item, Channel) else None)
            moves = self._moves_of(item)
            self.at_once[number] = next((move for move in moves if self._is_at_once(item, move)), None)
            self.moves[number] = tuple(moves)
        return number

    def _is_frame(self, event: int) -> bool:
        return isinstance(self.events[event][0], bev.FramesArrived)

    def _request_of(self, item: Item) -> tuple[int, int] | None:
        match item:
            case Ask(_, client, event) if client != NOBODY:
                return client, self.events[event][0].request[1]
            case Tell(client, events):
                number = getattr(self.events[events][0], "request", None)
                return None if number is None else (client, number)
        return None

    # --- moves ---

    def _is_at_once(self, item: Item, move: Move) -> bool:
        """Return whether a move is made without a choice (see :class:`Scope`)."""
        if move.budget != FREE:
            return False
        match item:
            case Channel():
                acked = isinstance(self.events[move.events][0], ev.FramesAcked)
                return self.scope.acks_at_once and acked
            case Call(_, events):
                return self.scope.store_at_once or isinstance(self.events[events][0].call, ev.ReadBookies)
            case Tell(_, events, True):
                return self.scope.store_at_once or isinstance(self.events[events][0], ev.BookiesRead)
        return False

    def _moves_of(self, item: Item) -> list[Move]:
        match item:
            case Channel():
                return self._channel_moves(item)
            case Ask():
                return self._ask_moves(item)
            case Tell(client, events, store):
                moves = [Move(client - 1, events, NOTHING)]
                if store:
                    moves.append(Move(client - 1, self.event(LOST_ANSWER), NOTHING, LOST))
                elif (request := self._number_of(events)) is not None:
                    failed = self.event(answer_failed((0, request), "no answer in time"))
                    if failed != events:
                        moves.append(Move(client - 1, failed, NOTHING, TIMEOUT))
                return moves
            case Call(client, events):
                lost = Move(client - 1, self.event(LOST_ANSWER), NOTHING, LOST)
                return [Move(self.store_slot, events, NOTHING), lost]

    def _number_of(self, events: int) -> int | None:
        return getattr(self.events[events][0], "request", None)

    def _channel_moves(self, item: Channel) -> list[Move]:
        moves = []
        if item.up:
            count = 1 if self._is_frame(item.up[0]) else 2  # an attach arrives with its first frame
            if len(item.up) >= count:
                events = self.event(*(self.events[number][0] for number in item.up[:count]))
                left = self.item(replace(item, up=item.up[count:], seen=True))
                moves.append(Move(self.first_bookie + item.bookie, events, left))
        if item.gone:
            return moves
        client = item.client - 1
        if item.down:
            events, over = self._word(item, item.down[0])
            left = NOTHING if over else self.item(replace(item, down=item.down[1:]))
            moves.append(Move(client, events, left))
        left = self.item(replace(item, down=(), gone=True))
        broken = ev.SessionBroken(item.index, item.session, "cut")
        moves.append(Move(client, self.event(broken), left, CUT))
        if item.client == WRITER and item.bookie in self.scope.suspectable:
            moves.append(Move(client, self.event(Suspect(item.index, item.session)), left, SUSPECT))
        return moves

    def _word(self, item: Channel, word: Any) -> tuple[int, bool]:
        """Return the number of the event that the client gets, and whether the session is over."""
        match word:
            case ("acked", frames):
                return self.event(ev.FramesAcked(item.index, item.session, frames)), False
            case ("ended", frames, reason):
                return self.event(ev.SessionEnded(item.index, item.session, frames, reason)), True
            case _:
                return self.event(ev.SessionBroken(item.index, item.session, "the bookie died")), True

    def _ask_moves(self, item: Ask) -> list[Move]:
        moves = [Move(self.first_bookie + item.bookie, item.event, NOTHING)]
        if item.client != NOBODY:
            asked = self.events[item.event][0]
            failed = self.event(answer_failed(asked.request, "no answer in time"))
            orphan = self.item(Ask(item.bookie, NOBODY, self.event(replace(asked, request=(NOBODY, asked.request[1])))))
            moves.append(Move(item.client - 1, failed, orphan, TIMEOUT))
        return moves
