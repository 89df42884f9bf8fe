# SPDX-License-Identifier: Apache-2.0
"""Carries out what leaves a part, on the network of a world (a sorted list of items' numbers).

Emissions are turned into numbers once, when a step is first taken. The next form of an item is remembered too.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.protocol import events as ev
from tests.sim.exhaustive.items import NOTHING, Ask, Call, Channel, Items, Tell
from tests.sim.exhaustive.parts import Emission

STORE_ANSWERS = (ev.MetadataRead, ev.MetadataWritten, ev.MetadataConflicted, ev.BookiesRead)

Parcel = tuple[Callable[..., None], tuple[Any, ...]]


class PostOffice:
    """Carries out emissions. ``is_over`` says whether a client's state listens no more."""

    def __init__(self, items: Items, is_over: Callable[[int, int], bool]) -> None:
        self.items, self.is_over = items, is_over
        self._became: dict[tuple[int, str, Any], int] = {}

    def packed(self, emissions: list[Emission]) -> tuple[Parcel, ...]:
        """Emissions in the form that :meth:`send` takes."""
        return tuple(self._pack(*emission) for emission in emissions)

    def _pack(self, kind: str, *rest: Any) -> Parcel:
        items = self.items
        match kind, rest:
            case "open", (bookie, session, client, index):
                return self._put, (items.item(Channel(bookie, session, client, index)),)
            case "ask", (bookie, client, event):
                return self._put, (items.item(Ask(bookie, client, items.event(event))),)
            case "store", (client, call):
                return self._put, (items.item(Call(client, items.event(call))),)
            case "tell", (client, events):
                told = Tell(client, items.event(*events), isinstance(events[0], STORE_ANSWERS))
                return self._tell, (client - 1, items.item(told))
            case "up", (bookie, session, event):
                return self._session, (bookie, session, "up", items.event(event))
            case "cancel", (client, (_, number)):
                return self._cancel, ((client, number),)
        return {
            "down": lambda bookie, session, word: (self._session, (bookie, session, "down", word)),
            "gone": lambda bookie, session: (self._session, (bookie, session, "gone", None)),
            "crash": lambda bookie: (self._crash, (bookie,)),
            "over": lambda client: (self._over, (client,)),
        }[kind](*rest)

    def send(self, parcels: tuple[Parcel, ...], slots: list[int], net: list[int]) -> None:
        """Add to the network, or remove from it, what a part's step says."""
        for way, details in parcels:
            way(slots, net, *details)

    # --- ways ---

    def _put(self, _: list[int], net: list[int], number: int) -> None:
        if number != NOTHING:
            insort(net, number)

    def _tell(self, slots: list[int], net: list[int], client: int, number: int) -> None:
        if not self.is_over(client, slots[client]):
            insort(net, number)

    def _session(self, _: list[int], net: list[int], bookie: int, session: int, what: str, detail: Any) -> None:
        """Apply an emission to a session. Do nothing if its stream is forgotten."""
        for at, number in enumerate(net):
            if self.items.sessions[number] == (bookie, session):
                self._change(net, at, number, what, detail)
                return
        assert what != "up", f"no session {session} to bookie {bookie}"

    def _change(self, net: list[int], at: int, number: int, what: str, detail: Any) -> None:
        key = (number, what, detail)
        after = self._became.get(key)
        if after is None:
            after = self._became[key] = self.items.item(_changed(self.items.items[number], what, detail))
        if after != number:
            del net[at]
            if after != NOTHING:
                insort(net, after)

    def _all(self, net: list[int], what: str, detail: int) -> None:
        for number in list(net):
            if self.items.sessions[number] is not None:
                self._change(net, net.index(number), number, what, detail)

    def _crash(self, _: list[int], net: list[int], bookie: int) -> None:
        self._all(net, "crash", bookie)

    def _cancel(self, _: list[int], net: list[int], request: tuple[int, int]) -> None:
        """Lose a request that no client waits for. If it came late, it could only fence."""
        net[:] = [number for number in net if self.items.requests[number] != request]

    def _over(self, _: list[int], net: list[int], client: int) -> None:
        """End a client. It listens no more, but frames that it sent may still arrive."""
        self._all(net, "over", client)
        items = self.items
        net[:] = [n for n in net if items.sessions[n] is not None or getattr(items.items[n], "client", None) != client]


def _changed(channel: Any, what: str, detail: Any) -> Channel:
    assert isinstance(channel, Channel)
    match what:
        case "up":
            return replace(channel, up=(*channel.up, detail))
        case "down":
            return channel if channel.gone else replace(channel, down=(*channel.down, detail))
        case "gone":
            return replace(channel, gone=True, down=())
        case "over" if channel.client == detail:
            return replace(channel, gone=True, down=())
        case "crash" if channel.bookie == detail and channel.seen:
            # Streams that the bookie knew are broken. Others connect after its restart.
            return replace(channel, up=(), down=() if channel.gone else (*channel.down, "broken"))
    return channel
