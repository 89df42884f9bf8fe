# SPDX-License-Identifier: Apache-2.0
"""Spark's own servers as processes, from the jars of pyspark: a Connect server, a standalone cluster of two workers.

Each ends with this process, however that ends. Everything listens on loopback; the two workers have addresses of their
own, 127.0.0.2 and 127.0.0.3, because Spark runs no speculative copy of a task on the host of the first.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyspark

from bk_cli.local.children import child_environment, free_port, last_lines
from tests.spark import sessions

HOST = "127.0.0.1"
WORKERS = ("127.0.0.2", "127.0.0.3")
START_S = 90.0
STOP_S = 15.0


class SparkProcess:
    """One JVM that runs a class of Spark's."""

    def __init__(self, name: str, main_class: str, arguments: Sequence[str], where: Path, address: str = HOST) -> None:
        self.log_path = where / f"{name}.log"
        work = where / name
        work.mkdir(parents=True)
        command = [
            sys.executable,
            "-m",
            "bk_cli.local.lifeline",
            str(Path(pyspark.__file__).parent / "bin" / "spark-class"),
        ]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, main_class, *arguments],
                stdin=subprocess.PIPE,  # the lifeline
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=work,
                env=child_environment() | sessions.environment(address) | {"SPARK_LOCAL_DIRS": str(work)},
                start_new_session=True,
            )

    def wait_for(self, host: str, port: int) -> None:
        """It listens there. Raises AssertionError with the end of its log."""
        self.wait_until(lambda: _listens(host, port))

    def wait_for_line(self, text: str) -> None:
        """Its log has a line with ``text``."""
        self.wait_until(lambda: text in self.log_path.read_text(errors="replace"))

    def wait_until(self, is_ready: object) -> None:
        assert callable(is_ready)
        deadline = time.monotonic() + START_S
        while not is_ready():
            assert self._process.poll() is None, last_lines(self.log_path)
            assert time.monotonic() < deadline, last_lines(self.log_path)
            time.sleep(0.1)

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def connect_server(where: Path, more: Mapping[str, str]) -> Iterator[str]:
    """A Spark Connect server with a driver of its own; yields its URL."""
    port = free_port(HOST)
    wanted = sessions.settings(where) | {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        **more,
    }
    arguments = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", sessions.LOCAL]
    for name, text in wanted.items():
        arguments += ["--conf", f"{name}={text}"]
    server = SparkProcess("connect", "org.apache.spark.deploy.SparkSubmit", [*arguments, "spark-internal"], where)
    try:
        server.wait_for(HOST, port)
        yield f"sc://{HOST}:{port}"
    finally:
        server.stop()


@contextlib.contextmanager
def standalone_cluster(where: Path) -> Iterator[str]:
    """A master and two workers of two cores each; yields the master's URL."""
    port = free_port(HOST)
    started: list[SparkProcess] = []
    try:
        at = ["--host", HOST, "--port", str(port), "--webui-port", "0"]
        started.append(SparkProcess("master", "org.apache.spark.deploy.master.Master", at, where))
        started[0].wait_for(HOST, port)
        url = f"spark://{HOST}:{port}"
        for address in WORKERS:
            at = ["--host", address, "--webui-port", "0", "--cores", "2", "--memory", "1g", "--work-dir"]
            at += [str(where / f"worker-{address}"), url]
            name = f"worker-{address}"
            started.append(SparkProcess(name, "org.apache.spark.deploy.worker.Worker", at, where, address))
        for worker in started[1:]:
            worker.wait_for_line("Successfully registered with master")
        yield url
    finally:
        for process in reversed(started):
            process.stop()


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
