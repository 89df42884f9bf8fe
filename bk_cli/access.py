# SPDX-License-Identifier: Apache-2.0
"""The one door of commands to a cluster: the options that name it, and all that is opened with them. Whatever connects,
to bookies, the metadata store or admin ports, is made here, so a new setting of the client or a secret is added in
``options.py`` and here alone (``tests/repo/test_one_door.py``).

What opening raises is a BookKeeperError, which :func:`bk_cli.main.run` turns into a line and an exit code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bk_cli import options

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper, LedgerReader
    from bk_core.blocking.logs import NamedLog
    from bk_core.client import BookKeeper as AsyncBookKeeper
    from bk_core.client import ClientConfig
    from bk_core.cluster.admin_ports import AdminPorts
    from bk_core.metadata.port import MetadataStore
    from bk_core.metadata.zookeeper.session import ZooKeeperTree
    from bk_core.transport.caller import Caller

METADATA_TIMEOUT_S = 8.0
"""Short enough to report a wrong address within ten seconds, the start of the interpreter included."""


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster, the password of its ledgers, and what the command line says of connections: the settings of TLS
    and of ZooKeeper. What is opened in a block is closed at its end."""

    uri: str
    password: bytes = field(default=b"", repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, **settings: Any) -> ClientConfig:
        """The settings of every client here; ``settings`` are those that a command decides itself."""
        from bk_core.client import ClientConfig

        return ClientConfig(**{"metadata_timeout_s": METADATA_TIMEOUT_S, **self.settings, **settings})

    async def connect(self, config: ClientConfig | None = None) -> AsyncBookKeeper:
        """A client on the loop that runs, for the caller to close; ``config`` is of :meth:`config`."""
        from bk_core import client

        return await client.connect(self.uri, config=config or self.config())

    def caller(self, instance_id: str, name: str) -> Caller:
        """The caller of commands that ask bookies themselves; ``name`` is the client's name in bookies' logs."""
        return replace(self.config().caller(instance_id), client=name)

    def admin_ports(self, timeout_s: float) -> AdminPorts:
        """For commands that ask admin ports; each answers within ``timeout_s``."""
        from bk_core.cluster.admin_ports import AdminPorts

        config = self.config()
        return AdminPorts(timeout_s, config.tls(), config.token())

    @contextmanager
    def client(self) -> Iterator[BookKeeper]:
        from bk_core import blocking

        with blocking.connect(self.uri, config=self.config()) as bookkeeper:
            yield bookkeeper

    @contextmanager
    def log(self, name: str) -> Iterator[NamedLog]:
        with self.client() as bookkeeper:
            yield bookkeeper.log(name, password=self.password)

    @contextmanager
    def reader(self, ledger_id: int, digest_type: str | None, *, recover: bool = False) -> Iterator[LedgerReader]:
        """A ledger to read; ``recover`` fences and closes it first."""
        from bk_core.model import DigestType

        digest = DigestType[digest_type.upper()] if digest_type else None
        with self.client() as bookkeeper:
            yield bookkeeper.open_ledger(ledger_id, recover=recover, password=self.password, digest_type=digest)

    @contextmanager
    def store(self) -> Iterator[MetadataStore]:
        """The metadata store alone. There may be no cluster in it yet."""
        with closing(self.open_store()) as store:
            yield store

    def open_store(self, timeout_s: float = METADATA_TIMEOUT_S) -> MetadataStore:
        """The same, for the caller to close. Each call of it takes ``timeout_s`` at most."""
        from bk_core.metadata import open_store

        return open_store(self.uri, **self.config(metadata_timeout_s=timeout_s).store_settings())

    @contextmanager
    def zookeeper(self) -> Iterator[ZooKeeperTree]:
        """The session with ZooKeeper below the metadata store, for commands that look at ACLs."""
        from bk_core.metadata import open_tree

        with closing(open_tree(self.uri, **self.config().store_settings())) as tree:
            yield tree


def access(*, password: bool = False, optional: str = "") -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Gives a command the options that name a cluster, as one argument ``access``. ``password``: also that of a ledger
    or log. ``optional``: what the command does with a cluster, if it can do without; None is given when none is
    named."""

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(command)
        def run(*, uri: str | None, password: bytes = b"", password_file: str = "", **given: object) -> object:
            password = options.password_of(password, password_file)
            settings = {name: value for name in options.SECURITY_SETTINGS if (value := given.pop(name))}
            return command(access=None if uri is None else Access(uri, password, settings), **given)

        found = options.security(run)
        found = options.metadata_service_uri(found, None, optional) if optional else options.metadata_service_uri(found)
        return options.ledger_password(found) if password else found

    return decorate
