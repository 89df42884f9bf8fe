# SPDX-License-Identifier: Apache-2.0
"""The metadata store: where ledgers, bookies and named logs are registered.

:func:`open_store` opens one by URI; :mod:`bk_core.metadata.port` says what it can do. Importing this loads no adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from bk_core.metadata.port import MetadataStore
    from bk_core.tls import Tls

OPENERS: dict[str, Callable[[str, float, float], MetadataStore]] = {}
"""By the scheme of their URIs, functions that open stores which are not part of this package, from a URI and the two
times of :func:`open_store`."""


class StoreSettings(TypedDict):
    """The arguments of :func:`open_store`, as the settings of a client or of a bookie give them."""

    timeout_s: float
    session_timeout_s: float
    tls: Tls | None


def open_store(
    uri: str, *, timeout_s: float = 10.0, session_timeout_s: float = 10.0, tls: Tls | None = None
) -> MetadataStore:
    """Open the metadata store at ``uri``: ``zk://host1:2181;host2:2181/ledgers``, or one of OPENERS.

    ``timeout_s`` is the deadline of connecting and of each call; the session survives ``session_timeout_s`` without a
    connection. With ``tls`` it is one over TLS. Raises InvalidArgumentError for a URI of another store,
    MetadataUnavailableError when ZooKeeper does not answer in time, TlsError when no server can be spoken to over TLS.
    The root need not hold a cluster yet. The caller closes the store; a forked child cannot use it.
    """
    if (opener := OPENERS.get(uri.partition("://")[0])) is not None:
        return opener(uri, timeout_s, session_timeout_s)
    from bk_core.metadata.layout import parse_service_uri
    from bk_core.metadata.tree.store import TreeStore
    from bk_core.metadata.zookeeper.session import ZooKeeperTree

    parsed = parse_service_uri(uri)
    tree = ZooKeeperTree(parsed.hosts, timeout_s=timeout_s, session_timeout_s=session_timeout_s, tls=tls)
    tree.connect()
    return TreeStore(tree, parsed)
