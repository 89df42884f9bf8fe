# SPDX-License-Identifier: Apache-2.0
"""What the kept data of a release holds: ledgers of every kind and logs of every kind, and how to see that they are
whole. Payloads follow from name and number, so that the data itself need not be written down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from bk_core import blocking
from bk_core.access.roles import Line, Role, RolesTable, scope_of
from bk_core.blocking import BookKeeper, LedgerWriter, connect
from bk_core.client import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, LedgerFencedError, NoSuchLedgerError
from bk_core.logs.model.position import LogPosition, StreamOffset, decode_offset, encode_offset
from bk_core.logs.model.upkeep_record import UpkeepRecord, decode_upkeep_record, encode_upkeep_record
from bk_core.metadata import open_store
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import DigestType

PASSWORD = b"release"
LOG_PASSWORD = b"log"
ROLES = RolesTable((Line("CN=ingest,O=Example", Role.WRITER, scope_of("log:orders-*")), Line("CN=admin", Role.ADMIN)))
UPKEEP = UpkeepRecord(
    owner="a worker", session=7, window_ms=1_700_000_000_000, copied_bytes=1, ledgers=2, turn="events"
)
TABLE = pa.table({"id": list(range(200)), "name": [f"row {n}" for n in range(200)]})
WIDER = pa.table({"id": [200, 201], "name": ["x", None], "price": [1.5, None]})


@dataclass
class Kept:
    """What was made. ``ledgers``: by name its id, digest, number of entries, and whether it was left open."""

    ledgers: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: int = -1
    log_start: int = 0
    log_end: int = 0
    position: str = ""
    read_only: str = ""
    marked: int = -1

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def payload(name: str, entry_id: int) -> bytes:
    if name == "large":
        return f"large {entry_id} ".encode() * 20_000
    return f"{name} {entry_id} ".encode() * (1 + entry_id % 9)


def payloads(name: str, first: int, count: int) -> EntryBatch:
    return EntryBatch.from_list([payload(name, first + k) for k in range(count)])


def fill(uri: str, kill_one: Callable[[], str], start_it: Callable[[], None]) -> Kept:
    """Make all of it. ``kill_one`` kills a bookie and says which."""
    kept = Kept()
    with connect(uri) as bookkeeper:
        _ledgers(bookkeeper, uri, kept)
        killed = _change_of_ensemble(bookkeeper, kept, kill_one, start_it)
        _logs(bookkeeper, kept)
        kept.deleted = _deleted(bookkeeper)
        kept.marked = kept.ledgers["crc32"]["id"]
        kept.read_only = max(set(bookkeeper.store.writable_bookies()) - {killed})  # the other one holds conversations
        bookkeeper.store.mark_underreplicated(kept.marked, [kept.read_only])
        bookkeeper.store.write_roles(ROLES, None)
        bookkeeper.store.write_upkeep_record(encode_upkeep_record(UPKEEP), None)
        bookkeeper.store.write_bookie_order(kept.read_only, BookieOrder(Order.READ_ONLY, 1_700_000_000_000))
    return kept


def _ledgers(bookkeeper: BookKeeper, uri: str, kept: Kept) -> None:
    def made(name: str, count: int, batch: int = 100, **how: Any) -> LedgerWriter:
        ledger = bookkeeper.create_ledger(password=PASSWORD, **how)
        for first in range(0, count, batch):
            ledger.append_batch(payloads(name, first, min(batch, count - first)))
        ledger.flush()
        kept.ledgers[name] = {"id": ledger.ledger_id, "count": count, "open": False}
        return ledger

    made("crc32c", 500, custom_metadata={"application": b"release"}).close()
    for digest in [kind for kind in DigestType if kind is not DigestType.CRC32C]:
        striped = {"ensemble_size": 3, "write_quorum_size": 2, "ack_quorum_size": 2}
        made(digest.name.lower(), 60, 7, digest_type=digest, **striped).close()
    made("large", 50, 5).close()  # more than a segment: some are sealed, and have an index
    made("wide", 50, ensemble_size=4, write_quorum_size=4).close()  # all bookies have all of it
    made("open", 50).abandon()
    kept.ledgers["open"]["open"] = True
    fenced = made("fenced", 40)
    bookkeeper.open_ledger(fenced.ledger_id, recover=True, password=PASSWORD).close()
    with contextlib.suppress(LedgerFencedError):
        fenced.append(b"too late")
    with contextlib.suppress(BookKeeperError):
        fenced.close()
    with bookkeeper.create_ledger(password=PASSWORD, explicit_ids=True) as explicit:
        for entry_id in (3, 0, 1, 2, 5, 4):
            explicit.append_nowait(payload("explicit", entry_id), entry_id)
        explicit.wait_confirmed(5)
    kept.ledgers["explicit"] = {"id": explicit.ledger_id, "count": 6, "open": False}
    with connect(uri, config=ClientConfig(lanes="bookie-rpc")) as over_apaches_wire:
        with over_apaches_wire.create_ledger(password=PASSWORD) as apache:
            apache.append_batch(payloads("apache", 0, 80))
        kept.ledgers["apache"] = {"id": apache.ledger_id, "count": 80, "open": False}


def _change_of_ensemble(
    bookkeeper: BookKeeper, kept: Kept, kill_one: Callable[[], str], start_it: Callable[[], None]
) -> str:
    """A ledger whose writer replaced a bookie; which."""
    writers = [bookkeeper.create_ledger(password=PASSWORD) for _ in range(3)]  # one of them has the bookie
    for ledger in writers:
        ledger.append_batch(payloads("changed", 0, 70))
        ledger.flush()
    lost = kill_one()
    (changed, *_) = [each for each in writers if lost in each.metadata.fragments[0].ensemble]
    changed.append_batch(payloads("changed", 70, 69))
    deadline = time.monotonic() + 30
    while len(changed.metadata.fragments) < 2:
        assert time.monotonic() < deadline, "the writer did not replace the bookie"
        time.sleep(0.05)
    changed.append_batch(payloads("changed", 139, 1))
    for ledger in writers:
        ledger.close()
    start_it()
    kept.ledgers["changed"] = {"id": changed.ledger_id, "count": 140, "open": False}
    return lost


def _logs(bookkeeper: BookKeeper, kept: Kept) -> None:
    log = bookkeeper.log("events", password=LOG_PASSWORD)
    with log.lead(roll_bytes=1000) as leader:
        for number in range(60):
            leader.append(payload("events", number))
            if number % 20 == 19:
                leader.roll()
    log.set_retention(retention_ms=365 * 86_400_000)
    kept.log_start, kept.log_end = log.trim(25), log.end_offset()
    head = log.head().value
    kept.position = encode_offset(
        StreamOffset(bookkeeper.instance_id, {"events": LogPosition(head.uuid, head.epoch, kept.log_end)})
    )
    table = bookkeeper.log("table", password=LOG_PASSWORD)
    table.append_arrow(TABLE)
    table.append_arrow(WIDER, merge_schema=True, compression="lz4")


def write_rows(session: Any, uri: str, log: str, count: int, mode: str, **more: object) -> None:
    rows = session.range(count).selectExpr("CAST(id AS STRING) AS value").coalesce(1)
    options = {"metadataServiceUri": uri, **more}
    rows.write.format("bookkeeper").options(**options).mode(mode).save(log)


def copy_rows(session: Any, uri: str, checkpoint: str) -> None:
    """One run of the query that follows a log into another one: from the checkpoint, if it is there."""
    options = {"metadataServiceUri": uri}
    source = session.readStream.format("bookkeeper").options(**options, startingOffsets="earliest").load("written")
    sink = source.select("value").writeStream.format("bookkeeper").options(**options)
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start("copied")
    assert query.awaitTermination(120), "the query does not end"


def fill_by_spark(uri: str, session: Any, checkpoint: str) -> None:
    """A log that a transaction wrote and one that was overwritten; a query that follows the first, with its checkpoint,
    and rows that it has not seen."""
    write_rows(session, uri, "written", 30, "append", txnAppId="release", txnVersion=7)
    write_rows(session, uri, "overwritten", 10, "append")
    write_rows(session, uri, "overwritten", 20, "overwrite")
    for _ in range(2):  # the second run goes on from the checkpoint of the first
        copy_rows(session, uri, checkpoint)
        write_rows(session, uri, "written", 5, "append")


def _deleted(bookkeeper: BookKeeper) -> int:
    with bookkeeper.create_ledger(password=PASSWORD) as ledger:
        ledger.append(b"gone")
    bookkeeper.delete_ledger(ledger.ledger_id)
    return ledger.ledger_id


def check(uri: str, kept: dict[str, Any], appended: dict[str, int] | None = None, *, copied: int = 35) -> None:
    """Every entry of every ledger and log is there, byte for byte. ``appended``: ledgers that were added since, by
    name. ``copied``: rows that Spark's query has copied."""
    with connect(uri) as bookkeeper:
        for name, ledger in kept["ledgers"].items():
            is_open = ledger["open"] and appended is None  # until it is recovered, which is the first thing appended
            _check_ledger(bookkeeper, name, ledger["id"], ledger["count"], whole=not is_open)
        for name, ledger_id in (appended or {}).items():
            _check_ledger(bookkeeper, name, ledger_id, 300)
        with contextlib.suppress(NoSuchLedgerError):
            bookkeeper.open_ledger(kept["deleted"], recover=False, password=PASSWORD)
            raise AssertionError("a deleted ledger is there")
        _check_logs(bookkeeper, kept, copied)
    store = open_store(uri)
    try:
        order = store.read_bookie_order(kept["read_only"])
        assert order is not None
        assert order.order is Order.READ_ONLY
        roles = store.read_roles()
        assert roles is not None
        assert roles.value == ROLES
        upkeep = store.read_upkeep_record()
        assert upkeep is not None
        assert decode_upkeep_record(upkeep.value) == UPKEEP
        assert kept["marked"] in dict(store.list_underreplicated())
    finally:
        store.close()


def _check_ledger(
    bookkeeper: BookKeeper, name: str, ledger_id: int, count: int, *, recover: bool = False, whole: bool = True
) -> None:
    """All of it is there, or of an open ledger what its LAC covers."""
    reader = bookkeeper.open_ledger(ledger_id, recover=recover, password=PASSWORD)
    read = [entry for batch in reader.read(0, reader.last_add_confirmed) for entry in batch.to_list()]
    assert read == [payload(name, entry_id) for entry_id in range(count if whole else len(read))], name


def _check_logs(bookkeeper: BookKeeper, kept: dict[str, Any], copied: int) -> None:
    log = bookkeeper.log("events", password=LOG_PASSWORD)
    head = log.head().value
    assert head.start_offset == kept["log_start"]
    first, end = kept["log_start"], kept["log_end"]
    read = [entry for _, batch in log.read(first, end) for entry in batch.to_list()]
    assert read == [payload("events", number) for number in range(first, end)]
    at = decode_offset(kept["position"])
    assert (at.cluster, at.logs["events"]) == (bookkeeper.instance_id, LogPosition(head.uuid, head.epoch, end))
    rows = [*range(30), *range(5), *range(5)]
    numbers = {"written": rows, "overwritten": range(20), "copied": rows[:copied]}
    for name, expected in numbers.items():
        written = bookkeeper.log(name)
        start = written.head().value.start_offset
        values = [int(each) for _, batch in written.read(start, written.end_offset()) for each in batch.to_list()]
        assert values == list(expected), name
    done = bookkeeper.log("written").transactions_of("release")
    assert done is not None
    assert [(each.version, each.rows) for each in done.versions] == [(7, 30)]
    table = bookkeeper.log("table", password=LOG_PASSWORD).to_arrow().select(["id", "name", "price"]).to_pylist()
    older = [{**row, "price": None} for row in TABLE.to_pylist()]
    assert table == [*older, *WIDER.to_pylist()]


def append(uri: str, kept: dict[str, Any]) -> dict[str, int]:
    """Recover what was left open, go on with the logs, write new ledgers of every digest; their ids by name."""
    new: dict[str, int] = {}
    with connect(uri) as bookkeeper:
        left_open = kept["ledgers"]["open"]
        _check_ledger(bookkeeper, "open", left_open["id"], left_open["count"], recover=True)
        for digest in DigestType:
            name = f"later {digest.name}"
            with bookkeeper.create_ledger(password=PASSWORD, digest_type=digest) as ledger:
                ledger.append_batch(payloads(name, 0, 300))
            new[name] = ledger.ledger_id
        log: blocking.NamedLog = bookkeeper.log("events", password=LOG_PASSWORD)
        with log.lead() as leader:
            at = leader.append(b"later")
        assert at == kept["log_end"]
        read = [entry for _, batch in log.read(at, log.end_offset()) for entry in batch.to_list()]
        assert read == [b"later"]
        assert not set(new.values()) & {each["id"] for each in kept["ledgers"].values()}
    return new
