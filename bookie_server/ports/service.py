# SPDX-License-Identifier: Apache-2.0
"""What a service of a bookie owes, and the list of the services: one port for each lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from bk_core.access.roles import OPEN
from bk_core.access.tls import Admission
from bk_core.metadata.port import MetadataStore
from bk_core.model import Endpoint
from bookie_server.config import BookieConfig
from bookie_server.engine.engine import BookieEngine
from bookie_server.ports.access.authority import Authority, GrantKeys
from bookie_server.ports.access.tls import PortTls
from bookie_server.ports.access.tokens import TokenKeys
from bookie_server.ports.bookie_rpc.auth import TokenAuth
from bookie_server.ports.bookie_rpc.server import BookieRpcServer
from bookie_server.ports.bounds.clients import Clients
from bookie_server.ports.lane.direct import DirectServer
from bookie_server.ports.lane.grpc import GrpcServer
from bookie_server.ports.lane.streams import BookieFacts


class Service(Protocol):
    """A port that is bound when the service is made, so that a port in use is noticed first of all. Its streams are
    sinks of the engine (:class:`~bookie_server.engine.engine.StreamSink`)."""

    port: int

    def endpoint(self, host: str) -> Endpoint:
        """What the bookie publishes of this service, if clients reach it at ``host``."""
        ...

    async def start(self, engine: BookieEngine, facts: BookieFacts) -> None: ...
    async def stop(self, grace_s: float) -> None:
        """Take no more messages; streams end within ``grace_s``. It may not have been started."""
        ...


def port_tls(config: BookieConfig, store: MetadataStore) -> PortTls | None:
    """What the ports of a bookie need for TLS; None if they are plain. Raises InvalidArgumentError for files that
    cannot be used, and with tokens what ``instance_id`` of the store raises."""
    tls, admission = config.tls(), Admission(config.tls_identity, config.tls_clients)
    if tls is None:
        return None
    if config.token_keys_path is None:
        return PortTls(tls, admission)
    return PortTls(tls, admission, TokenKeys(config.token_keys_path), store.instance_id(), config.token_issuer)


def authority_of(config: BookieConfig, store: MetadataStore) -> Authority | None:
    """The authority over rights in mode ``secure``; None in mode ``open``. Raises InvalidArgumentError for a file of
    keys that cannot be used, and what ``instance_id`` of the store raises."""
    if config.security == OPEN:
        return None
    assert config.grant_keys_path is not None
    return Authority(store, GrantKeys(config.grant_keys_path), store.instance_id())


def listen(config: BookieConfig, clients: Clients, tls: PortTls | None = None) -> Iterator[Service]:
    """Bind the port of each service of a bookie, one after the other; the first one's is part of a new bookie's id.
    Raises PortInUseError."""
    assert config.grpc_port is not None
    assert config.direct_port is not None
    auth = TokenAuth(tls) if tls is not None and tls.wants_tokens else None
    yield BookieRpcServer(config.listen_address, config.port, clients, auth, tls)
    yield DirectServer(config.listen_address, config.direct_port, clients, local=config.unix_socket, tls=tls)
    yield GrpcServer(config.listen_address, config.grpc_port, clients, tls)
