# SPDX-License-Identifier: Apache-2.0
"""Defines the options of topics of Pulsar, checks which of them exclude each other, and parses the positions in
``startingOffsets`` and ``endingOffsets`` (docs/pulsar.md). Pure, with one exception: files of private keys are read
here, on the driver.

A position is that of a message. It has a ledger and an entry and, within a batch, the index in the batch. Starts are
inclusive and ends are exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bk_core.access.secret_files import secret_of_file
from bk_core.errors import InvalidArgumentError
from bk_spark.errors import bad_value, see, shown
from bk_spark.options.offsets import EARLIEST, LATEST, WORDS, json_members, parse_time
from bk_spark.options.selection import TopicSelection

if TYPE_CHECKING:
    from bk_core.pulsar.cluster import PulsarAccess
    from bk_core.pulsar.model.message_id import MessageId
    from bk_core.pulsar.model.topic_name import TopicName
    from bk_core.pulsar.offloaded.access import OffloadStorage

TOPIC_ONLY = (
    "pulsarMetadataUri",
    "pulsarAdminUrl",
    "pulsarAdmin.token.path",
    "pulsarAdmin.ca.path",
    "pulsarPrivateKeys.path",
    "offloadedReadPriority",
    "pulsarOffload.uri",
    "pulsarOffload.endpoint",
    "pulsarOffload.region",
    "pulsarOffload.credentials.path",
    "encryptedMessages",
    "isolation",
    "topicSchema",
    "readCompacted",
    "subscription",
)
"""Options that only a read of topics takes."""

NOT_FOR_TOPICS: Mapping[str, str] = {
    "startingEntryId": 'use startingOffsets, {"persistent://public/default/orders":"ledger:entry"}',
    "endingEntryId": 'use endingOffsets, {"persistent://public/default/orders":"ledger:entry"}',
    "codec": "leave it out: value has the bytes of each message",
    "digestType": "leave it out: each ledger's record has it",
    "onOverwrite": "leave it out: a topic cannot be overwritten",
}
"""Options that a read of topics refuses, each with its remedy."""

EXPECTED = (
    'earliest, latest or {"persistent://public/default/orders-partition-0":"12:34",…}: for each topic or partition the '
    "ledger and entry, the numbers of a serialized message id, -2 for earliest or -1 for latest"
)
BYTES, NEWEST = "bytes", "latest"
"""Words of ``topicSchema``."""
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
Place: TypeAlias = "MessageId | int"
"""A message, EARLIEST or LATEST."""


@dataclass(frozen=True, slots=True)
class TopicBound:
    """The begin or the end of a read in each topic or partition. ``places`` has the positions by the full names of
    partitions and of topics without partitions. Without ``places``, ``everywhere`` holds for all of them."""

    everywhere: int
    places: Mapping[str, Place] = field(default_factory=dict)

    def at(self, topic: TopicName) -> Place:
        return self.places.get(str(topic), self.everywhere)

    def has(self, value: int) -> bool:
        """Return whether any topic has this ``value``."""
        return value in self.places.values() if self.places else value == self.everywhere

    def check(self, option: str, topics: Sequence[TopicName]) -> None:
        """Check that ``places``, if there are any, name exactly these topics and partitions. Raises
        InvalidArgumentError that lists the missing and the superfluous ones."""
        names = {str(topic) for topic in topics}
        problems = {"missing": names - self.places.keys(), "not selected": self.places.keys() - names}
        found = [f"{what}: {shown(sorted(which))}" for what, which in problems.items() if which]
        if self.places and found:
            raise InvalidArgumentError(
                f"option {option} must have one position for each topic without partitions and for each partition",
                value="; ".join(found),
                remedy=f"give each of them, -2 for earliest and -1 for latest, or write {option} as one word",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The checked options of a read of topics. Times are publish times in milliseconds since 1970. ``start_option`` is
    the name of the option that chooses the begin, for errors."""

    metadata_uri: str = ""
    admin_url: str = ""
    token_path: str = ""
    ca_path: str = ""
    quorum_settle_ms: int | None = None
    private_keys: Mapping[str, bytes] | None = field(default=None, repr=False)
    offload: OffloadStorage | None = None
    encrypted: Literal["fail", "raw"] = "fail"
    corrupt: Literal["fail", "skip"] = "fail"
    isolation: Isolation = "read_committed"
    schema: str | int = BYTES
    compacted: bool = False
    subscription: str | None = None
    starting: TopicBound = field(default_factory=lambda: TopicBound(EARLIEST))
    ending: TopicBound = field(default_factory=lambda: TopicBound(LATEST))
    published_from_ms: int | None = None
    published_before_ms: int | None = None

    @property
    def decodes(self) -> bool:
        """Whether values become columns of the topic's schema."""
        return self.schema != BYTES

    @property
    def schema_version(self) -> int | None:
        """The number of the version whose columns are wanted, or None for the newest."""
        return self.schema if isinstance(self.schema, int) else None

    @property
    def storage(self) -> OffloadStorage:
        """The settings for reads of offloaded ledgers."""
        from bk_core.pulsar.offloaded.access import BY_THE_RECORD

        return self.offload or BY_THE_RECORD

    def access(self, password: bytes) -> PulsarAccess:
        """Return the options as the client takes them. ``password`` is that of the topics' ledgers."""
        from bk_core.pulsar.cluster import PulsarAccess

        return PulsarAccess(
            metadata_uri=self.metadata_uri,
            admin_url=self.admin_url,
            token_path=self.token_path,
            ca_path=self.ca_path,
            password=password,
            offload=self.storage,
            quorum_settle_ms=self.quorum_settle_ms,
        )


def check_not_for_topics(texts: Mapping[str, str], selection: object) -> None:
    """Check that no option contradicts the selection: options of topics need topics, and topics refuse some others.
    Raises InvalidArgumentError that names the option."""
    if not isinstance(selection, TopicSelection):
        for name in TOPIC_ONLY:
            if name in texts:
                raise InvalidArgumentError(
                    f"option {name} is for topics of Pulsar",
                    value=str(selection),
                    remedy=f"select topics with topic, topics or topicsPattern; {see('spark', 'pulsar.md')}",
                )
        return
    for name, remedy in NOT_FOR_TOPICS.items():
        if name in texts:
            raise InvalidArgumentError(
                f"option {name} is not for topics of Pulsar", value=f"{name}={texts[name]}", remedy=remedy
            )
    if texts.get("corruptEntries", "").strip().lower() == "null":
        raise InvalidArgumentError(
            "corruptEntries=null is not for topics of Pulsar: an entry that is no message may stand for any number of "
            "messages",
            value=str(selection),
            remedy="choose fail or skip",
        )
    for name in ("pulsarAdmin.token.path", "pulsarAdmin.ca.path"):
        if name in texts and "pulsarAdminUrl" not in texts:
            raise InvalidArgumentError(
                f"option {name} needs pulsarAdminUrl", value=texts[name], remedy="name the broker that is to be asked"
            )


def topic_options(
    texts: Mapping[str, str], values: Mapping[str, Any], selection: TopicSelection, *, is_stream: bool
) -> TopicOptions:
    """Return the options of a read of topics. ``texts`` has the given options as text, and ``values`` has the parsed
    values of all options. Raises InvalidArgumentError for options that exclude each other and for impossible values."""
    _check_one_start(texts)
    return TopicOptions(
        metadata_uri=values["pulsarMetadataUri"] or "",
        admin_url=values["pulsarAdminUrl"] or "",
        token_path=values["pulsarAdmin.token.path"] or "",
        ca_path=values["pulsarAdmin.ca.path"] or "",
        quorum_settle_ms=values["quorumSettleMs"] if values["readMode"] == "quorum" else None,
        private_keys=_private_keys(values["pulsarPrivateKeys.path"]),
        offload=_offload(values),
        encrypted=values["encryptedMessages"],
        corrupt=values["corruptEntries"],
        isolation=values["isolation"],
        schema=_schema(values["topicSchema"], values["encryptedMessages"], selection),
        compacted=values["readCompacted"],
        subscription=_subscription(values["subscription"]),
        starting=_starting(texts, selection, is_stream=is_stream),
        ending=_ending(texts, selection),
        published_from_ms=_time(texts, "startingTimestamp"),
        published_before_ms=_time(texts, "endingTimestamp"),
    )


def _check_one_start(texts: Mapping[str, str]) -> None:
    for group in (("startingOffsets", "startingTimestamp", "subscription"), ("endingOffsets", "endingTimestamp")):
        given = [name for name in group if name in texts]
        if len(given) > 1:
            raise InvalidArgumentError(f"{' and '.join(given)} exclude each other", remedy="keep one of them")


def parse_topic_bound(option: str, text: str, selection: TopicSelection) -> TopicBound:
    """Parse ``earliest``, ``latest``, or JSON with a position for each topic without partitions and each partition.
    Raises InvalidArgumentError for anything else, and for the name of a topic that is not selected."""
    word = text.strip().lower()
    if word in WORDS:
        return TopicBound(WORDS[word])
    from bk_core.pulsar.model.topic_name import TopicName

    nested = "a partition is a topic of its own, orders-partition-0"
    places = dict[str, Place]()
    for name, value in json_members(option, text, EXPECTED, nested).items():
        topic = TopicName.parse(name)
        if not selection.takes(topic):
            raise bad_value(option, text, f"positions of topics that are selected, not of {topic}")
        if str(topic) in places:
            raise bad_value(option, text, f"{EXPECTED}, each once; twice: {topic}")
        places[str(topic)] = _place(option, text, topic, value)
    return TopicBound(EARLIEST, places)


def _place(option: str, text: str, topic: TopicName, value: object) -> Place:
    if isinstance(value, int) and not isinstance(value, bool) and value in (EARLIEST, LATEST):
        return value
    if isinstance(value, str) and value.strip().lower() in WORDS:
        return WORDS[value.strip().lower()]
    from bk_core.pulsar.model.message_id import MessageId

    try:
        if isinstance(value, list):
            found = MessageId.deserialize(bytes(value))
        else:
            found = _of_text(str(value) if isinstance(value, str) else "")
    except (InvalidArgumentError, ValueError, TypeError):
        raise bad_value(option, text, f"{EXPECTED}; not {str(value)[:100]!r} for {topic}") from None
    if found.partition not in (-1, topic.partition):
        raise bad_value(option, text, f"a position in {topic}; {found} is one in partition {found.partition}")
    return found


def _of_text(text: str) -> MessageId:
    """Parse ``ledger:entry``, or a message id as Pulsar's tools print it: ``ledger:entry:partition`` and ``…:batch
    index``."""
    from bk_core.pulsar.model.message_id import MessageId

    numbers = [int(part) for part in text.split(":")]
    if not 2 <= len(numbers) <= 4 or min(numbers[:2]) < 0 or max(numbers) >= 1 << 63 or min(numbers) < -1:
        raise ValueError(text)
    return MessageId(numbers[0], numbers[1], *numbers[2:])  # type: ignore[arg-type]  # two numbers at most


def _starting(texts: Mapping[str, str], selection: TopicSelection, *, is_stream: bool) -> TopicBound:
    if "startingOffsets" not in texts:
        begins_at_end = is_stream and not {"startingTimestamp", "subscription"} & texts.keys()
        return TopicBound(LATEST if begins_at_end else EARLIEST)
    bound = parse_topic_bound("startingOffsets", texts["startingOffsets"], selection)
    if bound.has(LATEST) and not is_stream:
        raise bad_value("startingOffsets", texts["startingOffsets"], "earliest or JSON: a batch from latest is empty")
    return bound


def _ending(texts: Mapping[str, str], selection: TopicSelection) -> TopicBound:
    if "endingOffsets" not in texts:
        return TopicBound(LATEST)
    bound = parse_topic_bound("endingOffsets", texts["endingOffsets"], selection)
    if bound.has(EARLIEST):
        raise bad_value("endingOffsets", texts["endingOffsets"], "latest or JSON: a batch to earliest is empty")
    return bound


def _time(texts: Mapping[str, str], option: str) -> int | None:
    return parse_time(option, texts[option]) if option in texts else None


def _schema(text: str, encrypted: str, selection: TopicSelection) -> str | int:
    """Parse ``bytes``, ``latest`` or the number of a version."""
    word = text.strip().lower()
    if word == BYTES:
        return BYTES
    if encrypted == "raw":
        raise InvalidArgumentError(
            "encryptedMessages=raw shows bytes, so it cannot be used with topicSchema",
            value=f"topicSchema={text}",
            remedy="leave one of the two out",
        )
    if word == NEWEST:
        return NEWEST
    if not (word.isascii() and word.isdigit()):
        raise bad_value("topicSchema", text, "bytes, latest, or the number of a version of the topic's schema")
    if selection.pattern is not None or len(selection.names) != 1:
        raise bad_value(
            "topicSchema", text, "bytes or latest: a number is one topic's version, for a query of it alone"
        )
    return int(word)


def _subscription(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise bad_value("subscription", text, "the name of a subscription")
    return text


def _offload(values: Mapping[str, Any]) -> OffloadStorage:
    """Return the settings for reads of offloaded ledgers. The file of credentials is read here, on the driver."""
    from bk_core.pulsar.offloaded.access import OffloadStorage

    given = OffloadStorage(
        read_priority=values["offloadedReadPriority"],
        uri=values["pulsarOffload.uri"] or "",
        endpoint=values["pulsarOffload.endpoint"] or "",
        region=values["pulsarOffload.region"] or "",
    )
    path = values["pulsarOffload.credentials.path"]
    if not path:
        return given
    option = "option pulsarOffload.credentials.path"
    return given.with_credentials(secret_of_file(path, option).decode("utf-8", "replace"), f"the file of {option}")


def _private_keys(text: str | None) -> dict[str, bytes] | None:
    """Parse ``FILE`` for all names of keys, or ``NAME=FILE,NAME=FILE``, and read the files."""
    if text is None:
        return None
    option, found = "pulsarPrivateKeys.path", dict[str, bytes]()
    for part in text.split(","):
        name, equals, path = (each.strip() for each in part.partition("="))
        name, path = (name, path) if equals else ("*", name)
        if not name or not path or name in found:
            raise bad_value(option, text, "a file in PEM, or NAME=FILE,NAME=FILE with each name once")
        found[name] = secret_of_file(path, f"option {option}")
    return found
