# SPDX-License-Identifier: Apache-2.0
"""The table of options: the only list of their names, kinds, defaults and meanings. Pure data.

A test compares the list in docs/spark.md with it. To add an option, add one row here and one field of
:class:`bk_spark.options.BkOptions` with the same name in snake_case.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Use(enum.Enum):
    """What Spark wants the options for."""

    READ = "batch read"
    STREAM = "stream"
    WRITE = "batch write"


class Kind(enum.Enum):
    """How an option's text is read."""

    TEXT = "text"
    SECRET = "secret text"
    COUNT = "count"
    BYTES = "bytes"
    DURATION = "duration"
    BOOLEAN = "true or false"
    CHOICE = "choice"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionDefinition:
    """One row of the table. ``choices`` are those built, ``planned`` those that answer BK_NOT_BUILT."""

    name: str
    kind: Kind
    uses: tuple[Use, ...]
    doc: str
    default: str | None = None
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()


_ALL = (Use.READ, Use.STREAM, Use.WRITE)
_READS = (Use.READ, Use.STREAM)

OPTIONS: tuple[OptionDefinition, ...] = (
    OptionDefinition(
        name="metadataServiceUri",
        kind=Kind.TEXT,
        uses=_ALL,
        doc="Required. Where the cluster's metadata is, for instance `zk://localhost:2181/ledgers`.",
    ),
    OptionDefinition(
        name="metadataTimeout",
        kind=Kind.DURATION,
        uses=_ALL,
        doc="How long each step of a load or save (planning, a task, the commit) waits for ZooKeeper. Default: "
        "`8s` for a batch, so that a wrong address is told soon; `1m` for a stream, its source and its sink.",
    ),
    OptionDefinition(name="ledgerId", kind=Kind.TEXT, uses=_READS, doc="The ledger to read. Path form: `ledger:17`."),
    OptionDefinition(
        name="ledgerIds",
        kind=Kind.TEXT,
        uses=_READS,
        doc="Several ledgers, by id and range: `3,5,9-12`, at most 100,000; each is read once, in order of its id.",
    ),
    OptionDefinition(name="log", kind=Kind.TEXT, uses=_ALL, doc="The named log to read or write. Path form: the name."),
    OptionDefinition(
        name="logs",
        kind=Kind.TEXT,
        uses=_READS,
        doc='Several named logs: `a,b`, read in order of their names. Path form: `load(["a","b"])`.',
    ),
    OptionDefinition(
        name="logPattern",
        kind=Kind.TEXT,
        uses=_READS,
        doc="Every log whose whole name matches this regular expression of Python, looked up on the driver: `ev.*`.",
    ),
    OptionDefinition(
        name="ledgerPassword",
        kind=Kind.SECRET,
        uses=_ALL,
        default="",
        doc="Password of the ledger or log, UTF-8. Spark redacts it in its logs and UI.",
    ),
    OptionDefinition(
        name="digestType",
        kind=Kind.CHOICE,
        uses=_ALL,
        choices=("CRC32C", "CRC32", "MAC", "DUMMY"),
        doc="Digest of entries. Reads: compared with the ledger's, an error if it differs. Writes: that of a log which "
        "the write creates (then `CRC32C` if not given).",
    ),
    OptionDefinition(
        name="readMode",
        kind=Kind.CHOICE,
        uses=(Use.READ,),
        default="lac",
        choices=("lac", "closedOnly", "fence"),
        doc="`lac` reads to the last add confirmed and never disturbs a writer. `closedOnly` reads closed ledgers "
        "only: an open one gives no rows, and a log ends where it begins. `fence` recovers and closes the ledgers "
        "first, which ends their writers; needs `ledgerId` or `ledgerIds`, batch only.",
    ),
    OptionDefinition(
        name="startingOffsets",
        kind=Kind.OFFSETS,
        uses=_READS,
        doc='Where to begin, inclusive: `earliest`, `latest` (streams only), `{"events":1000234}` or `{"17":23}`, with '
        "exactly the logs or ledgers that are selected; −2 is earliest, −1 latest. "
        "Default: `earliest` for a batch, `latest` for a stream. A stream that has a checkpoint goes on from there.",
    ),
    OptionDefinition(
        name="endingOffsets",
        kind=Kind.OFFSETS,
        uses=(Use.READ,),
        default="latest",
        doc="Where to end, exclusive: `latest` or JSON as above.",
    ),
    OptionDefinition(
        name="startingTimestamp",
        kind=Kind.TIMESTAMP,
        uses=_READS,
        doc="Where to begin, by time: milliseconds since 1970 or ISO 8601 with a zone, such as `2026-01-31T12:00:00Z`. "
        "Each log begins at a ledger, with some rows that came before and all that came after. Logs only, instead of "
        "`startingOffsets`.",
    ),
    OptionDefinition(
        name="startingEntryId",
        kind=Kind.COUNT,
        uses=_READS,
        doc="Short for `startingOffsets` with one ledger: the first entry to read.",
    ),
    OptionDefinition(
        name="endingEntryId",
        kind=Kind.COUNT,
        uses=(Use.READ,),
        doc="Short for `endingOffsets` with one ledger: the first entry not to read.",
    ),
    OptionDefinition(
        name="maxBytesPerPartition",
        kind=Kind.BYTES,
        uses=_READS,
        default="128m",
        doc="A partition holds about this many payload bytes at most: larger ledgers are split, small ones share one.",
    ),
    OptionDefinition(
        name="maxEntriesPerPartition",
        kind=Kind.COUNT,
        uses=_READS,
        aliases=("maxRecordsPerPartition",),
        doc="Upper bound of entries in a Spark partition.",
    ),
    OptionDefinition(
        name="minPartitions",
        kind=Kind.COUNT,
        uses=_READS,
        doc="Split further to make at least about this many partitions.",
    ),
    OptionDefinition(
        name="maxEntriesPerTrigger",
        kind=Kind.COUNT,
        uses=(Use.STREAM,),
        aliases=("maxOffsetsPerTrigger",),
        doc="Upper bound of entries in a micro-batch (Spark 4.2 and later).",
    ),
    OptionDefinition(
        name="maxBytesPerTrigger",
        kind=Kind.BYTES,
        uses=(Use.STREAM,),
        default="1g",
        doc="Upper bound of payload bytes in a micro-batch, estimated from the average entry; at least one entry "
        "(Spark 4.2 and later).",
    ),
    OptionDefinition(
        name="minEntriesPerTrigger",
        kind=Kind.COUNT,
        uses=(Use.STREAM,),
        aliases=("minOffsetsPerTrigger",),
        doc="Wait for so many entries before the next micro-batch, at most `maxTriggerDelay`. Not for "
        "`availableNow` and `once` (Spark 4.2 and later).",
    ),
    OptionDefinition(
        name="maxTriggerDelay",
        kind=Kind.DURATION,
        uses=(Use.STREAM,),
        default="15m",
        doc="With `minEntriesPerTrigger`: so long after the last micro-batch, the next one takes what there is.",
    ),
    OptionDefinition(
        name="onOverwrite",
        kind=Kind.CHOICE,
        uses=(Use.STREAM,),
        default="fail",
        choices=("fail", "skip"),
        doc="What a stream does when a log was overwritten: `fail`, or `skip`: go on with the rows that replaced the "
        "old ones, without those that it had not read yet.",
    ),
    OptionDefinition(
        name="failOnDataLoss",
        kind=Kind.BOOLEAN,
        uses=_READS,
        default="true",
        doc="`false`: if rows to read were trimmed, or the ledger was deleted, go on from the earliest offset left.",
    ),
    OptionDefinition(
        name="txnAppId",
        kind=Kind.TEXT,
        uses=(Use.WRITE,),
        doc="With `txnVersion`: the job is published once, however often it is run. A stream: the name of its batches, "
        "instead of the query's id.",
    ),
    OptionDefinition(
        name="txnVersion",
        kind=Kind.COUNT,
        uses=(Use.WRITE,),
        doc="Which one of `txnAppId`'s jobs this is, from 0 upwards: the batch id in `foreachBatch`. Not for a stream, "
        "whose versions are its batch ids.",
    ),
    OptionDefinition(
        name="ensembleSize", kind=Kind.COUNT, uses=(Use.WRITE,), default="3", doc="Bookies of each new ledger."
    ),
    OptionDefinition(
        name="writeQuorumSize", kind=Kind.COUNT, uses=(Use.WRITE,), default="3", doc="Bookies that store each entry."
    ),
    OptionDefinition(
        name="ackQuorumSize",
        kind=Kind.COUNT,
        uses=(Use.WRITE,),
        default="2",
        doc="Bookies that must have an entry on disk before it counts as written.",
    ),
    OptionDefinition(
        name="codec",
        kind=Kind.CHOICE,
        uses=_ALL,
        default="raw",
        choices=("raw", "envelope", "json", "arrow"),
        doc="What a row is in an entry. `raw`: the entry's bytes are column `value`. `envelope`: one row of `key`, "
        "`value`, `timestamp` and `headers`. `json`: one object, its members are columns; reading needs `.schema(…)`. "
        "`arrow`: many rows of any columns; the log keeps their schema.",
    ),
    OptionDefinition(
        name="mixedCodecs",
        kind=Kind.BOOLEAN,
        uses=(Use.WRITE,),
        default="false",
        doc="`true`: append with another codec than the log's rows were written with. Such a log is read with `raw` "
        "alone.",
    ),
    OptionDefinition(
        name="includeMetadata",
        kind=Kind.BOOLEAN,
        uses=_READS,
        default="false",
        doc="Adds the columns `entry_length`, `ledger_ctime` and `ledger_closed`, and `row_index` with `codec=arrow`.",
    ),
    OptionDefinition(
        name="columns",
        kind=Kind.TEXT,
        uses=_READS,
        doc="Only these columns, in this order: `offset,value`. The source does not make other columns, nor read what "
        "only they need. Short for a `.schema(…)` of the same columns.",
    ),
    OptionDefinition(
        name="corruptEntries",
        kind=Kind.CHOICE,
        uses=_READS,
        default="fail",
        choices=("fail", "skip", "null"),
        doc="What happens with an entry that was read and cannot be decoded: `fail` ends the query, `skip` leaves it "
        "out, `null` makes a row whose data columns are null. Never hides an entry that cannot be read.",
    ),
    OptionDefinition(
        name="nullValues",
        kind=Kind.CHOICE,
        uses=(Use.WRITE,),
        default="fail",
        choices=("fail", "skip", "empty"),
        doc="What happens with a null `value` in `codec=raw`: `fail` ends the job before anything is published, `skip` "
        "leaves the row out, `empty` writes an entry without bytes. The other codecs keep nulls.",
    ),
    OptionDefinition(
        name="ignoreMetadataColumns",
        kind=Kind.BOOLEAN,
        uses=(Use.WRITE,),
        default="false",
        doc="`true`: leave out columns that a read adds (`ledger_id`, `offset`, …), so that what was read can be "
        "written as it is.",
    ),
    OptionDefinition(
        name="mergeSchema",
        kind=Kind.BOOLEAN,
        uses=(Use.WRITE,),
        default="false",
        doc="With `codec=arrow`, `true`: new nullable columns are added to the log's schema. Rows written before have "
        "nulls there.",
    ),
    OptionDefinition(
        name="compression",
        kind=Kind.CHOICE,
        uses=(Use.WRITE,),
        default="zstd",
        choices=("none", "lz4", "zstd"),
        doc="How `codec=arrow` compresses the columns of an entry.",
    ),
    OptionDefinition(
        name="maxEntryBytes",
        kind=Kind.BYTES,
        uses=(Use.WRITE,),
        doc="Largest entry to write, at most 5 MiB − 1 KiB, which is the default. A larger row ends the job. "
        "`codec=arrow` puts as many rows into an entry as fit, into 1 MiB if this is not given.",
    ),
)

STREAM_REFUSES: Mapping[str, str] = {
    "endingOffsets": "a stream has no end; use a batch read, or trigger(availableNow=True)",
    "endingEntryId": "a stream has no end; use a batch read, or trigger(availableNow=True)",
}
"""Options that would change what a stream means: an error, never ignored."""

CLIENT_PREFIX = "bookkeeper."
PROTECTED_CLIENT_KEYS: Mapping[str, str] = {
    "metadataserviceuri": "metadataServiceUri",
    "password": "ledgerPassword",
    "ledgerpassword": "ledgerPassword",
    "digesttype": "digestType",
    "ensemblesize": "ensembleSize",
    "writequorumsize": "writeQuorumSize",
    "ackquorumsize": "ackQuorumSize",
}

# Keys that Spark itself adds for tables, views and streams. They mean nothing here.
SPARKS_OWN = frozenset(
    {"path", "paths", "provider", "owner", "location", "external", "checkpointlocation", "queryname"}
)
SPARKS_OWN_PREFIX = "option."
