# SPDX-License-Identifier: Apache-2.0
"""``bk topic``: topics of Apache Pulsar, read from the ledgers that hold them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bk_cli import options, output
from bk_cli.access import Access, access
from bk_core.cluster.payloads import payload_json, payload_text
from bk_core.protocol.config import QUORUM_SETTLE_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from bk_core.pulsar.cluster import PulsarAccess
    from bk_core.pulsar.model.managed_ledger import Cursor
    from bk_core.pulsar.offloaded.access import OffloadStorage, ReadPriority
    from bk_core.pulsar.topic import PartitionInfo, TopicInfo

_ENDS = {
    "closed": "its last ledger is closed",
    "lac": "the LAC of the bookies; later messages may exist (--admin-url)",
    "quorum": "an ack quorum of bookies has it, above their LAC (--quorum)",
    "broker": "from the broker",
    "terminated": "the topic was terminated there",
}
"""The text that explains each source of the end of a topic."""


@click.group()
def topic() -> None:
    """Topics of Apache Pulsar: inspect and read them, without a broker. No command changes anything."""


def _pulsar(*, broker: bool, storage: bool = False) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Add the options for Pulsar's metadata to a command, as one argument ``pulsar``. ``broker`` adds the options for
    its broker, ``storage`` those for the objects of offloaded ledgers."""

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(command)
        def run(
            *,
            pulsar_metadata_uri: str,
            admin_url: str = "",
            admin_token: str = "",
            admin_ca: str = "",
            offload_uri: str = "",
            offload_endpoint: str = "",
            offload_region: str = "",
            offload_credentials: str = "",
            **given: object,
        ) -> object:
            from bk_core.pulsar.cluster import PulsarAccess

            said = PulsarAccess(
                metadata_uri=pulsar_metadata_uri,
                admin_url=admin_url,
                token_path=admin_token,
                ca_path=admin_ca,
                offload=_storage(offload_uri, offload_endpoint, offload_region, offload_credentials),
            )
            return command(pulsar=said, **given)

        made: Callable[..., object] = run
        for option in (*(_STORAGE if storage else ()), *(_BROKER if broker else ())):
            made = option(made)
        return click.option(
            "--pulsar-metadata-uri",
            default="",
            show_default=False,
            metavar="URI",
            help="The URI of Pulsar's metadata (zk://host:2181/path).  [default: beside the ledgers]",
        )(made)

    return decorate


_BROKER: tuple[Callable[[Callable[..., object]], Callable[..., object]], ...] = (
    click.option(
        "--admin-ca", default="", show_default=False, metavar="FILE", help="Certificates to trust at --admin-url."
    ),
    click.option(
        "--admin-token", default="", show_default=False, metavar="FILE", help="A file with a token for --admin-url."
    ),
    click.option(
        "--admin-url",
        default="",
        show_default=False,
        metavar="URL",
        help="A broker's admin port (http://host:8080), which knows the end of a topic. Without it the last messages "
        "of an idle topic may be missing.",
    ),
)
_STORAGE: tuple[Callable[[Callable[..., object]], Callable[..., object]], ...] = (
    click.option(
        "--offload-credentials",
        default="",
        show_default=False,
        metavar="FILE",
        help="Credentials of the object storage, in lines name=value: access_key, secret_key, session_token, "
        "azure_account, azure_key. The names of AWS's file of shared credentials fit, too.  "
        "[default: as the cloud's SDK finds them]",
    ),
    click.option(
        "--offload-region",
        default="",
        show_default=False,
        metavar="REGION",
        help="The region of the bucket.  [default: as in the topic's record]",
    ),
    click.option(
        "--offload-endpoint",
        default="",
        show_default=False,
        metavar="URL",
        help="The address of the object storage (http://host:9000).  [default: as in the topic's record]",
    ),
    click.option(
        "--offload-uri",
        default="",
        show_default=False,
        metavar="URI",
        help="The folder or bucket with the offloaded objects (file:///mnt/copy, s3://bucket?region=eu-1).  "
        "[default: as in the topic's record]",
    ),
)


def _storage(uri: str, endpoint: str, region: str, credentials: str) -> OffloadStorage:
    """Return how the objects of offloaded ledgers are read. Raises InvalidArgumentError."""
    from bk_core.access.secret_files import secret_of_file
    from bk_core.pulsar.offloaded.access import OffloadStorage

    given = OffloadStorage(uri=uri, endpoint=endpoint, region=region)
    if not credentials:
        return given
    option = "--offload-credentials"
    text = secret_of_file(credentials, option).decode("utf-8", "replace")
    return given.with_credentials(text, f"the file of {option}")


def _keys_option(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, bytes]:
    """Return the private keys of these files, by name."""
    found = dict[str, bytes]()
    for each in given:
        name, _, path = each.partition("=")
        if not name or not path:
            raise click.BadParameter(f"{each!r} is not NAME=FILE", ctx, param)
        try:
            found[name] = Path(path).read_bytes()
        except OSError as error:
            raise click.BadParameter(f"{path}: {error.strerror or error}", ctx, param) from error
    return found


def _schema_option(ctx: click.Context, param: click.Parameter, given: str) -> str | int:
    if given in ("bytes", "latest"):
        return given
    if given.isascii() and given.isdigit():
        return int(given)
    raise click.BadParameter(f"{given!r} is not bytes, latest or a number", ctx, param)


@topic.command("list")
@click.argument("namespace", required=False)
@click.option("--system", is_flag=True, help="Also list the topics that brokers use internally.")
@_pulsar(broker=False)
@access()
@options.as_json
def list_topics(namespace: str | None, system: bool, pulsar: PulsarAccess, access: Access, as_json: bool) -> None:
    """List the topics of a NAMESPACE (tenant/namespace), or of all namespaces."""
    with access.client() as bookkeeper:
        found = [each for each in bookkeeper.topics(namespace, access=pulsar) if system or not each[0].is_system]
    if as_json:
        for name, partitions in found:
            output.print_json({"topic": str(name), "partitions": partitions})
        return
    rows = [(str(name), "-" if partitions is None else partitions) for name, partitions in found]
    output.print_table(("topic", "partitions "), rows)


@topic.command("show")
@click.argument("name")
@click.option("--ledgers", "with_ledgers", is_flag=True, help="Also list every ledger.")
@_pulsar(broker=True)
@access(password=True)
@options.as_json
def show(name: str, with_ledgers: bool, pulsar: PulsarAccess, access: Access, as_json: bool) -> None:
    """Show a topic's partitions, ledgers, subscriptions, schema and end."""
    with access.topic(name, pulsar) as found:
        info, schemas = found.info(), found.schemas()
    shown = [{"version": each.version, "type": each.kind, "deleted": each.deleted} for each in schemas]
    if as_json:
        return output.print_json({**_as_object(info), "schemas": shown})
    output.print_facts(
        {
            "topic": str(info.topic),
            "partitions": len(info.partitions) if info.is_partitioned else "none",
            "schema": ", ".join(f"{each['type']} (version {each['version']})" for each in shown) or "none",
        }
    )
    output.print_line()
    output.print_table(
        ("topic", "ledgers ", "entries ", "bytes ", "last entry", "the end is"), map(_part_row, info.partitions)
    )
    cursors = [(str(part.topic), name, str(at.mark_delete)) for part in info.partitions for name, at in _cursors(part)]
    if cursors:
        output.print_line()
        output.print_table(("topic", "subscription", "acknowledged to"), cursors)
    if with_ledgers:
        output.print_line()
        columns = ("topic", "ledger ", "entries ", "bytes ", "closed", "offloaded by")
        output.print_table(columns, (row for part in info.partitions for row in _ledger_rows(part)))


@topic.command("explain")
@click.argument("name")
@click.argument("message_id", required=False)
@_pulsar(broker=True, storage=True)
@access(password=True)
@options.as_json
def explain(name: str, message_id: str | None, pulsar: PulsarAccess, access: Access, as_json: bool) -> None:
    """Explain where a topic begins and ends, and why; or where a message is, and why a read shows it or does not.

    MESSAGE_ID is ledger:entry, or ledger:entry:partition:batch-index as "bk topic read" prints it.
    """
    from bk_cli.explain.topic_explained import show_message, show_topic

    if message_id is None:
        show_topic(access, name, pulsar, as_json=as_json)
    else:
        show_message(access, name, message_id, pulsar, as_json=as_json)


@topic.command("read")
@click.argument("name")
@click.option("--from", "start", metavar="LEDGER:ENTRY", help="The first entry to read.  [default: the earliest one]")
@click.option("--subscription", metavar="NAME", help="Begin at the position of this subscription, without moving it.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this number of messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages until interrupted.")
@click.option("--compacted", is_flag=True, help="In the compacted part, read only the last message of each key.")
@click.option("--uncommitted", is_flag=True, help="Also read messages of open and aborted transactions.")
@click.option("--skip-corrupt", is_flag=True, help="Leave out entries that are not messages, and log them.")
@click.option(
    "--private-key",
    "private_keys",
    multiple=True,
    metavar="NAME=FILE",
    callback=_keys_option,
    help="A private key in PEM for messages that are encrypted for NAME; * fits every name.",
)
@click.option("--raw", is_flag=True, help="Write the bytes of each message and a line feed, nothing else.")
@click.option(
    "--schema",
    "topic_schema",
    default="bytes",
    show_default=True,
    metavar="bytes|latest|VERSION",
    callback=_schema_option,
    help="Decode values by the topic's schema: its newest version, or a version by its number.",
)
@click.option(
    "--quorum",
    is_flag=True,
    help="Also read the last messages of an idle topic, which an ack quorum of bookies has. One of them may vanish if "
    "the broker was paused for longer than --quorum-settle-ms.",
)
@click.option(
    "--quorum-settle-ms",
    type=click.IntRange(min=1000),
    default=QUORUM_SETTLE_MS,
    show_default=True,
    help="How long --quorum waits between its two looks.",
)
@click.option(
    "--offloaded-read-priority",
    type=click.Choice(["bookkeeper-first", "tiered-storage-first"]),
    # A host where someone looks into a topic rarely has credentials for its object storage.
    default="bookkeeper-first",
    show_default=True,
    help="The source of ledgers that both bookies and object storage have.",
)
@_pulsar(broker=True, storage=True)
@access(password=True)
@options.as_json
def read(
    name: str,
    start: str | None,
    subscription: str | None,
    limit: int | None,
    follow: bool,
    compacted: bool,
    uncommitted: bool,
    skip_corrupt: bool,
    private_keys: dict[str, bytes],
    raw: bool,
    topic_schema: str | int,
    quorum: bool,
    quorum_settle_ms: int,
    offloaded_read_priority: ReadPriority,
    pulsar: PulsarAccess,
    access: Access,
    as_json: bool,
) -> None:
    """Print the messages of a topic in order, partition after partition."""
    if follow and compacted:
        raise click.UsageError("--compacted cannot be used with --follow")
    if start is not None and subscription is not None:
        raise click.UsageError("--from and --subscription exclude each other")
    if raw and topic_schema != "bytes":
        raise click.UsageError("--raw writes bytes: it cannot be used with --schema")
    how: dict[str, Any] = {
        "topic_schema": topic_schema,
        "isolation": "read_uncommitted" if uncommitted else "read_committed",
        "corrupt": "skip" if skip_corrupt else "fail",
    }
    pulsar = replace(
        pulsar,
        private_keys=private_keys or None,
        quorum_settle_ms=quorum_settle_ms if quorum else None,
        offload=replace(pulsar.offload, read_priority=offloaded_read_priority),
    )
    with access.topic(name, pulsar) as found:
        begin = start if subscription is None else found.subscription(subscription)
        if follow:
            batches: Iterator[pa.RecordBatch] = found.tail(begin, **how)
        else:
            batches = found.read(begin, compacted=compacted, **how)
        left = limit
        for batch in batches:
            part = batch if left is None else batch.slice(0, left)
            if topic_schema == "bytes":
                _print_messages(part, raw, as_json)
            else:
                _print_decoded(part, as_json)
            left = None if left is None else left - part.num_rows
            if left == 0:
                break


def _as_object(info: TopicInfo) -> dict[str, object]:
    return {
        "topic": str(info.topic),
        "partitions": len(info.partitions) if info.is_partitioned else None,
        "parts": [_part_object(each) for each in info.partitions],
    }


def _part_object(part: PartitionInfo) -> dict[str, object]:
    return {
        "topic": str(part.topic),
        "last": None if part.end.last is None else str(part.end.last),
        "endFrom": part.end.source,
        "terminated": part.is_terminated,
        "subscriptions": {name: str(cursor.mark_delete) for name, cursor in _cursors(part)},
        "ledgers": [
            {
                "ledgerId": each.ledger_id,
                "entries": None if each.is_open else each.entries,
                "bytes": None if each.is_open else each.bytes,
                "closedMs": each.closed_ms or None,
                "offloadedBy": each.offloaded_by or None,
                "inBookies": each.is_in_bookies,
            }
            for each in part.ledgers
        ],
    }


def _cursors(part: PartitionInfo) -> list[tuple[str, Cursor]]:
    return sorted(part.cursors.items())


def _part_row(part: PartitionInfo) -> tuple[object, ...]:
    closed = [each for each in part.ledgers if not each.is_open]
    more = "+" if len(closed) < len(part.ledgers) else ""
    return (
        str(part.topic),
        len(part.ledgers),
        f"{sum(each.entries for each in closed):,}{more}",
        f"{output.in_words(sum(each.bytes for each in closed))}{more}",
        "-" if part.end.last is None else str(part.end.last),
        _ENDS[part.end.source],
    )


def _ledger_rows(part: PartitionInfo) -> Iterator[tuple[object, ...]]:
    for each in part.ledgers:
        sizes = (
            ("-", "-", "open")
            if each.is_open
            else (f"{each.entries:,}", output.in_words(each.bytes), output.moment(each.closed_ms))
        )
        by = each.offloaded_by or "-"
        yield (str(part.topic), each.ledger_id, *sizes, by if each.is_in_bookies else f"{by}; not in bookies")


def _print_messages(batch: pa.RecordBatch, raw: bool, as_json: bool) -> None:
    if raw:
        output.print_bytes(b"".join((value or b"") + b"\n" for value in batch.column("value").to_pylist()))
        return
    for message, value in zip(_messages(batch), batch.column("value").to_pylist(), strict=True):
        if as_json:
            output.print_json({**message, "value": None if value is None else payload_json(value)})
        else:
            text = "(null)" if value is None else payload_text(value)
            output.print_line(f"{message['messageId']}\t{text}")


def _print_decoded(batch: pa.RecordBatch, as_json: bool) -> None:
    """Print messages whose values became columns. The value is an object of these columns, or the one column
    ``value``."""
    kinds = {field.name: field.type for field in batch.schema if field.name not in _OF_MESSAGES}
    rows = batch.select(list(kinds)).to_pylist()
    for message, row in zip(_messages(batch), rows, strict=True):
        plain = {name: _plain(each, kinds[name]) for name, each in row.items()}
        value = plain["value"] if list(plain) == ["value"] else plain
        if as_json:
            output.print_json({**message, "value": value})
        else:
            output.print_line(f"{message['messageId']}\t{json.dumps(value, ensure_ascii=False)}")


_OF_MESSAGES = frozenset({"__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties"})


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value of this type in the types of JSON: bytes as :func:`payload_json`, maps as objects, others as
    text."""
    from pyarrow import types

    if isinstance(value, dict):
        return {name: _plain(each, kind.field(name).type) for name, each in value.items()}
    if isinstance(value, list):
        if types.is_map(kind):
            return {str(key): _plain(each, kind.item_type) for key, each in value}
        return [_plain(each, kind.value_type) for each in value]
    if isinstance(value, bytes):
        return payload_json(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _messages(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each message as an object for JSON, without its value."""
    from bk_core.pulsar.model.message_id import MessageId

    for row in batch.select(sorted(_OF_MESSAGES)).to_pylist():
        yield {
            "messageId": str(MessageId.deserialize(row["__messageId"])),
            "topic": row["__topic"],
            "publishTimeMs": _ms(row["__publishTime"]),
            "eventTimeMs": _ms(row["__eventTime"]),
            "key": None if row["__key"] is None else payload_json(row["__key"]),
            "properties": dict(row["__messageProperties"]),
        }


def _ms(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)
