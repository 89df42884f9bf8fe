# SPDX-License-Identifier: Apache-2.0
"""The ZooKeeper that we start ourselves, and the lifeline that ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import InvalidArgumentError, MetadataUnavailableError, PortInUseError
from bk_core.metadata import open_store
from tests.cli.local.test_lifeline import ended
from tests.kit.waiting import until

pytestmark = pytest.mark.zookeeper


def test_server_keeps_its_data_over_a_restart_on_the_same_port(tmp_path: Path) -> None:
    server = ZooKeeperServer()
    server.start(tmp_path)
    port = server.port
    store = open_store(f"zk://{server.connect_string}/ledgers")
    instance_id = store.initialize_cluster()
    store.close()
    with pytest.raises(InvalidArgumentError, match="runs already"):
        server.start(tmp_path)
    server.stop()
    server.stop()
    assert not server.is_running
    server.start(tmp_path, port)
    assert server.port == port
    store = open_store(f"zk://{server.connect_string}/ledgers")
    assert store.instance_id() == instance_id
    store.close()
    server.stop()


def test_server_on_an_ipv6_address_is_reached_by_its_uri(tmp_path: Path) -> None:
    server = ZooKeeperServer(host="::1")
    server.start(tmp_path)
    assert server.connect_string == f"[::1]:{server.port}"
    store = open_store(f"zk://{server.connect_string}/ledgers")
    assert store.initialize_cluster() == store.instance_id()
    store.close()
    server.stop()


def test_port_in_use_is_said_before_anything_starts(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    with pytest.raises(PortInUseError, match=str(zookeeper_server.port)):
        ZooKeeperServer().start(tmp_path, zookeeper_server.port)


def test_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    jar = tmp_path / "empty.jar"
    with pytest.raises(MetadataUnavailableError, match="ZooKeeperServerMain"):
        ZooKeeperServer(classpath=[jar]).start(tmp_path)


@pytest.mark.rule("E4")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_server_ends_with_its_parent_however_it_dies(tmp_path: Path, ending: signal.Signals) -> None:
    program = textwrap.dedent(f"""
        import time
        from bk_cli.local.zookeeper_server import ZooKeeperServer
        server = ZooKeeperServer(durable=False)
        server.start({str(tmp_path)!r})
        print(server._process.pid, flush=True)
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lifeline = int(parent.stdout.readline())
    java = _children(lifeline)
    assert len(java) == 1
    parent.send_signal(ending)
    parent.wait(10)
    parent.stdout.close()
    until(lambda: ended(lifeline) and ended(java[0]))


def test_lifeline_passes_on_the_exit_code_and_stops_on_request() -> None:
    lifeline = [sys.executable, "-m", "bk_cli.local.lifeline"]
    with subprocess.Popen([*lifeline, "sh", "-c", "exit 3"], stdin=subprocess.PIPE) as ending:
        assert ending.wait(20) == 3
    assert subprocess.run(lifeline, stderr=subprocess.DEVNULL, stdin=subprocess.PIPE, timeout=20).returncode == 2
    with subprocess.Popen([*lifeline, "sleep", "60"], stdin=subprocess.PIPE) as waiting:
        until(lambda: bool(_children(waiting.pid)))
        waiting.terminate()
        assert waiting.wait(10) == 128 + signal.SIGTERM


def _children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]
