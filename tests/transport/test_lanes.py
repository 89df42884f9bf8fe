# SPDX-License-Identifier: Apache-2.0
"""Over which lane a client talks to a bookie, and when it connects again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bk_core.client import ClientConfig
from bk_core.errors import BookieUnreachableError, InvalidArgumentError, TransportError
from bk_core.model import BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LANES, LaneTransport, endpoint_of
from bk_core.transport.port import BookieInfo
from bk_core.transport.whereabouts import At, Whereabouts

HTTP, GRPC, OTHER = (Endpoint(name, "h", port, name) for port, name in enumerate(("http", "grpc", "other")))


class NotedLink:
    """A link of a lane that exists only here. It notes what it is told."""

    def __init__(self, lane: str, at: At, caller: Caller, whereabouts: Whereabouts) -> None:
        self.lane, self.info, self.endpoint, self.caller = lane, at.info, at.endpoint, caller
        self.broken: TransportError | None = None
        self.closed = False

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        return BookieInfo(0, 0, version=f"{self.lane} at {self.endpoint.port} for {self.caller.client}")

    async def close(self) -> None:
        self.closed = True


def transport_of(*lanes: str) -> tuple[LaneTransport, list[NotedLink]]:
    made: list[NotedLink] = []

    def lane_called(lane: str) -> Callable[[], Any]:
        def connect(*how: Any) -> NotedLink:
            made.append(NotedLink(lane, *how))
            return made[-1]

        return lambda: connect

    return LaneTransport(Caller("c", client="me"), {lane: lane_called(lane) for lane in lanes}), made


async def test_the_first_lane_of_the_client_that_a_bookie_offers_is_taken() -> None:
    transport, made = transport_of("other", "grpc")
    transport.update_bookies([BookieServiceInfo("old", (HTTP, GRPC)), BookieServiceInfo("new", (GRPC, OTHER))])
    said = [(await transport.link(name).bookie_info(deadline_s=1)).version for name in ("old", "new", "new")]
    assert said == ["grpc at 1 for me", "other at 2 for me", "other at 2 for me"]
    assert [link.info.bookie_id for link in made] == ["old", "new"], "one connection to each"
    await transport.close()
    assert all(link.closed for link in made)


async def test_a_bookie_without_a_lane_that_is_known_says_which_it_has() -> None:
    transport, made = transport_of("other")
    transport.update_bookies([BookieServiceInfo("b", (HTTP, GRPC)), BookieServiceInfo("mute")])
    with pytest.raises(BookieUnreachableError, match="no lane that this client knows; http, grpc;"):
        await transport.link("b").bookie_info(deadline_s=1)
    with pytest.raises(BookieUnreachableError, match="it published no endpoint"):
        transport.link("mute").read(1, 0, 0, bytes_max=1, deadline_s=1)
    assert not made


async def test_a_broken_link_is_replaced_on_the_next_call_by_one_to_the_newest_address() -> None:
    transport, made = transport_of("grpc", "other")
    transport.update_bookies([BookieServiceInfo("b", (GRPC,))])
    await transport.link("b").bookie_info(deadline_s=1)
    transport.update_bookies([BookieServiceInfo("b", (OTHER,))])
    assert (await transport.link("b").bookie_info(deadline_s=1)).version.startswith("grpc")
    made[0].broken = TransportError("cut")
    assert (await transport.link("b").bookie_info(deadline_s=1)).version.startswith("other")


def test_every_lane_of_the_table_can_be_loaded_and_is_asked_for_by_its_endpoint() -> None:
    for lane, load in LANES.items():
        assert callable(load())
        assert endpoint_of(BookieServiceInfo("b", (HTTP, Endpoint("x", "h", 1, lane)))) == Endpoint("x", "h", 1, lane)
    assert endpoint_of(BookieServiceInfo("b", (HTTP,))) is None


async def test_a_client_names_its_lanes_best_first_and_others_are_not_used() -> None:
    assert ClientConfig().caller("c").lanes == tuple(LANES)
    assert ClientConfig(lanes="grpc, direct").caller("c").lanes == ("grpc", "direct")
    for wrong in ("", "grpc,", "udp", "grpc,grpc"):
        with pytest.raises(InvalidArgumentError, match="each lane at most once"):
            ClientConfig(lanes=wrong)

    transport, made = transport_of("other", "grpc")
    chosen = LaneTransport(Caller("c", lanes=("grpc",)), {lane: transport._lanes[lane] for lane in ("other", "grpc")})
    chosen.update_bookies([BookieServiceInfo("b", (OTHER, GRPC))])
    await chosen.link("b").bookie_info(deadline_s=1)
    assert [link.lane for link in made] == ["grpc"]
