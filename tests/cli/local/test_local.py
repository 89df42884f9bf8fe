# SPDX-License-Identifier: Apache-2.0
"""``bk local`` as a process: it starts, stops, starts again with its data, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from bk_cli import main
from bk_cli.local.children import free_port
from bk_core import blocking
from tests.kit.canaries import PASSWORD
from tests.kit.waiting import comes_true

pytestmark = pytest.mark.e2e
READY_S, STOP_S = 45.0, 20.0


class Running:
    """A ``bk local`` that has said that it is ready."""

    def __init__(self, data: Path, *options: str) -> None:
        command = [sys.executable, "-m", "bk_cli.main", "local", "--json", "--data", str(data), *options]
        self._errors = (data.parent / "stderr").open("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        assert self.ready, f"it ended with {self.process.wait(READY_S)}: {self.stderr()}"

    @property
    def uri(self) -> str:
        return str(self.ready["metadataServiceUri"])

    @property
    def pids(self) -> list[int]:
        """Its children, and theirs."""
        return [int(pid) for pid in descendants(self.process.pid)]

    def stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()
        return code


def descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [pid]
    for parent in found:
        found += [child for child, of in pairs if of == parent]
    return found[1:]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return False
    except ProcessLookupError:
        return True


@pytest.mark.timeout(180)
@pytest.mark.rule("E4")
def test_it_keeps_its_data_and_whatever_ends_it_nothing_is_left_running(tmp_path: Path) -> None:
    first = Running(tmp_path / "data", "--port", "0", "--zookeeper-port", "0")
    with (
        blocking.connect(first.uri) as bookkeeper,
        bookkeeper.create_ledger(password=PASSWORD) as ledger,
    ):
        ledger.append(b"kept")
        ledger_id = ledger.ledger_id
    pids = first.pids
    assert len(pids) >= 6  # four bookies, ZooKeeper and what holds its lifeline
    assert first.end(signal.SIGTERM) == 0
    assert all(map(is_gone, pids))

    second = Running(tmp_path / "data")
    assert second.uri == first.uri
    assert [b["id"] for b in second.ready["bookies"]] == [b["id"] for b in first.ready["bookies"]]
    with blocking.connect(second.uri) as bookkeeper:
        reader = bookkeeper.open_ledger(ledger_id, recover=False, password=PASSWORD)
        assert [batch.to_list() for batch in reader.read(0, 0)] == [[b"kept"]]
    pids = second.pids
    second.end(signal.SIGKILL)
    assert comes_true(lambda: all(map(is_gone, pids)))


@pytest.mark.timeout(120)
@pytest.mark.rule("E2", "E3")
def test_for_people_it_prints_what_to_paste_and_who_can_connect(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bk_cli.main", "local", "--data", str(tmp_path / "d")]
    command += ["--port", "0", "--zookeeper-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    text = "".join(lines)
    spark, python = snippets(text)
    ran = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=False)
    process.send_signal(signal.SIGINT)
    assert process.wait(STOP_S) == 0
    process.stdout.close()
    assert (ran.stdout, ran.stderr) == ("0 0\n", "")
    compile(spark, "spark", "exec")
    assert 'format("bookkeeper").option("metadataServiceUri", uri)' in spark
    assert text.count("127.0.0.1:") >= 7  # ZooKeeper, four bookies, and the URI in both snippets
    assert "Only this machine can connect" in text


@pytest.mark.timeout(120)
@pytest.mark.rule("L7")
def test_a_secure_one_prints_what_a_client_needs_and_lets_nobody_else_in(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bk_cli.main", "local", "--secure", "--data", str(tmp_path / "d")]
    command += ["--port", "0", "--zookeeper-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    text = "".join(iter(process.stdout.readline, "Ctrl-C stops it.\n"))
    shell, spark, python = snippets(text)
    admin = str(tmp_path / "d" / "security" / "admin.env")
    try:
        ran = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=False)
        assert (ran.stdout, ran.stderr) == ("0 0\n", "")
        assert admin in text
        as_client = bk_in_shell(shell + "bk bookie list --json; bk role grant admin 'CN=client,O=bk-local'")
        assert as_client.stdout.count('"answerMs":') == 4, as_client.stderr
        assert '"error":null' in as_client.stdout
        assert as_client.returncode == 5, "ZooKeeper's ACLs let no client change roles"
        as_admin = bk_in_shell(f". {admin}; bk role list; bk doctor")
        assert as_admin.returncode == 0, as_admin.stdout + as_admin.stderr
        assert "none of" in as_admin.stdout
        assert len(re.findall(r"CN=(?:admin|bookie|client),O=bk-local +(?:admin|bookie|writer)", as_admin.stdout)) == 3
        uri = re.findall(r"zk://\S+/ledgers", text)[0]
        assert main.run(["ledger", "list", "--metadata-service-uri", uri]) == 5
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_S) == 0
        process.stdout.close()
    compile(spark, "spark", "exec")
    assert ".options(**options)" in spark
    assert "PRIVATE KEY" not in text
    bookie = (tmp_path / "d" / "bookie-1.toml").read_text()
    assert 'security = "secure"' in bookie


def bk_in_shell(script: str) -> subprocess.CompletedProcess[str]:
    """With ``bk`` of this interpreter."""
    own = f'bk() {{ {sys.executable} -m bk_cli.main "$@"; }}; '
    return subprocess.run(["sh", "-c", own + script], capture_output=True, text=True, timeout=60, check=False)


def snippets(text: str) -> list[str]:
    """The indented parts, ready to run."""
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks]


def test_a_port_in_use_is_named_before_anything_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main.run(["local", "--data", str(tmp_path), "--port", "0", "--zookeeper-port", str(port)]) == 4
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
    assert not (tmp_path / "cluster.json").exists()


@pytest.mark.rule("E3")
def test_a_bookie_refuses_to_register_a_loopback_address_unless_told(
    tmp_path: Path, zookeeper_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bookie", "run", "--data", str(tmp_path / "b"), "--port", str(free_port())]
    command += ["--metadata-service-uri", f"{zookeeper_uri}/e3", "--advertised-address", "127.0.0.1"]
    assert main.run(command) == 2
    error = capsys.readouterr().err
    assert "--allow-loopback" in error
    assert error.startswith("[BK_INVALID_ARGUMENT]")


@pytest.mark.rule("E1")
def test_an_unreachable_zookeeper_is_reported_within_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    uri = f"zk://127.0.0.1:{free_port()}/ledgers"
    assert main.run(["ledger", "list", "--metadata-service-uri", uri]) == 5
    assert time.monotonic() - started < 12
    assert "[BK_METADATA_UNAVAILABLE]" in capsys.readouterr().err
