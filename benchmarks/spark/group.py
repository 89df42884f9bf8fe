# SPDX-License-Identifier: Apache-2.0
"""Group ``spark``. Each part has a fresh cluster, and a process of its own for its Spark, with a time limit.

Neither data nor processes stay, whatever ends the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import install
from benchmarks.peers.broker import kafka_broker
from benchmarks.report.figures import Figure
from benchmarks.running.settings import Settings
from benchmarks.spark.topics import CONNECTOR_JARS
from benchmarks.storage.scratch import check_room, terminated_as_interrupted
from bk_cli.local.children import child_environment, last_lines
from bk_cli.local.cluster import LocalCluster
from bk_core.errors import BookKeeperError

BOOKIES = 3
START_S = 300.0
"""The seconds that each part may take in addition, at any scale, for Spark's own start on a busy machine and for the
preparation."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part. ``run_s`` and ``needed_bytes`` are the most that a run takes at a scale of 1."""

    run_s: float
    needed_bytes: int = 1 << 30
    peer: str = ""

    def most_s(self, runs: int, scale: float) -> float:
        """Return the seconds after which something is wrong."""
        return START_S + self.run_s * (runs + 3) * max(1.0, scale)

    def most_bytes(self, runs: int, scale: float) -> int:
        """Return the bytes of disk that it needs."""
        return (1 << 30) + int(self.needed_bytes * (runs + 2) * scale)


PARTS: dict[str, Part] = {
    "rows_100b": Part(180, 6 << 30, "raw"),
    "rows_1kb": Part(180, 9 << 30, "raw"),
    "tasks": Part(90),
    "tail": Part(120),
    "typed": Part(120, 3 << 30, "raw"),
    "kafka_100b": Part(360, 8 << 30, "kafka"),
    "kafka_1kb": Part(360, 11 << 30, "kafka"),
    "kafka_typed": Part(600, 8 << 30, "kafka"),
}


class SparkGroup:
    """The parts of the group, each with a fresh cluster."""

    def parts(self, peers: Collection[str]) -> list[str]:
        """Return the names of the parts, in their order: those of the peers, and those without a peer."""
        return [name for name, part in PARTS.items() if part.peer in ("", *peers)]

    def measure(self, names: Collection[str], folder: Path, settings: Settings) -> Iterator[tuple[str, list[Figure]]]:
        """Yield each part's figures. Before the first part begins, raises InvalidArgumentError if there is too little
        room or a tool is missing. Raises BookKeeperError for a part that failed or took too long."""
        for name in names:
            check_room(folder, PARTS[name].most_bytes(settings.runs, settings.scale), f"the part {name}")
        installed = install.install() if any(PARTS[name].peer == "kafka" for name in names) else None
        for name in names:
            with terminated_as_interrupted(), ExitStack() as stack:
                yield name, _measured(name, folder, settings, installed, stack)


def _measured(
    name: str, folder: Path, settings: Settings, installed: install.Peers | None, stack: ExitStack
) -> list[Figure]:
    part = PARTS[name]
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=folder))).absolute()
    cluster = LocalCluster(path / "cluster", bookies=BOOKIES, port=0, zookeeper_port=0)
    stack.enter_context(cluster)
    arguments = ["--uri", cluster.uri, "--runs", str(settings.runs), "--scale", str(settings.scale)]
    arguments += ["--lane", settings.lane]
    python, connector = sys.executable, ""
    if part.peer == "kafka":
        assert installed is not None
        broker = stack.enter_context(kafka_broker(installed.broker, path / "kafka"))
        arguments += ["--kafka", broker]
        python, connector = str(installed.python), str(installed.connector)
    return in_process(name, python, path, arguments, connector, part.most_s(settings.runs, settings.scale))


def in_process(
    name: str, python: str, folder: Path, arguments: list[str], connector: str, most_s: float
) -> list[Figure]:
    """Return what ``benchmarks.spark.part`` measures, run by ``python``."""
    found, scratch = folder / "figures.json", folder / "spark"
    scratch.mkdir()
    command = [python, "-m", "benchmarks.spark.part", name, "--to", str(found), "--folder", str(scratch), *arguments]
    log_path = folder / "part.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=install.ROOT,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**child_environment(), CONNECTOR_JARS: connector},
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin:  # the part ends with it, and its Java with the part
        try:
            code = process.wait(most_s)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said = f"after {most_s:.0f} s: {last_lines(log_path)}"
            raise BookKeeperError(f"the part {name} did not end", value=said) from error
    if code:
        raise BookKeeperError(f"the part {name} failed", value=last_lines(log_path, 6))
    return [Figure(**figure) for figure in json.loads(found.read_text(encoding="utf-8"))]
