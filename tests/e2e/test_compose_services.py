# SPDX-License-Identifier: Apache-2.0
"""docker-compose.yml's services as plain processes, in their order, on an empty ZooKeeper: what ``docker compose up``
does, but for the containers. Command lines are compose's own; only ports and data directories are others.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from bk_cli.local.children import last_lines
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core import blocking
from bk_core.metadata import open_store
from tests.interop.jars import toolchain
from tests.interop.java_process import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]
BOOKIES = [name for name in SERVICES if name.startswith("bookie-")]
PORTS = [2181, 3181, 3182, 3183, 3184, 3185]

WRITE_AND_READ = """
import os
exec(open(os.environ["PYTHONSTARTUP"]).read())  # what the shell does before it asks; not if its input is no terminal
options = dict(metadataServiceUri={uri!r}, log="numbers", codec="arrow")
rows = spark.range(10_000).selectExpr("id", "cast(id AS string) AS name")
rows.write.format("bookkeeper").options(**options).mode("append").save()
read = spark.read.format("bookkeeper").options(**options).load().select("id", "name").collect()
print("ROWS", len(read), sorted(read) == sorted(rows.collect()))
"""


class Services:
    """The services of the file, in ``path``, on free ports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ports = dict(zip(PORTS, free_bookie_ports(len(PORTS)), strict=True))
        self.zookeeper = ZooKeeperServer()
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._logs: list[IO[str]] = []

    @property
    def uri(self) -> str:
        return f"zk://127.0.0.1:{self.ports[2181]}/ledgers"

    def command(self, name: str) -> list[str]:
        """The service's own command line, with ports and directories of this test."""
        text = SERVICES[name].get("command", "")
        for port, ours in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(ours), text)
        words = shlex.split(text.replace("--data /data", f"--data {self.path / name}"))
        return [*SERVICES[name].get("entrypoint", [sys.executable, "-m", "bk_cli.main"]), *words]

    def up(self) -> None:
        """ZooKeeper first, because the bookies depend on its health; then they start together."""
        assert all(SERVICES[name]["depends_on"] == {"zookeeper": {"condition": "service_healthy"}} for name in BOOKIES)
        self.zookeeper.start(self.path / "zookeeper", self.ports[2181])
        for name in BOOKIES:
            log = (self.path / f"{name}.log").open("w", encoding="utf-8")
            self._logs.append(log)
            self.running[name] = subprocess.Popen(
                self.command(name), stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.path, env=self.environment
            )
        for name, process in self.running.items():
            assert process.stdout
            ready = process.stdout.readline()  # or the end, of one that could not start
            assert ready.startswith("ready "), (name, (self.path / f"{name}.log").read_text(encoding="utf-8"))

    @contextlib.contextmanager
    def apache_bookie(self) -> Iterator[str]:
        """Apache's bookie, with the settings that its image makes of the environment; its id."""
        given = SERVICES["apache-bookie"]["environment"]
        settings = {key[3:]: value for key, value in given.items() if key[3].islower()}
        port, folder = self.ports[int(settings["bookiePort"])], self.path / "apache-bookie"
        folder.mkdir()
        settings |= {"bookiePort": str(port), "metadataServiceUri": self.uri}
        settings |= {"journalDirectories": str(folder / "journal"), "ledgerDirectories": str(folder / "ledgers")}
        (folder / "conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        main = "org.apache.bookkeeper.server.Main"
        with Daemon(toolchain(), main, ["-c", str(folder / "conf")], self.path / "apache-bookie.log"):
            yield f"{settings['advertisedAddress']}:{port}"

    def instance_of(self, name: str) -> str:
        """The cluster that is written in this bookie's cookie."""
        cookie = (self.path / name / "VERSION").read_text(encoding="utf-8")
        found = re.search(r'instanceId: "([^"]+)"', cookie)
        assert found, cookie
        return found[1]

    def stop(self) -> list[int]:
        """As ``docker compose stop``: SIGTERM to each; their exit codes."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        codes = []
        for process in self.running.values():
            try:
                codes.append(process.wait(30))
            finally:
                process.kill()
                assert process.stdout
                process.stdout.close()
        self.running.clear()
        for log in self._logs:
            log.close()
        self._logs.clear()
        self.zookeeper.stop()
        return codes

    def run(self, name: str, stdin: str = "") -> str:
        """As ``docker compose run --rm NAME``: what it prints; it must succeed."""
        done = subprocess.run(
            self.command(name),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=500,  # a busy machine takes minutes for what is done in one
            cwd=self.path,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    yield made
    made.stop()


@pytest.mark.spark
@pytest.mark.rule("E2")
def test_the_services_come_up_from_nothing_and_again_with_their_data(services: Services) -> None:
    """One bookie makes the cluster and all are of it, or some would be refused at their next start. Then the shell
    writes and reads through them; ``scripts/demo`` does that with 336,776 rows."""
    services.up()
    assert len({services.instance_of(name) for name in BOOKIES}) == 1
    assert services.stop() == [0, 0, 0, 0]
    services.up()
    said = services.run("doctor").replace("note  java", "ok    java")
    assert "note  acls" in said, "ZooKeeper is open to everybody here, and the doctor says so"
    said = said.replace("note  acls", "ok    acls")
    assert {line.split()[0] for line in said.splitlines()} == {"ok"}, said
    assert len(re.findall(r"^ok    bookie ", said, re.MULTILINE)) == 4
    said = services.run("spark", WRITE_AND_READ.format(uri=services.uri))
    assert "ROWS 10000 True\n" in said, said


@pytest.mark.interop
def test_apaches_bookie_joins_the_others(services: Services) -> None:
    services.up()
    with services.apache_bookie() as bookie_id, blocking.connect(services.uri) as bookkeeper:
        deadline = time.monotonic() + 60
        while bookie_id not in writable(services.uri):
            assert time.monotonic() < deadline, last_lines(services.path / "apache-bookie.log")
            time.sleep(0.2)
        with bookkeeper.create_ledger(ensemble_size=5, write_quorum_size=5, ack_quorum_size=5) as ledger:
            ledger.append(b"on five")
            assert bookie_id in ledger.metadata.last_fragment.ensemble


def writable(uri: str) -> set[str]:
    with contextlib.closing(open_store(uri)) as store:
        return set(store.writable_bookies())
