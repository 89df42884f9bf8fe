# SPDX-License-Identifier: Apache-2.0
"""The metadata store, in which ledgers, bookies and named logs are registered.

:func:`open_store` opens a store by its URI, and :mod:`bk_core.metadata.port` is its interface. Importing this package
loads no adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from bk_core.access.tls import Tls
    from bk_core.metadata.port import MetadataStore
    from bk_core.metadata.zookeeper.session import ZooKeeperTree

OPENERS: dict[str, Callable[[str, float, float], MetadataStore]] = {}
"""Functions that open stores of other packages, by the scheme of their URIs. The arguments are a URI, ``timeout_s`` and
``session_timeout_s`` of :func:`open_store`."""


class StoreSettings(TypedDict):
    """The keyword arguments of :func:`open_store`. The configuration of a client or of a bookie makes them."""

    timeout_s: float
    session_timeout_s: float
    tls: Tls | None
    auth_path: str
    acl: str


def open_store(
    uri: str,
    *,
    timeout_s: float = 10.0,
    session_timeout_s: float = 10.0,
    tls: Tls | None = None,
    auth_path: str = "",
    acl: str = "open",
) -> MetadataStore:
    """Open the metadata store at ``uri``, such as ``zk://host1:2181;host2:2181/ledgers``, or a URI with a scheme of
    OPENERS.

    ``timeout_s`` is the deadline for connecting and for each call. The session survives ``session_timeout_s`` without a
    connection. With ``tls`` the connection uses TLS. ``auth_path`` is a file with this process's credentials, and
    ``acl`` is the ACL of the nodes that it creates (docs/security.md §7). The root need not hold a cluster yet. The
    caller closes the store; a forked child cannot use it.

    Raises InvalidArgumentError for a URI of another store or a setting that cannot be used, MetadataUnavailableError if
    ZooKeeper does not answer in time, TlsError if TLS with a server fails, and MetadataAccessError if ZooKeeper refuses
    the credentials.
    """
    if (opener := OPENERS.get(uri.partition("://")[0])) is not None:
        return opener(uri, timeout_s, session_timeout_s)
    from bk_core.access.zookeeper_acl import FIRST_FOLDERS, parse_acl
    from bk_core.metadata.layout import parse_service_uri
    from bk_core.metadata.tree.store import TreeStore

    tree = open_tree(
        uri, timeout_s=timeout_s, session_timeout_s=session_timeout_s, tls=tls, auth_path=auth_path, acl=acl
    )
    return TreeStore(tree, parse_service_uri(uri), FIRST_FOLDERS if parse_acl(acl).members else ())


def open_tree(
    uri: str, *, timeout_s: float, session_timeout_s: float, tls: Tls | None, auth_path: str, acl: str
) -> ZooKeeperTree:
    """Open a session with ZooKeeper without a store on top, for commands that change ACLs. The arguments and errors are
    those of :func:`open_store`."""
    from bk_core.access.zookeeper_acl import parse_acl
    from bk_core.metadata.layout import parse_service_uri
    from bk_core.metadata.zookeeper.identity import ZooKeeperIdentity
    from bk_core.metadata.zookeeper.session import ZooKeeperTree

    parsed = parse_service_uri(uri)
    tree = ZooKeeperTree(
        parsed.hosts,
        timeout_s=timeout_s,
        session_timeout_s=session_timeout_s,
        tls=tls,
        identity=ZooKeeperIdentity(auth_path) if auth_path else None,
        acl=parse_acl(acl),
        root=parsed.root,
    )
    tree.connect()
    return tree
