# SPDX-License-Identifier: Apache-2.0
"""Turns Spark's option strings into :class:`BkOptions`, by the table in ``option_table.py`` (RULES K7). Pure.

Spark gives keys in lower case; ``writeQuorumSize``, ``write_quorum_size`` and ``write-quorum-size`` are the same key.
Options of another use (write options on a read) are checked and ignored, because a temporary view gives its options to
reads and writes alike. The few that would change what a read means are refused (``STREAM_REFUSES``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.position import OFFSET_MAX
from bk_core.units import parse_size, parse_time_ms
from bk_core.wire.lane import ENTRY_BYTES_MAX
from bk_spark.errors import bad_value, fence_from_table, not_built, unknown_option
from bk_spark.options.offsets import AT_EARLIEST, AT_LATEST, EARLIEST, LATEST, Bound, parse_bound
from bk_spark.options.option_table import (
    CLIENT_PREFIX,
    OPTIONS,
    PROTECTED_CLIENT_KEYS,
    SPARKS_OWN,
    SPARKS_OWN_PREFIX,
    STREAM_REFUSES,
    Kind,
    OptionDefinition,
    Use,
)
from bk_spark.options.selection import ColumnSelection, LedgerSelection, LogSelection, Selection, select

BATCH_METADATA_TIMEOUT_MS, STREAM_METADATA_TIMEOUT_MS = 8_000, 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BkOptions:
    """The options of one load or save, checked. Field names are the table's in snake_case; sizes are numbers.

    ``starting`` and ``ending`` have for each source the next entry id or log offset, or EARLIEST or LATEST. With
    ``starting_timestamp`` (milliseconds since 1970) ``starting`` is EARLIEST, and the time decides. ``client_settings``
    are the ``bookkeeper.*`` pairs, sorted; :func:`bk_spark.workers.clients.client_config` reads them.
    """

    metadata_service_uri: str
    metadata_timeout_ms: int
    selection: Selection
    starting: Bound
    ending: Bound
    starting_timestamp: int | None
    read_mode: str
    digest_type: str | None
    max_bytes_per_partition: int
    max_entries_per_partition: int | None
    min_partitions: int | None
    max_entries_per_trigger: int | None
    max_bytes_per_trigger: int
    min_entries_per_trigger: int | None
    max_trigger_delay_ms: int
    on_overwrite: str
    fail_on_data_loss: bool
    txn_app_id: str | None
    txn_version: int | None
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    codec: str
    mixed_codecs: bool
    include_metadata: bool
    columns: tuple[str, ...] | None
    corrupt_entries: str
    null_values: str
    ignore_metadata_columns: bool
    merge_schema: bool
    compression: str
    max_entry_bytes: int | None
    ledger_password: bytes = field(repr=False)
    client_settings: tuple[tuple[str, str], ...] = ()

    @property
    def reads_ledgers(self) -> bool:
        """Whether bare ledgers are selected, not logs."""
        return isinstance(self.selection, LedgerSelection)

    @property
    def log(self) -> str | None:
        """The name of the one log to write; None if column ``log`` of each row names it (RULES K10). Raises
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


def parse_options(given: Mapping[str, str], use: Use | None, *, is_sink: bool = False) -> BkOptions:
    """Check every option and make a :class:`BkOptions`, without I/O. ``use`` None: Spark has not said yet what for.
    ``is_sink``: a stream is written, not a batch. Raises InvalidArgumentError for an unknown, malformed, missing or
    conflicting option, NotBuiltError for a planned one."""
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
    if values["readMode"] == "fence" and any(key.startswith(SPARKS_OWN_PREFIX) for key in by_key):
        raise fence_from_table(str(selection))
    return BkOptions(
        metadata_service_uri=values["metadataServiceUri"],
        metadata_timeout_ms=_metadata_timeout_ms(values["metadataTimeout"], is_stream=is_sink or use is Use.STREAM),
        selection=selection,
        starting=_starting(texts, selection, use),
        ending=_ending(texts, selection),
        starting_timestamp=values["startingTimestamp"],
        read_mode=values["readMode"],
        digest_type=values["digestType"],
        max_bytes_per_partition=values["maxBytesPerPartition"],
        max_entries_per_partition=values["maxEntriesPerPartition"],
        min_partitions=values["minPartitions"],
        max_entries_per_trigger=values["maxEntriesPerTrigger"],
        max_bytes_per_trigger=values["maxBytesPerTrigger"],
        min_entries_per_trigger=values["minEntriesPerTrigger"],
        max_trigger_delay_ms=values["maxTriggerDelay"],
        on_overwrite=values["onOverwrite"],
        fail_on_data_loss=values["failOnDataLoss"],
        txn_app_id=values["txnAppId"],
        txn_version=values["txnVersion"],
        ensemble_size=values["ensembleSize"],
        write_quorum_size=values["writeQuorumSize"],
        ack_quorum_size=values["ackQuorumSize"],
        codec=values["codec"],
        mixed_codecs=values["mixedCodecs"],
        include_metadata=values["includeMetadata"],
        columns=_columns(values["columns"]),
        corrupt_entries=values["corruptEntries"],
        null_values=values["nullValues"],
        ignore_metadata_columns=values["ignoreMetadataColumns"],
        merge_schema=values["mergeSchema"],
        compression=values["compression"],
        max_entry_bytes=_max_entry_bytes(values["maxEntryBytes"]),
        ledger_password=values["ledgerPassword"].encode(),
        client_settings=client,
    )


def normalise(name: str) -> str:
    """``writeQuorumSize``, ``write_quorum_size`` and ``--write-quorum-size`` as one key."""
    return name.replace("_", "").replace("-", "").lower()


def parse_bytes(option: str, text: str) -> int:
    """``128m``, ``1 GiB``, ``1048576``: powers of 1024, at least 1."""
    size = parse_size(text)
    if not size:
        raise bad_value(option, text, "a size such as 128m, 1g or 1048576")
    return size


def parse_duration_ms(option: str, text: str) -> int:
    """``15m``, ``30s``, ``500ms``, ``2h``, or milliseconds as a number alone, as Spark reads durations."""
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise bad_value(option, text, "a duration such as 15m, 30s or 500ms")
    return time_ms


def parse_count(option: str, text: str, minimum: int) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < minimum:
        raise bad_value(option, text, f"a number of at least {minimum}")
    return int(text)


def parse_timestamp(option: str, text: str) -> int:
    """Milliseconds since 1970, or ISO 8601 with a zone; fractions of a millisecond are dropped."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and int(stripped) <= OFFSET_MAX:
        return int(stripped)
    expected = "milliseconds since 1970, or ISO 8601 with a zone such as 2026-01-31T12:00:00Z"
    try:
        at = datetime.fromisoformat(stripped)
    except ValueError:
        raise bad_value(option, text, expected) from None
    if at.tzinfo is None:
        raise bad_value(option, text, f"{expected}; this one has no zone")
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    if since < timedelta():
        raise bad_value(option, text, expected)
    return since // timedelta(milliseconds=1)


def _sort_out(given: Mapping[str, str], use: Use | None) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Texts by the table's names, and the client's pairs."""
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
                raise InvalidArgumentError("an option is given twice", value=f"{name}={texts[name]!r} and {text!r}")
            texts[name] = text
        elif folded not in SPARKS_OWN and not folded.startswith(SPARKS_OWN_PREFIX):
            raise unknown_option(key, [n for d in OPTIONS for n in (d.name, *d.aliases)])
    for name in STREAM_REFUSES.keys() & texts.keys() if use is Use.STREAM else ():
        raise InvalidArgumentError(
            f"option {name} is not for a stream", value=f"{name}={texts[name]!r}", remedy=STREAM_REFUSES[name]
        )
    return texts, tuple(sorted(client))


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
    built = " or ".join(definition.choices)
    if wanted in {choice.lower() for choice in definition.planned}:
        raise not_built(f"{definition.name}={text}", f"{definition.name}={text!r}", f"use {built}")
    raise bad_value(definition.name, text, built)


_FROM_ZERO = ("startingEntryId", "endingEntryId", "txnVersion")


def _read_count(definition: OptionDefinition, text: str) -> int:
    return parse_count(definition.name, text, 0 if definition.name in _FROM_ZERO else 1)


_READERS: Mapping[Kind, Callable[[OptionDefinition, str], Any]] = {
    Kind.TEXT: lambda _, text: text,
    Kind.SECRET: lambda _, text: text,
    Kind.OFFSETS: lambda _, text: text,
    Kind.TIMESTAMP: lambda d, text: parse_timestamp(d.name, text),
    Kind.COUNT: _read_count,
    Kind.BYTES: lambda d, text: parse_bytes(d.name, text),
    Kind.DURATION: lambda d, text: parse_duration_ms(d.name, text),
    Kind.BOOLEAN: _read_boolean,
    Kind.CHOICE: _read_choice,
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


def _check_read_mode(mode: str, selection: Selection, use: Use | None) -> None:
    """Fencing ends a writer, so it must be asked for by ledger id, in a batch (RULES K2)."""
    if mode == "lac" or use is Use.WRITE:
        return
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


def _starting(texts: Mapping[str, str], selection: Selection, use: Use | None) -> Bound:
    bound = _bound(texts, "startingOffsets", "startingEntryId", selection)
    if "startingTimestamp" in texts:
        if bound is not None:
            other = "startingOffsets" if "startingOffsets" in texts else "startingEntryId"
            raise InvalidArgumentError(f"startingTimestamp and {other} exclude each other", remedy="keep one of them")
        if isinstance(selection, LedgerSelection):
            raise InvalidArgumentError(
                "startingTimestamp needs logs: a ledger has one time for all its entries",
                value=str(selection),
                remedy="use startingOffsets, or read the log that lists the ledger",
            )
        return AT_EARLIEST
    if bound is None:
        return AT_LATEST if use is Use.STREAM else AT_EARLIEST
    if bound.has(LATEST) and use is Use.READ:
        raise bad_value("startingOffsets", texts["startingOffsets"], "earliest or JSON: a batch from latest is empty")
    return bound


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
