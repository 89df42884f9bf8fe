# SPDX-License-Identifier: Apache-2.0
"""Messages that only Spark users see, built from :mod:`bk_core.errors` (RULES E1). Spark shows the last line of a
Python traceback, so each message is one line that says what to type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from bk_core.errors import InvalidArgumentError, PackageMismatchError

SHOWN_MAX = 10
"""The maximum number of names in an error."""
_TOPICS = 'log, or logs for several: .load("events"), .load(["a", "b"])'
KAFKAS: Mapping[str, str] = {
    "kafka.bootstrap.servers": 'metadataServiceUri, for instance "zk://host:2181/ledgers": the bookies are found there',
    "subscribe": _TOPICS,
    "subscribepattern": "logPattern",
    "assign": "log or logs: they have no partitions; startingOffsets chooses a part",
    "startingoffsetsbytimestampstrategy": "none: startingTimestamp after the newest row begins at the end",
    "includeheaders": "codec=envelope, whose column headers is always there",
    "groupidprefix": "none: there are no consumer groups, the checkpoint has a query's position",
    "kafka.group.id": "none: there are no consumer groups, the checkpoint has a query's position",
    "kafkaconsumer.polltimeoutms": "bookkeeper.readTimeoutMs",
    "fetchoffset.numretries": "metadataTimeout",
    "fetchoffset.retryintervalms": "metadataTimeout",
    "kafka.ssl.truststore.location": "tls.ca.path, a file in PEM",
    "kafka.ssl.keystore.location": "tls.certificate.path and tls.key.path, files in PEM",
    "kafka.ssl.endpoint.identification.algorithm": "tls.endpoint.identification: https or none",
    "kafka.max.request.size": "maxEntryBytes",
    "kafka.compression.type": "compression, with codec=arrow",
    "kafka.acks": "ackQuorumSize: the number of bookies that must have an entry on disk before it is confirmed",
}
"""Options of spark-sql-kafka, in lower case, and their counterparts here (docs/coming-from-kafka.md)."""


def see(heading: str, page: str = "spark.md") -> str:
    """Return the part of a message that names the page to read."""
    return f"see docs/{page}#{heading} of project pyspark-bookkeeper"


def shown(names: Iterable[str], most: int = SHOWN_MAX) -> str:
    """Return names for a message: the first few, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def unknown_option(name: str, known: Iterable[str]) -> InvalidArgumentError:
    """Return the error for an option that does not exist. It names the nearest option, or for one of Kafka's options
    the counterpart here."""
    if (kafkas := _kafkas(name.lower())) is not None:
        return InvalidArgumentError("no such option, it is one of Kafka's", value=name, remedy=kafkas)
    near = get_close_matches(name.lower(), {k.lower(): k for k in known}, n=1, cutoff=0.6)
    spelled = {k.lower(): k for k in known}
    remedy = f"did you mean {spelled[near[0]]}?" if near else f"{see('options')} for those that there are"
    return InvalidArgumentError("no such option", value=f"{name}", remedy=remedy)


def _kafkas(name: str) -> str | None:
    more = see("options-of-reads-and-streams", "coming-from-kafka.md")
    if name in KAFKAS:
        return f"here it is {KAFKAS[name]}; {more}"
    return f"the client's own settings are called bookkeeper.*; {more}" if name.startswith("kafka.") else None


def bad_value(name: str, value: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"option {name} has a bad value", value=f"{name}={value!r}", remedy=f"expected {expected}"
    )


def no_value_column(columns: Sequence[tuple[str, str]], target: str) -> InvalidArgumentError:
    """Return the error for a DataFrame that is not exactly one binary or string column ``value``. It prints the
    ``select`` to paste. ``columns`` are (name, Spark type) in order; ``target`` names the log to write."""
    shown = ", ".join(f"{name} {kind}" for name, kind in columns) or "no columns"
    return InvalidArgumentError(
        f"{target} takes one column, value BINARY or STRING",
        value=f"the DataFrame has {shown}",
        remedy=f"write {_select_to_paste(columns)}, or another codec: {see('codecs')}",
    )


def _select_to_paste(columns: Sequence[tuple[str, str]]) -> str:
    kinds = dict(columns)
    if kinds.get("value") in ("binary", "string"):
        return 'df.select("value")'
    if len(columns) == 1:
        name, kind = columns[0]
        if kind in ("binary", "string"):
            return f'df.selectExpr("`{name}` AS value")'
        if kind.startswith(("struct", "map", "array")):
            return f'df.selectExpr("to_json(`{name}`) AS value")'
        return f'df.selectExpr("CAST(`{name}` AS STRING) AS value")'
    return 'df.selectExpr("to_json(struct(*)) AS value")'


def package_mismatch(planned: str, here: str) -> PackageMismatchError:
    """Return the error for a worker that runs another version of the package than the driver."""
    return PackageMismatchError(
        "this Spark worker has another version of pyspark-bookkeeper than the driver",
        value=f"driver {planned}, worker {here}",
        remedy=f"install the same version on every node, or ship one archive with spark.archives: {see('installing')}",
    )
