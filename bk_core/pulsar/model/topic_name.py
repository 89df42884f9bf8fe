# SPDX-License-Identifier: Apache-2.0
"""Parses the names of Pulsar's topics, and returns the nodes of the metadata store that belong to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote_plus, unquote_plus

from bk_core.errors import InvalidArgumentError, UnsupportedTopicError

PERSISTENT = "persistent"
PUBLIC, DEFAULT = "public", "default"
"""The tenant and the namespace of a topic whose short name gives neither."""
PARTITION = "-partition-"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
MANAGED_LEDGERS = "/managed-ledgers"
SCHEMAS = "/schemas"
SCALABLE_TOPICS = "/topics"
SYSTEM_TOPICS = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
        "__transaction_pending_ack",
    }
)
"""The local names of topics that brokers create for their own use. A partition of such a topic has a suffix."""
SYSTEM_NAMESPACE = ("pulsar", "system")
PENDING_ACKS = "__transaction_pending_ack"
_NAME_OF_TENANT = re.compile(r"[-=:.\w]+")
_PARTITION_NUMBER = re.compile(r"(.+)-partition-(\d{1,9})")
_REMEDY = "write persistent://tenant/namespace/topic, or tenant/namespace/topic, or topic in public/default"


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic, or one of its partitions if ``local`` ends in ``-partition-N``."""

    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, name: str) -> TopicName:
        """Parse a full or a short name. Raises InvalidArgumentError for a name that no topic can have. Raises
        UnsupportedTopicError for a non-persistent topic, because it has no ledgers, and for a name of Pulsar 1."""
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidArgumentError("this is no name of a topic", value=repr(name), remedy=_REMEDY)
        domain, separator, rest = name.partition("://")
        if not separator:
            rest = name if "/" in name else f"{PUBLIC}/{DEFAULT}/{name}"
        elif domain != PERSISTENT:
            raise _of_another_domain(domain, name)
        return cls.of_parts(*cls._split(name, rest))

    @staticmethod
    def _split(name: str, rest: str) -> tuple[str, str, str]:
        parts = rest.split("/")
        if len(parts) > 3 and all(parts):
            raise UnsupportedTopicError(
                "topics of Pulsar 1, with a cluster in their names, are not read", value=name, remedy=_REMEDY
            )
        if len(parts) != 3 or not all(parts):
            raise InvalidArgumentError("this is no name of a topic", value=name, remedy=_REMEDY)
        return parts[0], parts[1], parts[2]

    @classmethod
    def of_parts(cls, tenant: str, namespace: str, local: str) -> TopicName:
        """Return the topic with this tenant, namespace and local name. Raises InvalidArgumentError for a tenant or a
        namespace that Pulsar does not allow."""
        for part in (tenant, namespace):
            if not _NAME_OF_TENANT.fullmatch(part) or part in (".", ".."):
                raise InvalidArgumentError(
                    "this is no name of a tenant or a namespace", value=part, remedy="letters, digits and -=:._"
                )
        return cls(tenant, namespace, local)

    @classmethod
    def of_node(cls, tenant: str, namespace: str, node: str) -> TopicName:
        """Return the topic of a node below ``/managed-ledgers`` or ``/admin/partitioned-topics``."""
        return cls(tenant, namespace, unquote_plus(node))

    def __str__(self) -> str:
        return f"{PERSISTENT}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def node(self) -> str:
        """The name of the topic's node: the local name, encoded as by Java's URLEncoder."""
        return quote_plus(self.local, safe="*-._").replace("~", "%7E")

    @property
    def partition(self) -> int:
        """The number of the partition, or −1 for a topic that is not a partition."""
        found = _PARTITION_NUMBER.fullmatch(self.local)
        return int(found[2]) if found and str(int(found[2])) == found[2] else -1

    @property
    def whole(self) -> TopicName:
        """The partitioned topic of this partition, or the topic itself if it is not a partition."""
        return self if self.partition < 0 else replace(self, local=self.local.rpartition(PARTITION)[0])

    def of_partition(self, number: int) -> TopicName:
        return replace(self, local=f"{self.local}{PARTITION}{number}")

    @property
    def is_system(self) -> bool:
        """Whether brokers created this topic for their own use."""
        local = self.whole.local
        of_system = (self.tenant, self.namespace) == SYSTEM_NAMESPACE
        return of_system or local in SYSTEM_TOPICS or local.endswith(PENDING_ACKS)

    @property
    def managed_ledger_path(self) -> str:
        return f"{managed_ledgers(self.tenant, self.namespace)}/{self.node}"

    @property
    def partitions_path(self) -> str:
        return f"{partitioned_topics(self.tenant, self.namespace)}/{self.node}"

    @property
    def schema_path(self) -> str:
        return f"{SCHEMAS}/{self.tenant}/{self.namespace}/{self.whole.node}"

    @property
    def scalable_path(self) -> str:
        return f"{SCALABLE_TOPICS}/{self.tenant}/{self.namespace}/{self.node}"


def managed_ledgers(tenant: str, namespace: str) -> str:
    """Return the path below which the store has the managed ledgers of a namespace's topics."""
    return f"{MANAGED_LEDGERS}/{tenant}/{namespace}/{PERSISTENT}"


def partitioned_topics(tenant: str, namespace: str) -> str:
    """Return the path below which the store has the records of a namespace's partitioned topics."""
    return f"{PARTITIONED_TOPICS}/{tenant}/{namespace}/{PERSISTENT}"


def _of_another_domain(domain: str, name: str) -> Exception:
    if domain == "non-persistent":
        return UnsupportedTopicError(
            "a non-persistent topic has no ledgers", value=name, remedy="its messages were only in the broker's memory"
        )
    return InvalidArgumentError("Pulsar has no topics of this kind", value=f"{domain}://", remedy=_REMEDY)
