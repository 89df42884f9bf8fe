# SPDX-License-Identifier: Apache-2.0
"""One Kafka broker on loopback, which is its own controller and does not sync: the peer at its fastest."""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bk_cli.local.children import child_environment, free_port, last_lines
from bk_cli.local.java import find_java
from bk_core.errors import BookKeeperError

HOST = "127.0.0.1"
HEAP = "1g"
START_S, STOP_S = 180.0, 20.0
_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
message.max.bytes=16777216
socket.send.buffer.bytes=1048576
socket.receive.buffer.bytes=1048576
log.retention.hours=-1
file.delete.delay.ms=1000
"""


@contextmanager
def kafka_broker(jars: Path, folder: Path) -> Iterator[str]:
    """Run a broker during the block, with its data in ``folder``, and yield its address. Raises BookKeeperError with
    the end of its log."""
    folder.mkdir(parents=True, exist_ok=True)
    java = [find_java().path, "-cp", f"{jars}/*"]
    port, log_path = free_port(HOST), folder / "broker.log"
    config = folder / "server.properties"
    data = folder / "data"
    config.write_text(_CONFIG.format(host=HOST, port=port, controller=free_port(HOST), data=data), encoding="utf-8")
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    _format([*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(config)])
    command = [java[0], f"-Xmx{HEAP}", f"-Xms{HEAP}", "-XX:+UseG1GC", *java[1:], "kafka.Kafka", str(config)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bk_cli.local.lifeline", *command],  # it ends with this process, however that ends
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            start_new_session=True,
        )
    try:
        _wait_ready(process, port, log_path)
        yield f"{HOST}:{port}"
    finally:
        _stop(process)


def _format(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BookKeeperError("Kafka's storage was not made in time", value=f"{START_S:.0f} s") from error
    if done.returncode:
        raise BookKeeperError("Kafka's storage cannot be made", value=(done.stdout + done.stderr).strip()[-300:])


def _wait_ready(process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise BookKeeperError("the Kafka broker did not start", value=last_lines(log_path))
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()  # the lifeline: a clean end first
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
