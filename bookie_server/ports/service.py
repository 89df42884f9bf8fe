# SPDX-License-Identifier: Apache-2.0
"""The interface of a bookie's services, and the list of them: one port for each lane."""

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
    """A service on one port. The port is bound when the service is made, so that a start notices a port in use before
    anything else. The service's streams are sinks of the engine (:class:`~bookie_server.engine.engine.StreamSink`)."""

    port: int

    def endpoint(self, host: str) -> Endpoint:
        """Return the address of this service that the bookie registers, for clients that reach it at ``host``."""
        ...

    async def start(self, engine: BookieEngine, facts: BookieFacts) -> None: ...
    async def stop(self, grace_s: float) -> None:
        """Take no more messages; all streams end within ``grace_s``. Also allowed if the service was not started."""
        ...


def port_tls(config: BookieConfig, store: MetadataStore) -> PortTls | None:
    """Return the TLS settings of a bookie's ports, or None without TLS. Raises InvalidArgumentError for files that
    cannot be used, and with tokens the errors of the store's ``instance_id``."""
    tls, admission = config.tls(), Admission(config.tls_identity, config.tls_clients)
    if tls is None:
        return None
    if config.token_keys_path is None:
        return PortTls(tls, admission)
    return PortTls(tls, admission, TokenKeys(config.token_keys_path), store.instance_id(), config.token_issuer)


def authority_of(config: BookieConfig, store: MetadataStore) -> Authority | None:
    """Return the authority over rights, or None in mode ``open``. Raises InvalidArgumentError for a file of keys that
    cannot be used, and the errors of the store's ``instance_id``."""
    if config.security == OPEN:
        return None
    assert config.grant_keys_path is not None
    return Authority(store, GrantKeys(config.grant_keys_path), store.instance_id())


def listen(config: BookieConfig, clients: Clients, tls: PortTls | None = None) -> Iterator[Service]:
    """Bind the port of each service of a bookie, and yield the services. The first one's port is part of a new bookie's
    id. Raises PortInUseError."""
    assert config.grpc_port is not None
    assert config.direct_port is not None
    auth = TokenAuth(tls) if tls is not None and tls.wants_tokens else None
    yield BookieRpcServer(config.listen_address, config.port, clients, auth, tls)
    yield DirectServer(config.listen_address, config.direct_port, clients, local=config.unix_socket, tls=tls)
    yield GrpcServer(config.listen_address, config.grpc_port, clients, tls)
