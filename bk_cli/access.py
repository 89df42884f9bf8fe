# SPDX-License-Identifier: Apache-2.0
"""Opens everything that a command needs of a cluster. It has the options that name a cluster, and it alone connects to
bookies, the metadata store and admin ports. So a new client setting or secret is added only in ``options.py`` and here
(``tests/repo/test_one_door.py``).

All errors of opening are BookKeeperErrors, which :func:`bk_cli.main.run` turns into a line and an exit code.
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
    from bk_core.blocking.topics import Topic
    from bk_core.client import BookKeeper as AsyncBookKeeper
    from bk_core.client import ClientConfig
    from bk_core.cluster.admin_ports import AdminPorts
    from bk_core.metadata.port import MetadataStore
    from bk_core.metadata.zookeeper.session import ZooKeeperTree
    from bk_core.pulsar.cluster import PulsarAccess
    from bk_core.transport.caller import Caller

METADATA_TIMEOUT_S = 8.0
"""The time, in seconds, that a call to the metadata store may take. It is short enough to report a wrong address within
ten seconds, the start of the interpreter included."""


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster, the password of its ledgers, and the command line's settings of TLS, of tokens and of ZooKeeper. The
    context managers close at the end of a block what they opened."""

    uri: str
    password: bytes = field(default=b"", repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, **settings: Any) -> ClientConfig:
        """Return the settings of a client. ``settings`` are those that the command itself decides."""
        from bk_core.client import ClientConfig

        return ClientConfig(**{"metadata_timeout_s": METADATA_TIMEOUT_S, **self.settings, **settings})

    async def connect(self, config: ClientConfig | None = None) -> AsyncBookKeeper:
        """Return a client on the running loop. The caller closes it. ``config`` comes from :meth:`config`."""
        from bk_core import client

        return await client.connect(self.uri, config=config or self.config())

    def caller(self, instance_id: str, name: str) -> Caller:
        """Return the connection settings for a command that calls bookies directly. ``name`` identifies the command in
        the bookies' logs."""
        return replace(self.config().caller(instance_id), client=name)

    def admin_ports(self, timeout_s: float) -> AdminPorts:
        """Return an object that calls admin ports. Each port has ``timeout_s`` for its answer."""
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
    def topic(self, name: str, pulsar: PulsarAccess) -> Iterator[Topic]:
        """Open a topic of Pulsar, with the password of the command line for its ledgers."""
        with (
            self.client() as bookkeeper,
            bookkeeper.topic(name, access=replace(pulsar, password=self.password)) as found,
        ):
            yield found

    @contextmanager
    def reader(self, ledger_id: int, digest_type: str | None, *, recover: bool = False) -> Iterator[LedgerReader]:
        """Open a ledger for reading. ``recover`` fences and closes it first."""
        from bk_core.model import DigestType

        digest = DigestType[digest_type.upper()] if digest_type else None
        with self.client() as bookkeeper:
            yield bookkeeper.open_ledger(ledger_id, recover=recover, password=self.password, digest_type=digest)

    @contextmanager
    def store(self) -> Iterator[MetadataStore]:
        """Open the metadata store alone. There may be no cluster in it yet."""
        with closing(self.open_store()) as store:
            yield store

    def open_store(self, timeout_s: float = METADATA_TIMEOUT_S) -> MetadataStore:
        """Open the metadata store; the caller closes it. Each call of the store takes at most ``timeout_s``."""
        from bk_core.metadata import open_store

        return open_store(self.uri, **self.config(metadata_timeout_s=timeout_s).store_settings())

    @contextmanager
    def zookeeper(self) -> Iterator[ZooKeeperTree]:
        """Open the ZooKeeper session below the metadata store, for commands that check ACLs."""
        from bk_core.metadata import open_tree

        with closing(open_tree(self.uri, **self.config().store_settings())) as tree:
            yield tree


def access(*, password: bool = False, optional: str = "") -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Give a command the options that name a cluster, and pass them as one argument ``access``. ``password`` adds the
    options for the password of a ledger or log. ``optional`` says what the command does with a cluster if it can do
    without one; ``access`` is None if none is named."""

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
