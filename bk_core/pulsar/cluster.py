# SPDX-License-Identifier: Apache-2.0
"""The metadata and the broker of a cluster of Apache Pulsar, for reads of its topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from bk_core.client.bookkeeper import BookKeeper
from bk_core.errors import InvalidArgumentError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.pulsar.lookup.broker import BrokerAdmin
from bk_core.pulsar.lookup.nodes import PulsarNodes, parse_metadata_uri
from bk_core.pulsar.lookup.settled_end import SettledEnd
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.plan import TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.offloaded.access import BY_THE_RECORD, OffloadStorage
from bk_core.pulsar.offloaded.source import OffloadedReads
from bk_core.pulsar.planning import PASSWORD, PartitionPlanner

if TYPE_CHECKING:
    from bk_core.pulsar.reading import LedgerReads, Moved, PartitionReading

QuorumUse: TypeAlias = Literal["settle", "follow", "ignore"]
"""The use of ``quorum_settle_ms`` by a planner. ``settle`` is for a read, which waits for the quorum's end before it
plans. ``follow`` is for a tail or a stream, which looks for that end in the background. ``ignore`` does not look for
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarAccess:
    """The addresses and secrets with which topics are read.

    ``metadata_uri`` is the place of Pulsar's metadata (``zk://host:2181/path``), if it is not the ZooKeeper of the
    ledgers. ``admin_url`` is the admin port of a broker or proxy (``http://host:8080``); reads ask it where an open
    topic ends. ``token_path`` is a file with the token for these requests, and each request reads it anew. ``ca_path``
    is a file with the certificates to trust. ``password`` is the password of the ledgers, if the brokers are configured
    with one. ``private_keys`` has private keys in PEM by the key names that producers use; ``*`` stands for all names.

    With ``quorum_settle_ms``, reads also show entries above the LAC of an open ledger if an ack quorum of bookies
    returns them twice, ``quorum_settle_ms`` milliseconds apart (``readMode=quorum``). Such an entry may vanish if the
    broker was paused for longer; docs/pulsar.md says who should not use it.

    ``offload`` says how ledgers in object storage are read.
    """

    metadata_uri: str = ""
    admin_url: str = ""
    token_path: str = ""
    ca_path: str = ""
    password: bytes = field(default=PASSWORD, repr=False)
    quorum_settle_ms: float | None = None
    private_keys: Mapping[str, bytes] | None = field(default=None, repr=False)
    offload: OffloadStorage = BY_THE_RECORD


class PulsarCluster:
    """Pulsar's metadata and its broker, for reads of topics. Making it reads nothing. It is an async context manager
    that closes it. Raises InvalidArgumentError for an address or a file that cannot be used."""

    def __init__(self, bookkeeper: BookKeeper, access: PulsarAccess) -> None:
        settle_ms = access.quorum_settle_ms
        if settle_ms is not None and settle_ms < 0:
            raise InvalidArgumentError("quorum_settle_ms must be at least 0", value=f"quorum_settle_ms={settle_ms:g}")
        self.bookkeeper, self._access = bookkeeper, access
        self._broker, self._offloaded = _broker(access), OffloadedReads(access.offload)
        self._own_store: MetadataStore | None = None
        self._nodes: PulsarNodes | None = None
        self._with_transactions = set[tuple[str, str]]()  # namespaces; one that has had transactions stays here

    async def nodes(self) -> PulsarNodes:
        """Return Pulsar's nodes, with everything that brokers wrote before this call. They are beside those of the
        ledgers, or in a store of their own. Raises MetadataUnavailableError."""
        self.bookkeeper.check_open()
        if self._nodes is None:
            store, root = self.bookkeeper.store, ""
            if self._access.metadata_uri:
                uri, root = parse_metadata_uri(self._access.metadata_uri)
                settings = self.bookkeeper.config.store_settings()
                store = self._own_store = await asyncio.to_thread(lambda: open_store(uri, **settings))
            self._nodes = PulsarNodes(store, root)
        await asyncio.to_thread(self._nodes.sync)
        return self._nodes

    def planner(
        self,
        nodes: PulsarNodes,
        topic: TopicName,
        *,
        asks_broker: bool = True,
        broker_may_fail: bool = False,
        quorum: QuorumUse = "ignore",
    ) -> PartitionPlanner:
        """Return a planner of one topic or partition, which the caller closes."""
        settle_ms = self._access.quorum_settle_ms
        settles = settle_ms is not None and quorum != "ignore"
        return PartitionPlanner(
            self.bookkeeper,
            nodes,
            topic,
            password=self._access.password,
            broker=self._broker if asks_broker else None,
            broker_may_fail=broker_may_fail,
            settled=SettledEnd(settle_ms, follows=quorum == "follow") if settles and settle_ms is not None else None,
            storage=self.storage,
        )

    @property
    def storage(self) -> OffloadStorage:
        """The settings by which ledgers in object storage are read."""
        return self._access.offload

    @property
    def asks_broker(self) -> bool:
        """Whether the address of a broker was given."""
        return self._broker is not None

    async def last_confirmed(self, topic: TopicName) -> EntryPosition | None:
        """Return the last confirmed entry of a topic or partition that the broker reports, or None if the topic has no
        entry or no broker's address was given. Raises the errors of :meth:`BrokerAdmin.last_confirmed`."""
        return None if self._broker is None else await asyncio.to_thread(self._broker.last_confirmed, topic)

    async def may_have_transactions(self, nodes: PulsarNodes, topic: TopicName) -> bool:
        """Return whether the topic's namespace has ever had transactions. Call it after the end of a read is known,
        because a broker notes the first transaction of a namespace before the messages of that transaction."""
        space = topic.tenant, topic.namespace
        if space not in self._with_transactions and await asyncio.to_thread(nodes.may_have_transactions, topic):
            self._with_transactions.add(space)
        return space in self._with_transactions

    def outcomes(self, planner: PartitionPlanner) -> PartitionReading:
        """Return a reader for :meth:`PartitionReading.decide` alone, which finds the outcomes of transactions. It makes
        no rows, so it needs no entries before its ranges."""
        from bk_core.pulsar.messages.rows import schema_of
        from bk_core.pulsar.reading import PartitionReading, ReadOptions

        return PartitionReading(planner.topic, self.reads(planner.moved), ReadOptions(schema_of(None)), _no_history)

    def reads(self, moved: Moved | None = None) -> LedgerReads:
        """Return a reader of ranges of ledgers, in bookies and in object storage. ``moved`` looks for the copy of a
        ledger that the bookies have deleted since the range was planned (:meth:`PartitionPlanner.moved`)."""
        from bk_core.pulsar.reading import LedgerReads

        return LedgerReads(self.bookkeeper, self._access.password, self._offloaded, moved)

    async def close(self) -> None:
        """End the session with Pulsar's own metadata store, if it has one."""
        self._offloaded.close()
        store, self._own_store, self._nodes = self._own_store, None, None
        if store is not None:
            await asyncio.to_thread(store.close)

    async def __aenter__(self) -> PulsarCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _no_history(_: EntryPosition) -> list[TopicRange]:
    return []


def _broker(access: PulsarAccess) -> BrokerAdmin | None:
    """Return the broker to ask, or None without an admin URL. Raises InvalidArgumentError for a bad URL or file."""
    if not access.admin_url:
        return None
    import ssl

    token: Callable[[], str] | None = None
    if access.token_path:
        path = Path(access.token_path)

        def token() -> str:
            return path.read_text(encoding="utf-8").strip()

    try:
        tls = ssl.create_default_context(cafile=access.ca_path) if access.ca_path else None
        if token is not None:
            token()
    except OSError as error:
        raise InvalidArgumentError(
            "a file for requests to Pulsar's broker cannot be read",
            value=f"{error.filename or access.ca_path}: {error}",
        ) from error
    return BrokerAdmin(access.admin_url, token=token, tls=tls)
