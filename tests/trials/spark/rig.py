# SPDX-License-Identifier: Apache-2.0
"""The rig of all kinds of rounds: a cluster behind proxies, a client, drivers, and checks of logs."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bk_core import blocking
from bk_core.blocking import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, NoSuchLedgerError
from bk_core.logs.model.head import Extent, NewExtent, PublishId
from tests.trials.harness import Figures
from tests.trials.kit.cluster import TrialCluster
from tests.trials.spark.checker import Listed, Violation, Write, check_listed, check_rows
from tests.trials.spark.drivers import Drivers, SparkDriver
from tests.trials.spark.marks import Marks
from tests.trials.spark.plan import PARTITIONS, Plan

BOOKIES = 5
SETTINGS = "segment_size_bytes = 33554432\ndisk_usage_threshold = 0.99\ndisk_usage_low_water = 0.98\n"
"""The rows are few and small, so the trial fits on a disk that is nearly full."""
ROWS = 160
"""The number of rows of a job, which are ten batches."""
SHAPE = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


class BlockReport(Figures):
    """The figures of some rounds of one kind."""

    def broken(self, number: int, problems: Sequence[Violation | str]) -> None:
        self.problems += [f"round {number}: {problem}" for problem in problems]


class Rig:
    """A cluster, a client and drivers. A block of rounds deletes at its end everything that it made."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed
        self.cluster = TrialCluster(path / "cluster", bookies=BOOKIES, settings=SETTINGS)
        self.drivers = Drivers(path / "drivers")
        self._names = itertools.count()
        self._client: BookKeeper | None = None

    def __enter__(self) -> Rig:
        self.cluster.__enter__()
        self._client = blocking.connect(self.cluster.direct_uri)
        Space(self, "warm").feed("warm", tagged("warm", PARTITIONS))
        options = {"metadataServiceUri": self.uri}
        self.spares = Drivers(self.path / "spares", warm={"options": options, "source": "warm", "sink": "warm-sink"})
        return self

    def __exit__(self, *_: object) -> None:
        self.drivers.close()
        self.spares.close()
        if self._client is not None:
            self._client.close()
        self.cluster.close()

    @property
    def client(self) -> BookKeeper:
        """The client of the checks. It is connected to ZooKeeper without a proxy, so faults do not affect the
        checks."""
        assert self._client is not None
        return self._client

    @property
    def uri(self) -> str:
        """The URI of the drivers, which leads through the proxies."""
        return self.cluster.clients_uri

    @contextmanager
    def workspace(self, kind: str) -> Iterator[Space]:
        """Yield names and a folder for one block."""
        space = Space(self, f"{kind}-{next(self._names)}")
        try:
            yield space
        finally:
            self.cluster.zookeepers.forget_losses()
            self.cluster.heal()
        space.delete()


class Space:
    """The logs, marks and checkpoints of one block of rounds."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig, self.name = rig, name
        self.path = rig.path / "blocks" / name
        self.marks = Marks(self.path / "marks")
        self.marks.clear()
        self._logs: set[str] = set()

    def log(self, what: str) -> str:
        """Return the name of a log of this block."""
        name = f"{self.name}-{what}"
        self._logs.add(name)
        return name

    def checkpoint(self, what: str) -> Path:
        return self.path / f"checkpoint-{what}"

    def plan(self, kind: str, number: int, **more: object) -> Plan:
        return Plan(kind=kind, seed=self.rig.seed, first_round=number, marks=str(self.marks.path), **more)

    # --- what Spark is asked ---

    def options(self, plan: Plan | None = None, **more: object) -> dict[str, str]:
        given = {"metadataServiceUri": self.rig.uri, **{name: str(value) for name, value in more.items()}}
        return given if plan is None else {"smallTaskBytes": plan.small_task_bytes(), **given, "trial": plan.text()}

    def begin_write(self, driver: SparkDriver, plan: Plan, log: str, tag: str, **more: object) -> None:
        options = self.options(plan, **more)
        driver.begin("write", tag=tag, count=ROWS, partitions=PARTITIONS, log=log, options=options)

    def begin_stream(
        self,
        driver: SparkDriver,
        plan: Plan,
        source: str,
        sink: str,
        *,
        checkpoint: Path,
        until: str = "",
        read: dict[str, object] | None = None,
        write: dict[str, object] | None = None,
    ) -> None:
        reading = self.options(**{"startingOffsets": "earliest", "minPartitions": PARTITIONS, **(read or {})})
        driver.begin(
            "stream",
            source=source,
            sink=sink,
            checkpoint=str(checkpoint),
            read=reading,
            write=self.options(plan, **(write or {})),
            until=until,
            marks=str(self.marks.path),
        )

    # --- without Spark ---

    def feed(self, log: str, rows: Sequence[bytes], pieces: int = 1) -> None:
        """Publish rows with our client, as ``pieces`` ledgers."""
        client = self.rig.client
        handle = client.log(log)
        handle.open_or_create()
        size = -(-len(rows) // pieces)
        ledgers = [self._closed(rows[at : at + size]) for at in range(0, len(rows), size)]
        handle.publish(ledgers, PublishId.job(f"feed-{log}-{time.monotonic_ns()}"))

    def _closed(self, rows: Sequence[bytes]) -> NewExtent:
        client = self.rig.client
        with client.create_ledger(**SHAPE) as ledger:
            ledger.append_batch(EntryBatch.from_list(list(rows)))
        metadata = client.read_metadata(ledger.ledger_id).value
        size = sum(map(len, rows))
        fragments = metadata.fragments
        return NewExtent(
            ledger_id=ledger.ledger_id,
            entry_count=len(rows),
            size_bytes=size,
            created_ms=1,
            fragments=fragments,
            **SHAPE,
        )

    def rows(self, log: str) -> list[bytes]:
        """Return all rows that readers of the log see, in order."""
        handle = self.rig.client.log(log)
        head = handle.head().value
        found: list[bytes] = []
        if head.start_offset == head.next_offset:
            return found
        for _, batch in handle.read(head.start_offset, head.next_offset):
            found += batch.to_list()
        return found

    def extents(self, log: str) -> list[Extent]:
        return self.rig.client.log(log).extents()

    # --- judging ---

    def check(self, log: str, writes: Sequence[Write]) -> list[Violation]:
        """Return the problems of the log's rows, and of the ledgers that it lists."""
        return check_rows(writes, self.rows(log)) + self.check_ledgers(log)

    def check_ledgers(self, log: str) -> list[Violation]:
        head = self.rig.client.log(log).head().value
        return check_listed(head.uuid, [self._listed(extent) for extent in self.extents(log)])

    def check_without_orphans(self, log: str, writes: Sequence[Write]) -> list[Violation]:
        """Delete all ledgers that the log does not list, and return what :meth:`check` then finds. No visible row may
        have been in a deleted ledger."""
        self.rig.client.log(log).vacuum(delete_delay_ms=0, force=True)
        return self.check(log, writes)

    def _listed(self, extent: Extent) -> Listed:
        try:
            metadata = self.rig.client.read_metadata(extent.ledger_id).value
        except NoSuchLedgerError:
            metadata = None
        custom = {} if metadata is None else {key: value.decode() for key, value in metadata.custom_metadata.items()}
        last = None if metadata is None else metadata.last_entry_id
        closed = metadata is not None and metadata.is_closed and last is not None
        task = (custom["bk.partition"], custom["bk.attempt"]) if "bk.attempt" in custom else None
        return Listed(
            ledger_id=extent.ledger_id,
            entries=extent.entry_count,
            log_uuid=custom.get("bk.log.uuid", ""),
            publish_id=custom.get("bk.publish.id", ""),
            task=task,
            stored_entries=last + 1 if closed and last is not None else None,
        )

    def ensemble_changes(self, log: str) -> int:
        """Return the number of ensemble changes in the ledgers that the log lists."""
        found = (self.rig.client.read_metadata(extent.ledger_id).value for extent in self.extents(log))
        return sum(len(metadata.fragments) - 1 for metadata in found)

    def orphans(self, log: str) -> set[int]:
        """Return the ledgers that were made for the log and that it does not list."""
        client = self.rig.client
        head = client.log(log).head().value
        listed = {extent.ledger_id for extent in self.extents(log)}
        found = set()
        for ledger_id in set(client.list_ledgers()) - listed:
            try:
                custom = client.read_metadata(ledger_id).value.custom_metadata
            except NoSuchLedgerError:
                continue
            if custom.get("bk.log.uuid") == head.uuid.encode():
                found.add(ledger_id)
        return found

    def delete(self) -> None:
        """Delete everything of this block, so that the next block need not walk over it."""
        client = self.rig.client
        for log in self._logs & set(client.store.list_logs()):
            for extent in self.extents(log):
                try:
                    client.delete_ledger(extent.ledger_id)
                except BookKeeperError:
                    continue
            client.store.delete_log(log)
        shutil.rmtree(self.path, ignore_errors=True)


def tagged(tag: str, count: int = ROWS) -> list[bytes]:
    """Return the rows of a job."""
    return [f"{tag}:{number}".encode() for number in range(count)]
