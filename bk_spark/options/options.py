# SPDX-License-Identifier: Apache-2.0
"""The options of a load or save: their table, and how Spark's strings become :class:`BkOptions` (RULES K7). Pure, with
one exception: a secret that an option names by a file or a variable is read here, on the driver, once for each load or
save.

The fields of :class:`BkOptions` are the table: each field lists the options that determine it. docs/spark.md describes
every option; a test compares its list with the table.

Spark passes keys in lower case; ``writeQuorumSize``, ``write_quorum_size`` and ``write-quorum-size`` are the same key.
Options of another use (write options on a read) are checked and ignored, because a temporary view passes its options to
reads and writes alike. A stream refuses the few that would change its meaning (``STREAM_REFUSES``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bk_core.access.secret_files import secret_of_file, secret_of_variable
from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.head import CODECS, COMPRESSIONS
from bk_core.model import DIGEST_TYPE_NAMES
from bk_core.protocol.config import QUORUM_SETTLE_MS
from bk_core.units import parse_size, parse_time_ms
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_spark.errors import bad_value, unknown_option
from bk_spark.options.offsets import AT_EARLIEST, AT_LATEST, EARLIEST, LATEST, Bound, parse_bound, parse_times
from bk_spark.options.selection import (
    ColumnSelection,
    LedgerSelection,
    LogSelection,
    Selection,
    TopicSelection,
    select,
)
from bk_spark.options.topic_options import TopicOptions, check_not_for_topics, topic_options

SMALL_TASK_BYTES_MAX = 256 << 10
"""The largest value of option ``smallTaskBytes``. With it, all tasks together hold at most 512 MiB on the driver (see
:func:`bk_spark.write.held.bytes_max`), half of what Spark's ``spark.driver.maxResultSize`` allows by default."""
BATCH_METADATA_TIMEOUT_MS, STREAM_METADATA_TIMEOUT_MS = 8_000, 60_000


class Use(enum.Enum):
    """The kind of load or save that the options are for."""

    READ = "batch read"
    STREAM = "stream"
    WRITE = "batch write"


class OptionKind(enum.Enum):
    """The way in which an option's text is parsed."""

    TEXT = "text"
    SECRET = "secret text"
    SECRET_PATH = "file of a secret"
    SECRET_VARIABLE = "variable of a secret"
    COUNT = "count"
    BYTES = "bytes"
    DURATION = "duration"
    BOOLEAN = "true or false"
    CHOICE = "choice"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class OptionDefinition:
    """A row of the table. ``minimum`` applies to counts and sizes. ``kept`` marks an option that a table made with
    CREATE TABLE keeps; it must be no secret and must be unable to end a writer
    (:mod:`bk_spark.options.table_options`)."""

    name: str
    kind: OptionKind
    uses: tuple[Use, ...]
    default: str | None = field(default=None, kw_only=True)
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    choices: tuple[str, ...] = field(default=(), kw_only=True)
    minimum: int = field(default=1, kw_only=True)
    kept: bool = field(default=False, kw_only=True)


_ALL = (Use.READ, Use.STREAM, Use.WRITE)
_READS = (Use.READ, Use.STREAM)


def _option(*row: Any, **more: Any) -> Any:
    """Return a field that is the value of one option. The arguments are those of :class:`OptionDefinition`."""
    definition = OptionDefinition(*row, **more)
    return field(metadata=_made_of(definition))


def _made_of(*definitions: OptionDefinition) -> dict[str, tuple[OptionDefinition, ...]]:
    """Return the metadata of a field whose value these options determine."""
    return {"options": definitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class BkOptions:
    """The checked options of one load or save. Each field is made from the options in its metadata. Sizes are in bytes.

    ``starting`` and ``ending`` hold for each source the next entry id or log offset, or EARLIEST or LATEST. If
    ``starting_timestamp`` (milliseconds since 1970, for each source) is given, it decides, and ``starting`` is
    EARLIEST. The same holds for ``ending_timestamp`` and LATEST. For topics, ``topics`` has all of
    these. ``client_settings`` has the ``bookkeeper.*`` pairs and
    the settings of TLS, tokens and ZooKeeper, sorted, for :func:`bk_spark.workers.clients.client_config`.
    """

    metadata_service_uri: str = _option("metadataServiceUri", OptionKind.TEXT, _ALL, kept=True)
    metadata_timeout_ms: int = _option("metadataTimeout", OptionKind.DURATION, _ALL, kept=True)
    selection: Selection = field(
        metadata=_made_of(
            OptionDefinition("ledgerId", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("ledgerIds", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("log", OptionKind.TEXT, _ALL, kept=True),
            OptionDefinition("logs", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("logPattern", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("topic", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("topics", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("topicsPattern", OptionKind.TEXT, _READS, kept=True),
        )
    )
    ledger_password: bytes = field(
        repr=False,
        metadata=_made_of(
            OptionDefinition("ledgerPassword", OptionKind.SECRET, _ALL, default=""),
            OptionDefinition("ledgerPassword.path", OptionKind.SECRET_PATH, _ALL, aliases=("ledgerPasswordPath",)),
            OptionDefinition("ledgerPassword.env", OptionKind.SECRET_VARIABLE, _ALL, aliases=("ledgerPasswordEnv",)),
        ),
    )
    digest_type: str | None = _option("digestType", OptionKind.CHOICE, _ALL, choices=DIGEST_TYPE_NAMES, kept=True)
    read_mode: str = _option(
        "readMode", OptionKind.CHOICE, _READS, default="lac", choices=("lac", "closedOnly", "fence", "quorum")
    )
    quorum_settle_ms: int = _option(
        "quorumSettleMs", OptionKind.COUNT, _READS, default=str(QUORUM_SETTLE_MS), minimum=1000
    )
    starting: Bound = field(
        metadata=_made_of(
            OptionDefinition("startingOffsets", OptionKind.OFFSETS, _READS, kept=True),
            OptionDefinition("startingEntryId", OptionKind.COUNT, _READS, minimum=0, kept=True),
        )
    )
    ending: Bound = field(
        metadata=_made_of(
            OptionDefinition("endingOffsets", OptionKind.OFFSETS, (Use.READ,), default="latest", kept=True),
            OptionDefinition("endingEntryId", OptionKind.COUNT, (Use.READ,), minimum=0, kept=True),
        )
    )
    starting_timestamp: Bound | None = field(
        metadata=_made_of(
            OptionDefinition(
                "startingTimestamp", OptionKind.TIMESTAMP, _READS, aliases=("startingOffsetsByTimestamp",), kept=True
            )
        )
    )
    ending_timestamp: Bound | None = field(
        metadata=_made_of(
            OptionDefinition(
                "endingTimestamp", OptionKind.TIMESTAMP, (Use.READ,), aliases=("endingOffsetsByTimestamp",), kept=True
            )
        )
    )
    topics: TopicOptions | None = field(
        default=None,
        metadata=_made_of(
            OptionDefinition("pulsarMetadataUri", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("pulsarAdminUrl", OptionKind.TEXT, _READS, kept=True),
            OptionDefinition("pulsarAdmin.token.path", OptionKind.TEXT, _READS, aliases=("pulsarAdminTokenPath",)),
            OptionDefinition("pulsarAdmin.ca.path", OptionKind.TEXT, _READS, aliases=("pulsarAdminCaPath",), kept=True),
            OptionDefinition(
                "pulsarPrivateKeys.path", OptionKind.SECRET_PATH, _READS, aliases=("pulsarPrivateKeysPath",)
            ),
            OptionDefinition(
                "offloadedReadPriority",
                OptionKind.CHOICE,
                _READS,
                default="tiered-storage-first",
                choices=("tiered-storage-first", "bookkeeper-first"),
                kept=True,
            ),
            OptionDefinition("pulsarOffload.uri", OptionKind.TEXT, _READS, aliases=("pulsarOffloadUri",)),
            OptionDefinition("pulsarOffload.endpoint", OptionKind.TEXT, _READS, aliases=("pulsarOffloadEndpoint",)),
            OptionDefinition("pulsarOffload.region", OptionKind.TEXT, _READS, aliases=("pulsarOffloadRegion",)),
            OptionDefinition(
                "pulsarOffload.credentials.path",
                OptionKind.SECRET_PATH,
                _READS,
                aliases=("pulsarOffloadCredentialsPath",),
            ),
            OptionDefinition(
                "encryptedMessages", OptionKind.CHOICE, _READS, default="fail", choices=("fail", "raw"), kept=True
            ),
            OptionDefinition(
                "isolation",
                OptionKind.CHOICE,
                _READS,
                default="read_committed",
                choices=("read_committed", "read_uncommitted"),
                kept=True,
            ),
            OptionDefinition("topicSchema", OptionKind.TEXT, _READS, default="bytes", kept=True),
            OptionDefinition("readCompacted", OptionKind.BOOLEAN, (Use.READ,), default="false", kept=True),
            OptionDefinition("subscription", OptionKind.TEXT, _READS, kept=True),
        ),
    )
    max_bytes_per_partition: int = _option("maxBytesPerPartition", OptionKind.BYTES, _READS, default="128m", kept=True)
    max_entries_per_partition: int | None = _option(
        "maxEntriesPerPartition", OptionKind.COUNT, _READS, aliases=("maxRecordsPerPartition",), kept=True
    )
    min_partitions: int | None = _option("minPartitions", OptionKind.COUNT, _READS, kept=True)
    max_entries_per_trigger: int | None = _option(
        "maxEntriesPerTrigger", OptionKind.COUNT, (Use.STREAM,), aliases=("maxOffsetsPerTrigger",), kept=True
    )
    max_bytes_per_trigger: int = _option("maxBytesPerTrigger", OptionKind.BYTES, (Use.STREAM,), default="1g", kept=True)
    min_entries_per_trigger: int | None = _option(
        "minEntriesPerTrigger", OptionKind.COUNT, (Use.STREAM,), aliases=("minOffsetsPerTrigger",), kept=True
    )
    max_trigger_delay_ms: int = _option("maxTriggerDelay", OptionKind.DURATION, (Use.STREAM,), default="15m", kept=True)
    on_overwrite: str = _option(
        "onOverwrite", OptionKind.CHOICE, (Use.STREAM,), default="fail", choices=("fail", "skip"), kept=True
    )
    fail_on_data_loss: bool = _option("failOnDataLoss", OptionKind.BOOLEAN, _READS, default="true", kept=True)
    txn_app_id: str | None = _option("txnAppId", OptionKind.TEXT, (Use.WRITE,))
    txn_version: int | None = _option("txnVersion", OptionKind.COUNT, (Use.WRITE,), minimum=0)
    ensemble_size: int = _option("ensembleSize", OptionKind.COUNT, (Use.WRITE,), default="3")
    write_quorum_size: int = _option("writeQuorumSize", OptionKind.COUNT, (Use.WRITE,), default="3")
    ack_quorum_size: int = _option("ackQuorumSize", OptionKind.COUNT, (Use.WRITE,), default="2")
    codec: str = _option("codec", OptionKind.CHOICE, _ALL, default="raw", choices=CODECS, kept=True)
    mixed_codecs: bool = _option("mixedCodecs", OptionKind.BOOLEAN, (Use.WRITE,), default="false")
    include_metadata: bool = _option("includeMetadata", OptionKind.BOOLEAN, _READS, default="false", kept=True)
    columns: tuple[str, ...] | None = _option("columns", OptionKind.TEXT, _READS, kept=True)
    corrupt_entries: str = _option(
        "corruptEntries", OptionKind.CHOICE, _READS, default="fail", choices=("fail", "skip", "null"), kept=True
    )
    null_values: str = _option(
        "nullValues", OptionKind.CHOICE, (Use.WRITE,), default="fail", choices=("fail", "skip", "empty")
    )
    ignore_metadata_columns: bool = _option("ignoreMetadataColumns", OptionKind.BOOLEAN, (Use.WRITE,), default="false")
    merge_schema: bool = _option("mergeSchema", OptionKind.BOOLEAN, (Use.WRITE,), default="false")
    compression: str = _option("compression", OptionKind.CHOICE, (Use.WRITE,), default="zstd", choices=COMPRESSIONS)
    max_entry_bytes: int | None = _option("maxEntryBytes", OptionKind.BYTES, (Use.WRITE,))
    small_task_bytes: int = _option("smallTaskBytes", OptionKind.BYTES, (Use.WRITE,), default="32k", minimum=0)
    client_settings: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=_made_of(
            OptionDefinition("tls.ca.path", OptionKind.TEXT, _ALL, aliases=("tlsCaPath",), kept=True),
            OptionDefinition("tls.certificate.path", OptionKind.TEXT, _ALL, aliases=("tlsCertificatePath",), kept=True),
            OptionDefinition("tls.key.path", OptionKind.TEXT, _ALL, aliases=("tlsKeyPath",), kept=True),
            OptionDefinition(
                "tls.endpoint.identification",
                OptionKind.CHOICE,
                _ALL,
                aliases=("tlsEndpointIdentification",),
                choices=("https", "none"),
                kept=True,
            ),
            OptionDefinition("tls.zookeeper", OptionKind.BOOLEAN, _ALL, aliases=("tlsZookeeper",), kept=True),
            OptionDefinition("token.path", OptionKind.TEXT, _ALL, aliases=("tokenPath",)),
            OptionDefinition("security", OptionKind.CHOICE, _ALL, choices=("open", "secure", "mixed"), kept=True),
            OptionDefinition("zookeeper.auth.path", OptionKind.TEXT, _ALL, aliases=("zookeeperAuthPath",)),
            OptionDefinition("zookeeper.acl", OptionKind.TEXT, _ALL, aliases=("zookeeperAcl",), kept=True),
        ),
    )

    @property
    def reads_ledgers(self) -> bool:
        """Whether the selection names bare ledgers instead of logs."""
        return isinstance(self.selection, LedgerSelection)

    @property
    def log(self) -> str | None:
        """The name of the one log to write, or None if column ``log`` of each row names it (RULES K10). Raises
        InvalidArgumentError for every other selection."""
        selection = self.selection
        if isinstance(selection, ColumnSelection):
            return None
        if isinstance(selection, LogSelection) and len(selection.names) == 1:
            return selection.names[0]
        raise InvalidArgumentError(
            "Spark writes to one named log, because a job makes several ledgers",
            value=str(selection),
            remedy='name a log: .save("events") or .option("log", "events"); or give each row its own in a column log',
        )


_MADE_OF: Mapping[str, tuple[OptionDefinition, ...]] = {
    each.name: each.metadata["options"] for each in fields(BkOptions) if each.metadata
}
OPTIONS: tuple[OptionDefinition, ...] = tuple(each for rows in _MADE_OF.values() for each in rows)
"""All options, in the order of the fields."""

SECRETS = frozenset(d.name for d in OPTIONS if d.kind is OptionKind.SECRET)
"""Options whose values appear in no message."""

STREAM_REFUSES: Mapping[str, str] = {
    "endingOffsets": "a stream has no end; use a batch read, or trigger(availableNow=True)",
    "endingEntryId": "a stream has no end; use a batch read, or trigger(availableNow=True)",
    "endingTimestamp": "a stream has no end; use a batch read, or trigger(availableNow=True)",
    "readCompacted": "a stream shows every message of a topic; read what was compacted in a batch",
}
"""Options that a stream refuses instead of ignoring, because they would change its meaning. Each has its remedy."""

CLIENT_PREFIX = "bookkeeper."
PROTECTED_CLIENT_KEYS: Mapping[str, str] = {
    "metadataserviceuri": "metadataServiceUri",
    "password": "ledgerPassword",
    "ledgerpassword": "ledgerPassword",
    "ledgerpassword.path": "ledgerPassword.path",
    "ledgerpassword.env": "ledgerPassword.env",
    "digesttype": "digestType",
    "ensemblesize": "ensembleSize",
    "writequorumsize": "writeQuorumSize",
    "ackquorumsize": "ackQuorumSize",
    "tlscapath": "tls.ca.path",
    "tlscertificatepath": "tls.certificate.path",
    "tlskeypath": "tls.key.path",
    "tlsendpointidentification": "tls.endpoint.identification",
    "tlszookeeper": "tls.zookeeper",
    "tokenpath": "token.path",
    "security": "security",
    "zookeeperauthpath": "zookeeper.auth.path",
    "zookeeperacl": "zookeeper.acl",
}

# Keys that Spark itself adds for tables, views and streams. They mean nothing here.
SPARKS_OWN = frozenset(
    {"path", "paths", "provider", "owner", "location", "external", "checkpointlocation", "queryname"}
)
SPARKS_OWN_PREFIX = "option."


def parse_options(given: Mapping[str, str], use: Use | None, *, is_sink: bool = False) -> BkOptions:
    """Check every option and make a :class:`BkOptions`. ``use`` is None as long as Spark has not said what the options
    are for. ``is_sink`` means that a stream is written, not a batch. Raises InvalidArgumentError for an unknown,
    malformed, missing or conflicting option."""
    texts, client = _sort_out(given, use)
    values = {d.name: _read(d, texts.get(d.name, d.default)) for d in OPTIONS}
    if not values["metadataServiceUri"]:
        raise InvalidArgumentError(
            "option metadataServiceUri is missing", remedy='.option("metadataServiceUri", "zk://host:2181/ledgers")'
        )
    by_key = {normalise(key): value for key, value in given.items()}
    selectors = dict(texts)
    selectors.update((name, by_key[name]) for name in ("path", "paths") if name in by_key)
    selection = select(selectors, by_column=use is Use.WRITE)
    _check_quorums(values)
    _check_trigger(values)
    _check_read_mode(values["readMode"], selection, use)
    topics = _topics(texts, values, selection, use)
    if values["readMode"] == "fence" and any(key.startswith(SPARKS_OWN_PREFIX) for key in by_key):
        raise InvalidArgumentError(  # any reader of the table would end a writer (RULES K2)
            "readMode=fence cannot be stored in a table",
            value=str(selection),
            remedy="give it to the one read that is to fence: spark.read.option",
        )
    made: dict[str, Any] = {name: values[rows[0].name] for name, rows in _MADE_OF.items() if len(rows) == 1}
    made.update(
        metadata_timeout_ms=_metadata_timeout_ms(values["metadataTimeout"], is_stream=is_sink or use is Use.STREAM),
        selection=selection,
        topics=topics,
        starting=AT_EARLIEST if topics else _starting(texts, selection, use),
        ending=AT_LATEST if topics else _ending(texts, selection),
        starting_timestamp=None if topics else _time(texts, "startingTimestamp", selection),
        ending_timestamp=None if topics else _time(texts, "endingTimestamp", selection),
        columns=_columns(values["columns"]),
        max_entry_bytes=_max_entry_bytes(values["maxEntryBytes"]),
        small_task_bytes=_small_task_bytes(values["smallTaskBytes"]),
        ledger_password=_secret(values, "ledgerPassword"),
        client_settings=tuple(sorted((*client, *_security_settings(values)))),
    )
    return BkOptions(**made)


def normalise(name: str) -> str:
    """Return the key that ``writeQuorumSize``, ``write_quorum_size`` and ``--write-quorum-size`` have in common."""
    return name.replace("_", "").replace("-", "").lower()


def parse_bytes(option: str, text: str, minimum: int = 1) -> int:
    """Parse a size such as ``128m``, ``1 GiB`` or ``1048576``. Units are powers of 1024. Raises InvalidArgumentError
    for less than ``minimum`` bytes."""
    size = parse_size(text)
    if size is None or size < minimum:
        raise bad_value(option, text, "a size such as 128m, 1g or 1048576")
    return size


def parse_duration_ms(option: str, text: str) -> int:
    """Parse a duration such as ``15m``, ``30s``, ``500ms`` or ``2h``. As in Spark, a number alone is milliseconds."""
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise bad_value(option, text, "a duration such as 15m, 30s or 500ms")
    return time_ms


def parse_count(option: str, text: str, minimum: int) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < minimum:
        raise bad_value(option, text, f"a number of at least {minimum}")
    return int(text)


def _sort_out(given: Mapping[str, str], use: Use | None) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Return the options' texts by the names in the table, and the client's ``bookkeeper.*`` pairs."""
    names = {normalise(name): d.name for d in OPTIONS for name in (d.name, *d.aliases)}
    texts: dict[str, str] = {}
    client: list[tuple[str, str]] = []
    for key, text in given.items():
        folded = normalise(key)
        if folded.startswith(CLIENT_PREFIX):
            client.append((_client_key(key), text))
        elif folded in names:
            name = names[folded]
            if texts.get(name, text) != text:
                both = "" if name in SECRETS else f"={texts[name]!r} and {text!r}"
                raise InvalidArgumentError("an option is given twice", value=f"{name}{both}")
            texts[name] = text
        elif folded not in SPARKS_OWN and not folded.startswith(SPARKS_OWN_PREFIX):
            raise unknown_option(key, [n for d in OPTIONS for n in (d.name, *d.aliases)])
    for name in STREAM_REFUSES.keys() & texts.keys() if use is Use.STREAM else ():
        raise InvalidArgumentError(
            f"option {name} is not for a stream", value=f"{name}={texts[name]!r}", remedy=STREAM_REFUSES[name]
        )
    return texts, tuple(sorted(client))


def _secret(values: Mapping[str, Any], name: str) -> bytes:
    """Return a secret that is given by its value, by a file or by an environment variable."""
    given = [each for each in (name, f"{name}.path", f"{name}.env") if values[each]]
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} exclude each other", remedy=f"keep {given[-1]}")
    if values[f"{name}.path"]:
        return secret_of_file(values[f"{name}.path"], f"option {name}.path")
    if values[f"{name}.env"]:
        return secret_of_variable(values[f"{name}.env"], f"option {name}.env")
    return str(values[name]).encode()


def _security_settings(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the options of TLS, tokens and ZooKeeper as client settings. A setting has the option's name without
    dots."""
    given = {d.name: values[d.name] for d in _MADE_OF["client_settings"] if values[d.name] is not None}
    return [(name.replace(".", ""), str(int(v)) if isinstance(v, bool) else v) for name, v in given.items()]


def _client_key(key: str) -> str:
    folded = normalise(key).removeprefix(CLIENT_PREFIX)
    if folded in PROTECTED_CLIENT_KEYS:
        option = PROTECTED_CLIENT_KEYS[folded]
        raise InvalidArgumentError(f"{key} is set by the data source", value=key, remedy=f"use option {option}")
    return folded


def _read(definition: OptionDefinition, text: str | None) -> Any:
    if text is None:
        return None
    return _READERS[definition.kind](definition, text)


def _read_boolean(definition: OptionDefinition, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise bad_value(definition.name, text, "true or false")
    return text.strip().lower() == "true"


def _read_choice(definition: OptionDefinition, text: str) -> str:
    wanted = text.strip().lower()
    for choice in definition.choices:
        if choice.lower() == wanted:
            return choice
    raise bad_value(definition.name, text, " or ".join(definition.choices))


_READERS: Mapping[OptionKind, Callable[[OptionDefinition, str], Any]] = {
    OptionKind.TEXT: lambda _, text: text,
    OptionKind.SECRET: lambda _, text: text,
    OptionKind.SECRET_PATH: lambda _, text: text,
    OptionKind.SECRET_VARIABLE: lambda _, text: text,
    OptionKind.OFFSETS: lambda _, text: text,
    OptionKind.TIMESTAMP: lambda _, text: text,
    OptionKind.COUNT: lambda d, text: parse_count(d.name, text, d.minimum),
    OptionKind.BYTES: lambda d, text: parse_bytes(d.name, text, d.minimum),
    OptionKind.DURATION: lambda d, text: parse_duration_ms(d.name, text),
    OptionKind.BOOLEAN: _read_boolean,
    OptionKind.CHOICE: _read_choice,
}


def _check_quorums(values: Mapping[str, Any]) -> None:
    e, qw, qa = values["ensembleSize"], values["writeQuorumSize"], values["ackQuorumSize"]
    if not e >= qw >= qa:
        raise InvalidArgumentError(
            "quorums do not fit each other",
            value=f"ensembleSize={e}, writeQuorumSize={qw}, ackQuorumSize={qa}",
            remedy="choose ensembleSize ≥ writeQuorumSize ≥ ackQuorumSize",
        )


def _check_trigger(values: Mapping[str, Any]) -> None:
    least, most = values["minEntriesPerTrigger"], values["maxEntriesPerTrigger"]
    if least is not None and most is not None and least > most:
        raise InvalidArgumentError(
            "a micro-batch cannot wait for more entries than it may take",
            value=f"minEntriesPerTrigger={least}, maxEntriesPerTrigger={most}",
            remedy="choose minEntriesPerTrigger ≤ maxEntriesPerTrigger",
        )


def _metadata_timeout_ms(given: int | None, *, is_stream: bool) -> int:
    if given is None:
        return STREAM_METADATA_TIMEOUT_MS if is_stream else BATCH_METADATA_TIMEOUT_MS
    return given


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise bad_value("columns", text, "names of columns, each once, with commas between them")
    return names


def _max_entry_bytes(given: int | None) -> int | None:
    if given is not None and given > ENTRY_BYTES_MAX:
        raise bad_value("maxEntryBytes", str(given), f"at most {ENTRY_BYTES_MAX}, which every reader can fetch")
    return given


def _small_task_bytes(given: int) -> int:
    if given > SMALL_TASK_BYTES_MAX:
        raise bad_value("smallTaskBytes", str(given), f"at most {SMALL_TASK_BYTES_MAX}: the driver holds them all")
    return given


def _check_read_mode(mode: str, selection: Selection, use: Use | None) -> None:
    """Check that ``readMode`` fits the selection and the use. Fencing ends a writer, so only a batch that names ledgers
    by id may request it (RULES K2). The entries that a quorum holds above the LAC are not certain (RULES P15). Logs do
    not need them, because their writers send explicit LACs. Topics have no other mode than ``lac`` and ``quorum``.
    Raises InvalidArgumentError."""
    if mode == "lac" or use is Use.WRITE or (mode == "quorum" and isinstance(selection, TopicSelection)):
        return
    if isinstance(selection, TopicSelection):
        raise InvalidArgumentError(
            f"readMode={mode} is not for topics of Pulsar",
            value=str(selection),
            remedy="leave it out: a read never disturbs a broker; to see the last messages of an idle topic, give "
            "pulsarAdminUrl or readMode=quorum",
        )
    if use is Use.STREAM:
        raise InvalidArgumentError(
            f"readMode={mode} is not for a stream",
            value=str(selection),
            remedy="leave it out: a stream follows the writer",
        )
    if mode == "fence" and not isinstance(selection, LedgerSelection):
        raise InvalidArgumentError(
            "readMode=fence needs ledgerId or ledgerIds",
            value=str(selection),
            remedy="name the ledgers to fence with option ledgerId or ledgerIds, in a batch; streams never fence",
        )
    if mode == "quorum" and not isinstance(selection, LedgerSelection):
        raise InvalidArgumentError(
            "readMode=quorum needs ledgerId, ledgerIds or topics of Pulsar",
            value=str(selection),
            remedy="leave it out: the writer of a log sends its LAC to the bookies",
        )


def _topics(
    texts: Mapping[str, str], values: Mapping[str, Any], selection: Selection, use: Use | None
) -> TopicOptions | None:
    """Return the options of topics, or None if none are selected. Raises InvalidArgumentError for a write to topics."""
    if use is Use.WRITE:
        if isinstance(selection, TopicSelection):
            raise InvalidArgumentError(
                "Spark does not write to topics of Pulsar: a broker owns their ledgers",
                value=str(selection),
                remedy='write with Pulsar\'s own client or connector; for a log of this cluster .save("events") or '
                "option log",
            )
        return None
    check_not_for_topics(texts, selection)
    if not isinstance(selection, TopicSelection):
        return None
    return topic_options(texts, values, selection, is_stream=use is Use.STREAM)


def _starting(texts: Mapping[str, str], selection: Selection, use: Use | None) -> Bound:
    bound = _bound(texts, "startingOffsets", "startingEntryId", selection)
    if "startingTimestamp" in texts:
        return AT_EARLIEST
    if bound is None:
        return AT_LATEST if use is Use.STREAM else AT_EARLIEST
    if bound.has(LATEST) and use is Use.READ:
        raise bad_value("startingOffsets", texts["startingOffsets"], "earliest or JSON: a batch from latest is empty")
    return bound


def _time(texts: Mapping[str, str], option: str, selection: Selection) -> Bound | None:
    if option not in texts:
        return None
    side = option.removesuffix("Timestamp")
    for other in (f"{side}Offsets", f"{side}EntryId"):
        if other in texts:
            raise InvalidArgumentError(f"{option} and {other} exclude each other", remedy="keep one of them")
    if isinstance(selection, LedgerSelection):
        raise InvalidArgumentError(
            f"{option} needs logs: a ledger has one time for all its entries",
            value=str(selection),
            remedy=f"use {side}Offsets, or read the log that lists the ledger",
        )
    return parse_times(option, texts[option], selection)


def _ending(texts: Mapping[str, str], selection: Selection) -> Bound:
    bound = _bound(texts, "endingOffsets", "endingEntryId", selection)
    if bound is not None and bound.has(EARLIEST):
        raise bad_value("endingOffsets", texts["endingOffsets"], "latest or JSON: a batch to earliest is empty")
    return AT_LATEST if bound is None else bound


def _bound(texts: Mapping[str, str], offsets: str, entry_id: str, selection: Selection) -> Bound | None:
    if entry_id not in texts:
        return parse_bound(offsets, texts[offsets], selection) if offsets in texts else None
    if offsets in texts:
        raise InvalidArgumentError(f"{offsets} and {entry_id} exclude each other", remedy=f"keep {offsets}")
    if not isinstance(selection, LedgerSelection) or len(selection.ledger_ids) != 1:
        raise InvalidArgumentError(f"{entry_id} needs one ledger", value=str(selection), remedy=f"use {offsets}")
    (source,) = selection.sources
    return Bound(EARLIEST, {source.key: parse_count(entry_id, texts[entry_id], 0)})
