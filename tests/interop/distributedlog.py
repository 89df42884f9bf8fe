# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial interop distributedlog``: Apache DistributedLog, unchanged, keeps its logs on our bookies.

Three writers in JVMs of their own (java/distributedlog/LogCalls.java) write records, one after the other. The first is
killed. The second hangs until the third takes over, and a bookie is killed under the third. Record N has transaction id
N. So the trial checks that each acknowledged record is there, in order, once, byte for byte. Exit code 0 means that
nothing was lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from bk_cli.access import Access
from bk_cli.local.cluster import LocalCluster
from tests.interop.jars import DISTRIBUTED_LOG, toolchain
from tests.interop.java_process import JavaProgram, PeerError
from tests.interop.pattern import Pattern
from tests.interop.steps import Steps, parser, run

LOG = "events"
PATTERN = Pattern(seed=5, size_min=8, size_max=4000)
SEGMENT_BYTES = 4_000_000
WITHIN_S = 240.0
FOREVER = 10_000_000


class Writer(JavaProgram):
    """A process with DistributedLog's library."""

    def __init__(self, cluster: LocalCluster, namespace: str, name: str) -> None:
        super().__init__(toolchain(DISTRIBUTED_LOG), "LogCalls", cluster.data_dir / f"{name}.log")
        self._namespace, self._name = namespace, name

    def open(self) -> None:
        self.call("open", uri=self._namespace, client=self._name, segment_bytes=SEGMENT_BYTES)

    def take_over(self) -> int:
        """Become the log's writer. Return the first free number."""
        return int(self.call("writer", log=LOG, within_s=WITHIN_S)["last"]) + 1

    def submit_write(self, first: int, count: int) -> Future[dict[str, Any]]:
        return self.submit("write", log=LOG, first=first, count=count, **PATTERN.arguments())

    def write(self, first: int, count: int) -> int:
        """Write ``count`` records, all acknowledged. Return the next number."""
        said = self.result(self.submit_write(first, count), WITHIN_S, "write")
        assert "failed" not in said, said
        assert said["acked"] == first + count, said
        return first + count

    def wait_acked(self, number: int) -> int:
        """Wait until the records before ``number`` are acknowledged. Return how many are acknowledged."""
        deadline = time.monotonic() + WITHIN_S
        while (acked := int(self.call("acked")["acked"])) < number:
            assert time.monotonic() < deadline, f"{acked} records acknowledged, not {number}"
            time.sleep(0.02)
        return acked

    def submit_read(self, first: int, last: int | None, quiet_ms: int = 5000) -> Future[dict[str, Any]]:
        return self.submit("read", log=LOG, first=first, last=last, quiet_ms=quiet_ms)


def check_read(said: dict[str, Any], first: int, end: int | None, least: int = 0) -> int:
    """Check the records from ``first`` to ``end``, or to the log's end: in order and unchanged. Return the next
    number."""
    assert said["wrong"] == -1, f"record {said['wrong']} is out of order"
    found = first + said["count"]
    assert end is None or found == end, f"the log ends at {found}, not {end}"
    assert found >= least, f"record {least - 1} was acknowledged, and the log ends at {found}"
    assert said["checksum"] == PATTERN.checksum(first, found - 1)
    return int(found)


def trial(steps: Steps, path: Path) -> None:
    with steps.step("jars") as step:
        step.found = f"{DISTRIBUTED_LOG}, {len(toolchain(DISTRIBUTED_LOG).jars)} jars"
    with LocalCluster(path / "cluster", bookies=4, port=0, zookeeper_port=0) as cluster:
        servers = cluster.uri.removeprefix("zk://").partition("/")[0]
        namespace = f"distributedlog://{servers}/applications/logs"
        writers = [Writer(cluster, namespace, f"writer-{number}") for number in range(3)]
        try:
            writers[0].call("bind", servers=servers, root="/ledgers", uri=namespace)
            for writer in writers:
                writer.open()
            _story(steps, cluster, writers)
        finally:
            for writer in writers:
                writer.kill()


def _story(steps: Steps, cluster: LocalCluster, writers: list[Writer]) -> None:
    first, second, third = writers
    with steps.step("write and read") as step:
        assert first.take_over() <= 1
        end = first.write(1, 5_000)
        check_read(second.result(second.submit_read(1, end - 1), WITHIN_S, "read"), 1, end)
        step.found = f"{end - 1} records in {len(_segments(second))} segments"
    with steps.step("the writer is killed, another takes over") as step:
        follower = third.submit_read(1, None, quiet_ms=20_000)  # reads during all following steps
        first.submit_write(end, FOREVER)
        acked = first.wait_acked(end + 3000)
        first.kill()
        end = second.take_over()
        assert end >= acked, f"{acked - 1} records were acknowledged, {end - 1} are there"
        step.found = f"{acked - 1} acknowledged, {end - 1} there"
    with steps.step("the writer hangs, another takes over, the first goes on") as step:
        writing = second.submit_write(end, FOREVER)
        second.wait_acked(end + 3000)
        second.pause()
        before, end = end, third.take_over()
        end = third.write(end, 1000)
        second.resume()
        said = second.result(writing, WITHIN_S, "write")
        assert "failed" in said, "the writer that hung got no error"
        with contextlib.suppress(PeerError):  # otherwise it tries to get the log's lock back
            second.call("close_writer", log=LOG, within_s=WITHIN_S)
        taken = end - 1000
        assert before < said["acked"] <= taken, f"{said['acked'] - 1} were acknowledged, {taken - 1} are there"
        step.found = f"{said['acked'] - 1} acknowledged, {taken - 1} there; it was told {said['failed']['name']}"
    with steps.step("a bookie is killed under the writer") as step:
        writing = third.submit_write(end, 12_000)
        third.wait_acked(end + 1000)
        victim = next(b for b in cluster.bookies if b.bookie_id in _open_ensemble(cluster, third))
        victim.kill()
        said = third.result(writing, WITHIN_S, "write")
        assert "failed" not in said, said
        end += 12_000
        assert said["acked"] == end, said
        changed = [ledger for ledger in _ledgers(third) if _fragments(cluster, ledger) > 1]
        assert changed, "no ensemble changed"
        step.found = f"{end - 1} acknowledged; ledger {changed} has another ensemble"
    with steps.step("all is read without that bookie, and by who followed") as step:
        third.call("close_writer", log=LOG, within_s=WITHIN_S)
        check_read(second.result(second.submit_read(1, end - 1), WITHIN_S, "read"), 1, end)
        check_read(third.result(follower, WITHIN_S, "read"), 1, end)
        victim.start()
        cluster.wait_ready([victim])
        step.found = f"{end - 1} records in {len(_segments(second))} segments"
    with steps.step("old segments are given up") as step:
        before_it = len(_ledgers(second))
        oldest = int(second.call("truncate", log=LOG, before=6_000, within_s=WITHIN_S)["first"])
        left = _ledgers(second)
        assert len(left) < before_it
        with Access(cluster.uri).store() as store:
            assert set(left) <= set(store.list_ledgers())
        check_read(second.result(second.submit_read(oldest, end - 1), WITHIN_S, "read"), oldest, end)
        step.found = f"{before_it} ledgers, then {len(left)}; the log begins at {oldest}"


def _segments(writer: Writer) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = writer.call("segments", log=LOG)["segments"]
    return segments


def _ledgers(writer: Writer) -> list[int]:
    return [int(segment["ledger_id"]) for segment in _segments(writer)]


def _open_ensemble(cluster: LocalCluster, writer: Writer) -> tuple[str, ...]:
    with Access(cluster.uri).store() as store:
        return store.read_ledger(_ledgers(writer)[-1]).value.fragments[-1].ensemble


def _fragments(cluster: LocalCluster, ledger_id: int) -> int:
    with Access(cluster.uri).store() as store:
        return len(store.read_ledger(ledger_id).value.fragments)


def main(words: Sequence[str]) -> int:
    """Run all steps, and return the exit code."""
    return run(
        parser("scripts/trial interop distributedlog", "DistributedLog on our bookies.").parse_args(words), trial
    )
