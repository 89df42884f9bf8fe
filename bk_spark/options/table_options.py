# SPDX-License-Identifier: Apache-2.0
"""Keeps the options of ``CREATE TABLE … USING bookkeeper OPTIONS (…)``, which Spark forgets. Pure.

Spark asks for the columns once, with the options, when it creates a table. Every later query gets the stored columns
with their metadata and no options. So the options travel as metadata of the first column.

Metadata is public and follows a column into other DataFrames and tables. Hence three limits. Only options on a list are
kept, never a secret and never one that could end a writer (RULES K2). They hold for exactly the columns that the table
was created with, so that a table made from some of these does not read the first table's log. And a write takes none of
them, because the columns of ``INSERT INTO a SELECT … FROM b`` may carry the options of ``b``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_spark.options.options import CLIENT_PREFIX, OPTIONS, SPARKS_OWN, SPARKS_OWN_PREFIX, OptionKind, normalise
from bk_spark.options.selection import SELECTORS

METADATA_KEY = "bookkeeper.table"
VERSION = 1

_STARTS = ("startingOffsets", "startingTimestamp", "startingEntryId", "subscription")
_ENDS = ("endingOffsets", "endingTimestamp", "endingEntryId")

KEPT = (*(each.name for each in OPTIONS if each.kept), "path")
"""The options that are kept; CREATE TABLE has one path."""

REFUSED: Mapping[str, str] = {
    **{
        each.name: f'every read gives its own: spark.read.option("{each.name}", …).table("t")'
        for each in OPTIONS
        if each.kind in (OptionKind.SECRET, OptionKind.SECRET_PATH, OptionKind.SECRET_VARIABLE)
    },
    "readMode": 'the read that wants it gives it: spark.read.option("readMode", …).table("t")',
    "quorumSettleMs": "the read that gives readMode=quorum gives it",
}
"""Read options that a table must not hold, each with what to do instead: those that could end a writer, secrets, and
the names of a secret's file or variable. If a table held such a name, its maker would choose which file of a reading
user is sent to which cluster."""

OF_WHO_READS = (
    "token.path",
    "zookeeper.auth.path",
    "pulsarAdmin.token.path",
    "pulsarOffload.uri",
    "pulsarOffload.endpoint",
    "pulsarOffload.region",
)
"""Read options that CREATE TABLE accepts and the table does not keep; every read gives its own. The client sends the
contents of these files to the cluster. If a table kept the names, all its readers would send their files to a cluster
that the table's maker chose. An address of object storage likewise gets requests with the reader's credentials."""

_SPELLED = {normalise(name): d.name for d in OPTIONS for name in (d.name, *d.aliases)} | {"path": "path"}
_MADE_BY_SPARK = "provider"  # Spark adds this key to the options when it creates a table, and only then
_OF_A_QUERY = {"checkpointlocation", "queryname"}


def creates_table(given: Mapping[str, str]) -> bool:
    """Return whether Spark asks for the columns of a table that it is about to create."""
    return _MADE_BY_SPARK in {normalise(key) for key in given}


def without_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Return ``given`` for a new table, without its LOCATION and without the user's TBLPROPERTIES that this format does
    not know. Spark mixes TBLPROPERTIES with OPTIONS, but repeats the OPTIONS as ``option.…``."""
    folded = {normalise(key) for key in given}
    known = (_SPELLED.keys() | SPARKS_OWN) - {"path"}
    return {
        key: text
        for key, text in given.items()
        if (name := normalise(key)) in known
        or SPARKS_OWN_PREFIX + name in folded
        or name.startswith((SPARKS_OWN_PREFIX, CLIENT_PREFIX))
    }


def columns_of_new_table(given: Mapping[str, str], schema: Any) -> Any:
    """Return ``schema``, a StructType, with the options to keep in the metadata of its first column, as JSON. Write
    options are left out. Raises InvalidArgumentError for a read option that a table must not hold (``REFUSED`` and
    ``bookkeeper.*``)."""
    from pyspark.sql.types import StructField, StructType

    data = {"columns": _signature(schema), "options": _to_keep(given), "v": VERSION}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    first, *rest = schema.fields
    return StructType(
        [StructField(first.name, first.dataType, first.nullable, {**first.metadata, METADATA_KEY: text}), *rest]
    )


def for_read(given: Mapping[str, str], schema: Any) -> Mapping[str, str]:
    """Return the options of a read of ``schema``: its own, and the table's options that the read does not give.

    A read that names a cluster takes nothing from the table. A read that names a log or ledgers takes neither the
    table's selection nor its bounds. Raises InvalidArgumentError if there are no options at all, and if the kept
    options cannot be used.
    """
    own = {_SPELLED.get(normalise(key), normalise(key)) for key in given}
    if "metadataServiceUri" in own:
        return given
    kept = _kept_in(schema)
    if not given and not kept:
        raise _table_without_options()
    replaced = {*own, *(name for group in (SELECTORS, _STARTS, _ENDS) if own & set(group) for name in group)}
    if own & set(SELECTORS):
        replaced |= {*_STARTS, *_ENDS}
    return {**{name: text for name, text in kept.items() if name not in replaced}, **given}


def check_write(given: Mapping[str, str]) -> None:
    """Check that a write has other options than those of a query. Without them it goes to a table by name. Spark has
    forgotten the table's options, and the columns' metadata may come from another table. Raises
    InvalidArgumentError."""
    if {normalise(key) for key in given} - _OF_A_QUERY:
        return
    raise InvalidArgumentError(
        "the write has no options, and Spark does not hand over those of a table",
        remedy="INSERT INTO t WITH (metadataServiceUri = 'zk://host:2181/ledgers', log = 'events') SELECT …, or "
        '.option("metadataServiceUri", …).option("log", …), or insert into a temporary view made with OPTIONS',
    )


def _to_keep(given: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    for key, text in given.items():
        folded = normalise(key)
        name = _SPELLED.get(folded, folded)
        if folded.startswith(CLIENT_PREFIX):
            raise _not_for_tables(key, 'every read gives its own: spark.read.option(…, …).table("t")')
        if name in REFUSED and text.strip().lower() not in ("", "lac"):
            raise _not_for_tables(name, REFUSED[name])
        if name in KEPT:
            kept[name] = text
    return kept


def _kept_in(schema: Any) -> dict[str, str]:
    """Return the options in the columns' metadata. Raises InvalidArgumentError if :data:`KEPT` does not list one of
    them, or if the columns are not those of the table."""
    texts = [text for field in schema.fields if (text := (field.metadata or {}).get(METADATA_KEY)) is not None]
    if not texts:
        return {}
    try:
        data = json.loads(texts[0])
        options = {str(name): str(value) for name, value in data["options"].items()}
        columns = data["columns"]
    except (TypeError, ValueError, KeyError, AttributeError):
        raise _unusable(texts[0]) from None
    if data.get("v") != VERSION or not set(options) <= set(KEPT):
        raise _unusable(texts[0])
    if len(texts) > 1 or columns != _signature(schema):
        raise _other_columns(columns if isinstance(columns, list) else [], _signature(schema))
    return options


def _signature(schema: Any) -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields]


def _unusable(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the options kept with the table cannot be used",
        value=text[:200],
        remedy="drop the table and create it again: its rows are in BookKeeper and stay",
    )


def _other_columns(kept: list[str], now: list[str]) -> InvalidArgumentError:
    more = [column for column in now if column not in kept]
    less = [column for column in kept if column not in now]
    changes = [f"not there then: {', '.join(more)}"] * bool(more) + [f"not there now: {', '.join(less)}"] * bool(less)
    return InvalidArgumentError(
        "options are kept for exactly the columns that CREATE TABLE made, and these were changed by ALTER TABLE or "
        "copied from another table",
        value="; ".join(changes) or "the columns of several tables, or in another order",
        remedy="drop the table and create it again, its rows are in BookKeeper and stay; or give the read its own "
        "options: SELECT … FROM t WITH (metadataServiceUri = '…', log = '…'), spark.read.option(…).table(\"t\")",
    )


def _not_for_tables(name: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"option {name} cannot be stored in a table", value=name, remedy=remedy)


def _table_without_options() -> InvalidArgumentError:
    return InvalidArgumentError(
        "the read has no options, and Spark does not hand over those of a table with a list of columns",
        remedy="CREATE TABLE t USING bookkeeper OPTIONS (…, columns 'value,offset') without columns, or once for all "
        "reads CREATE VIEW v AS SELECT * FROM t WITH (metadataServiceUri = 'zk://host:2181/ledgers', log = 'events')",
    )
