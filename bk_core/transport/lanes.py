# SPDX-License-Identifier: Apache-2.0
"""Has a client's transport, with one link to each bookie, over the first of the caller's lanes that the bookie offers.

A bookie publishes an endpoint for each lane that it serves. A connection is made on first use, and again after it
broke. No connection, thread or loop is made at import or in ``__init__``, because Spark forks (K4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bk_core.errors import BookieUnreachableError, InsecureBookieError, Outcome, TlsError, TransportError
from bk_core.model import BOOKIE_RPC, DIRECT, GRPC, BookieId, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.port import Link
from bk_core.transport.whereabouts import At, LookUp, Whereabouts

Connect = Callable[[At, Caller, Whereabouts], Link]
"""A function that makes a link to a bookie at its registered address, without connecting or blocking. Until its first
connection succeeds, the link follows the bookie to other addresses."""


def _grpc() -> Connect:
    from bk_core.transport.lane.grpc import GrpcLink

    return GrpcLink


def _direct() -> Connect:
    from bk_core.memory.slots import Slots
    from bk_core.transport.lane.direct import DirectLink

    return partial(DirectLink, slots=Slots())


def _bookie_rpc() -> Connect:
    from bk_core.transport.bookie_rpc.link import BookieRpcLink
    from bk_core.transport.bookie_rpc.packing import Packer

    return partial(BookieRpcLink, packer=Packer())


LANES: Mapping[str, Callable[[], Connect]] = {DIRECT: _direct, GRPC: _grpc, BOOKIE_RPC: _bookie_rpc}
"""The lanes by the protocol of a bookie's endpoint, best first. The function of a lane imports it when the first link
uses it. It also makes the object that all links of a client share: buffers for received messages, or the packer of
requests."""


def endpoint_of(info: BookieServiceInfo, lanes: Mapping[str, object] = LANES) -> Endpoint | None:
    """Return the endpoint at which this client talks to a bookie, or None if the bookie offers none of its lanes."""
    return next((endpoint for lane in lanes if (endpoint := info.endpoint(lane))), None)


class LaneTransport:
    """The :class:`~bk_core.transport.port.Transport` of a client to the bookies of a cluster. It belongs to the loop on
    which it is first used.

    ``look_up`` finds bookies that have moved. Without it the addresses are those given to :meth:`update_bookies`. In a
    forked child of a process that used gRPC, a bookie that offers only gRPC causes ForkedHandleError
    (:mod:`bk_core.after_fork`).
    """

    def __init__(
        self,
        caller: Caller,
        lanes: Mapping[str, Callable[[], Connect]] = LANES,
        *,
        look_up: LookUp | None = None,
    ) -> None:
        self._caller = caller
        self._lanes = {lane: lanes[lane] for lane in caller.lanes or lanes if lane in lanes}
        if caller.tls is not None and not caller.tls.paths.verify_host:
            self._lanes.pop(GRPC, None)  # gRPC always compares the host's name
        self._refuses_apaches = caller.wallet is not None and not caller.mixed
        if self._refuses_apaches:
            self._lanes.pop(BOOKIE_RPC, None)  # this wire has no grants, and cannot say that a bookie is secure
        self._connects: dict[str, Connect] = {}
        self._whereabouts = Whereabouts(look_up, self._endpoint_of)
        self._links: dict[BookieId, Link] = {}
        self._closed = False

    def update_bookies(self, infos: Sequence[BookieServiceInfo]) -> None:
        self._whereabouts.update(infos)

    def link(self, bookie_id: BookieId) -> Link:
        if self._closed:
            raise TransportError("the transport is closed", value=f"bookie {bookie_id}")
        link = self._links.get(bookie_id)
        if link is None or link.broken:
            if link is not None:
                self._whereabouts.broke(bookie_id)
            info = self._whereabouts.get(bookie_id)
            endpoint = endpoint_of(info, self._lanes) if info else None
            if info is None or endpoint is None:
                raise _no_way_to(bookie_id, info, self._refuses_apaches)
            if self._is_plain_refused(endpoint):
                raise _plain_refused(bookie_id, endpoint)
            connect = self._connect(endpoint.protocol)
            link = self._links[bookie_id] = connect(At(info, endpoint), self._caller, self._whereabouts)
        return link

    def _endpoint_of(self, info: BookieServiceInfo) -> Endpoint | None:
        """Return the endpoint that this client may use, or None if there is none."""
        endpoint = endpoint_of(info, self._lanes)
        return None if endpoint is None or self._is_plain_refused(endpoint) else endpoint

    def _is_plain_refused(self, endpoint: Endpoint) -> bool:
        """Return whether this endpoint requires TLS and this client does not use it. Apache's bookies may accept
        clients without TLS even at an endpoint with TLS."""
        return self._caller.tls is None and endpoint.protocol != BOOKIE_RPC and endpoint.tls

    def _connect(self, lane: str) -> Connect:
        if lane not in self._connects:
            self._connects[lane] = self._lanes[lane]()
        return self._connects[lane]

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(link.close() for link in self._links.values()), self._whereabouts.close())


def _no_way_to(bookie_id: BookieId, info: BookieServiceInfo | None, refuses_apaches: bool) -> BookieUnreachableError:
    if info is not None and refuses_apaches and info.endpoint(BOOKIE_RPC) is not None:
        return InsecureBookieError(
            f"bookie {bookie_id} offers only Apache's wire, and this client must use secure bookies only",
            value="security=secure",
            remedy="give this client security=mixed, if the cluster has bookies of Apache's",
        )
    if info is None:
        what, value = f"no address of bookie {bookie_id} is known", "it is not registered"
        remedy = "start the bookie, or wait until it registers"
    else:
        what = f"bookie {bookie_id} offers no lane that this client knows"
        value = ", ".join(each.protocol for each in info.endpoints) or "it published no endpoint"
        remedy = "compare its version with this client's"
    return BookieUnreachableError(what, value=value, remedy=remedy, outcome=Outcome.NOT_APPLIED)


def _plain_refused(bookie_id: BookieId, endpoint: Endpoint) -> TlsError:
    return TlsError(
        f"bookie {bookie_id} accepts only clients that use TLS, and this client has no settings for TLS",
        value=f"{endpoint.protocol} at {endpoint.where}",
        remedy="give tls_ca_path (Spark: option tls.ca.path, bk: --tls-ca-path)",
        outcome=Outcome.NOT_APPLIED,
    )
