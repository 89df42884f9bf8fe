# SPDX-License-Identifier: Apache-2.0
"""What leaves a part, carried out on the network of a world (a sorted list of items' numbers)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.protocol import events as ev
from tests.sim.exhaustive.items import NOTHING, Ask, Call, Channel, Items, Tell
from tests.sim.exhaustive.parts import Emission


class PostOffice:
    """``is_over`` says whether a client's state listens no more."""

    def __init__(self, items: Items, is_over: Callable[[int, int], bool]) -> None:
        self.items, self.is_over = items, is_over
        self._ways: dict[str, Callable[..., None]] = {
            "open": self._open,
            "ask": self._ask,
            "tell": self._tell,
            "store": self._call,
            "up": self._up,
            "down": self._down,
            "gone": self._gone,
            "crash": self._crashed,
            "cancel": self._cancel,
            "over": self._client_over,
        }

    def send(self, emissions: tuple[Emission, ...], slots: list[int], net: list[int]) -> None:
        """Put on the network, or take from it, what a part's step says."""
        for emission in emissions:
            self._ways[emission[0]](slots, net, *emission[1:])

    def _add(self, net: list[int], item: Any) -> None:
        number = self.items.item(item)
        if number != NOTHING:
            insort(net, number)

    def _open(self, _: list[int], net: list[int], bookie: int, session: int, client: int, index: int) -> None:
        self._add(net, Channel(bookie, session, client, index))

    def _ask(self, _: list[int], net: list[int], bookie: int, client: int, event: Any) -> None:
        self._add(net, Ask(bookie, client, self.items.event(event)))

    def _tell(self, slots: list[int], net: list[int], client: int, events: tuple[Any, ...]) -> None:
        if not self.is_over(client - 1, slots[client - 1]):
            store = isinstance(events[0], (ev.MetadataRead, ev.MetadataWritten, ev.MetadataConflicted, ev.BookiesRead))
            self._add(net, Tell(client, self.items.event(*events), store))

    def _call(self, _: list[int], net: list[int], client: int, call: Any) -> None:
        self._add(net, Call(client, self.items.event(call)))

    def _change(self, net: list[int], wanted: Callable[[Channel], bool], **changes: Any) -> bool:
        """Change the channels that are wanted; whether there were any."""
        found = False
        for number in list(net):
            item = self.items.items[number]
            if isinstance(item, Channel) and wanted(item):
                net.remove(number)
                self._add(net, replace(item, **{name: change(item) for name, change in changes.items()}))
                found = True
        return found

    def _up(self, _: list[int], net: list[int], bookie: int, session: int, event: Any) -> None:
        number = self.items.event(event)
        known = self._change(net, lambda c: c.bookie == bookie and c.session == session, up=lambda c: (*c.up, number))
        assert known, f"no session {session} to bookie {bookie}"

    def _down(self, _: list[int], net: list[int], bookie: int, session: int, word: Any) -> None:
        self._change(
            net,
            lambda c: c.bookie == bookie and c.session == session and not c.gone,
            down=lambda c: (*c.down, word),
        )

    def _gone(self, _: list[int], net: list[int], bookie: int, session: int) -> None:
        self._change(
            net,
            lambda c: c.bookie == bookie and c.session == session,
            gone=lambda _: True,
            down=lambda _: (),
        )

    def _crashed(self, _: list[int], net: list[int], bookie: int) -> None:
        """Streams that the bookie knew are broken; others connect after its restart."""
        self._change(
            net,
            lambda c: c.bookie == bookie and c.seen,
            up=lambda _: (),
            down=lambda c: () if c.gone else (*c.down, "broken"),
        )

    def _cancel(self, _: list[int], net: list[int], client: int, request: tuple[int, int]) -> None:
        """A request that nobody waits for is lost: at most it would fence later than never."""
        net[:] = [number for number in net if self.items.requests[number] != (client, request[1])]

    def _client_over(self, _: list[int], net: list[int], client: int) -> None:
        """Nobody listens any more; frames that were sent may still arrive."""
        self._change(net, lambda c: c.client == client, gone=lambda _: True, down=lambda _: ())
        kept = [self.items.items[number] for number in net]
        net[:] = [
            number for number, item in zip(net, kept, strict=True) if isinstance(item, Channel) or item.client != client
        ]
