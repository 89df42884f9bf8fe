# SPDX-License-Identifier: Apache-2.0
"""Rounds on checkpoints: the newest commit file is deleted, so that Spark writes the batch again, or an older copy is
restored.

A streaming query copies a log into another. A replay must change nothing, however the batch is cut into partitions. A
checkpoint that is too old must lead to the exact rows, or to one of the two errors of RULES N5 with nothing published.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bk_core.logs.machines.publication import PublishOptions, Transaction
from bk_core.logs.model.head import PUBLISHED_MAX, PublishId
from tests.trials.spark.checker import Write, check_rows
from tests.trials.spark.rig import BlockReport, Rig, Space, tagged

FEED = 60
LIMIT = 40
ERRORS = ("BK_TXN_REPLAY_DIFFERS", "BK_TXN_VERSION_REGRESSED")


class CommitFileRounds:
    """Rounds that lose Spark's note that a batch is done."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "commit-files", "commit file deleted", long, 10
        self.wanted = ("batches replayed", "replays cut otherwise")

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report, rows = BlockReport(), list[bytes]()
        with rig.workspace(self.name) as space:
            source, sink, checkpoint = space.log("source"), space.log("sink"), space.checkpoint("0")
            for number in range(first, first + count):
                rng = space.plan("commit-files", number).rng(number)
                rows += self._feed(space, source, f"{number}")
                self._copy(space, source, sink, checkpoint)
                delete_newest(checkpoint / "commits")
                partitions = rng.choice((1, 2, 4, 7))
                if rng.random() < 0.5:
                    rows += self._feed(space, source, f"{number}+")
                extents = len(space.extents(sink))
                self._copy(space, source, sink, checkpoint, minPartitions=partitions)
                report.counts["batches replayed"] += 1
                report.counts["replays cut otherwise"] += partitions != 4
                report.counts["faults"] += 1
                report.counts["replays that changed nothing at all"] += len(space.extents(sink)) == extents
                report.broken(number, space.check(sink, [Write(rows)]))
                report.rounds += 1
            report.broken(first, space.check_without_orphans(sink, [Write(rows)]))
        return report

    def _feed(self, space: Space, log: str, tag: str) -> list[bytes]:
        rows = tagged(tag, FEED)
        space.feed(log, rows)
        return rows

    def _copy(self, space: Space, source: str, sink: str, checkpoint: Path, **read: object) -> None:
        answer = copy(space, source, sink, checkpoint, read={"maxEntriesPerTrigger": LIMIT, **read})
        if "error" in answer:
            raise RuntimeError(f"the query ended: {answer['error'][:1500]}")


class OlderCheckpointRounds:
    """Rounds that restore an older copy of the checkpoint."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "old-checkpoints", "an older checkpoint restored", long, 1
        self.wanted = ("same cut: exact", "other cut: BK_TXN_REPLAY_DIFFERS", "forgotten: BK_TXN_VERSION_REGRESSED")
        self.wanted += ("two logs",)

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        for number in range(first, first + count):
            with rig.workspace(self.name) as space:
                if number % 4 == 3:
                    self._two_logs(space, report, number)
                else:
                    self._round(space, report, number)
            report.rounds += 1
            report.counts["faults"] += 1
        return report

    def _round(self, space: Space, report: BlockReport, number: int) -> None:
        how = ("same cut", "other cut", "forgotten")[number % 4]
        rng = space.plan("old-checkpoints", number).rng(number)
        source, sink, checkpoint = space.log("source"), space.log("sink"), space.checkpoint("0")
        app = {"txnAppId": space.name} if how == "forgotten" else {}
        rows = tagged(f"{number}", LIMIT * rng.randint(2, 4))
        space.feed(source, rows)
        self._run(space, source, sink, checkpoint, app, LIMIT)
        shutil.copytree(checkpoint, space.checkpoint("old"))
        more = tagged(f"{number}+", LIMIT * rng.randint(2, 4))
        space.feed(source, more)
        rows += more
        self._run(space, source, sink, checkpoint, app, LIMIT)
        if how == "forgotten":
            self._forget(space, sink, app["txnAppId"])
        before = space.check(sink, [Write(rows)])
        shutil.rmtree(checkpoint)
        shutil.copytree(space.checkpoint("old"), checkpoint)
        limit = LIMIT if how == "same cut" else LIMIT // 2 + rng.randrange(LIMIT // 2)
        late = tagged(f"{number}++", LIMIT)
        space.feed(source, late)
        answer = copy(space, source, sink, checkpoint, read={"maxEntriesPerTrigger": limit}, write=app)
        error = next((code for code in ERRORS if code in answer.get("error", "")), None)
        if "error" in answer and error is None:
            report.broken(number, [f"the query ended with another error: {answer['error'][:1500]}"])
        report.counts[f"{how}: {error or 'exact'}"] += 1
        expected = rows if error else rows + late
        writes = [Write(expected)]
        report.broken(number, before + space.check(sink, writes) + space.check_without_orphans(sink, writes))

    def _two_logs(self, space: Space, report: BlockReport, number: int) -> None:
        """Copy two logs, which share a limit in proportion to the rows that wait in them. When the older checkpoint is
        restored, one log has grown. The next batch then has as many rows as before, but others of each log."""
        logs, sink, checkpoint = (space.log("a"), space.log("b")), space.log("sink"), space.checkpoint("0")
        rows: dict[str, list[bytes]] = {log: [] for log in logs}

        def feed(log: str, count: int) -> None:
            more = [f"{log}:{at}".encode() for at in range(len(rows[log]), len(rows[log]) + count)]
            space.feed(log, more)
            rows[log] += more

        for turn in range(2):
            for log in logs:
                feed(log, LIMIT)
            self._run(space, ",".join(logs), sink, checkpoint, {}, LIMIT)
            if turn == 0:
                shutil.copytree(checkpoint, space.checkpoint("old"))
        before = {log: list(found) for log, found in rows.items()}
        shutil.rmtree(checkpoint)
        shutil.copytree(space.checkpoint("old"), checkpoint)
        feed(logs[1], 5 * LIMIT)
        answer = copy(space, ",".join(logs), sink, checkpoint, read={"maxEntriesPerTrigger": LIMIT})
        error = next((code for code in ERRORS if code in answer.get("error", "")), None)
        if "error" in answer and error is None:
            report.broken(number, [f"the query ended with another error: {answer['error'][:1500]}"])
        report.counts["two logs"] += 1
        report.counts[f"two logs: {error or 'no error'}"] += 1
        found = space.rows(sink)
        for log in logs:
            own = [row for row in found if row.startswith(f"{log}:".encode())]
            report.broken(number, check_rows([Write((before if error else rows)[log])], own))

    def _run(self, space: Space, source: str, sink: str, checkpoint: Path, write: dict[str, str], limit: int) -> None:
        answer = copy(space, source, sink, checkpoint, read={"maxEntriesPerTrigger": limit}, write=dict(write))
        if "error" in answer:
            raise RuntimeError(f"the query ended: {answer['error'][:1500]}")

    def _forget(self, space: Space, sink: str, app_id: str) -> None:
        """Publish so many later versions that the log forgets the old ones."""
        log = space.rig.client.log(sink)
        known = log.transactions_of(app_id)
        assert known is not None
        newest = max(version.version for version in known.versions)
        for version in range(newest + 1, newest + PUBLISHED_MAX + 10):
            log.publish([], PublishId.txn(app_id, version), PublishOptions(transaction=Transaction(app_id, version)))


def copy(
    space: Space,
    source: str,
    sink: str,
    checkpoint: Path,
    *,
    read: dict[str, object],
    write: dict[str, object] | None = None,
) -> dict[str, object]:
    """Run the query until all rows are copied."""
    driver = space.rig.drivers.get()
    space.begin_stream(driver, space.plan("none", 0), source, sink, checkpoint=checkpoint, read=read, write=write)
    return driver.answer()


def delete_newest(folder: Path) -> int:
    """Delete the newest file of a checkpoint's folder and its checksum. Return the file's number."""
    newest = max(int(each.name) for each in folder.iterdir() if each.name.isdigit())
    (folder / str(newest)).unlink()
    (folder / f".{newest}.crc").unlink(missing_ok=True)
    return newest


def batches_of(folder: Path) -> list[int]:
    """Return the batches for which a checkpoint's folder has files."""
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit()) if folder.exists() else []


def query_id(checkpoint: Path) -> str:
    """Return the id of the query that owns the checkpoint."""
    return str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
