# SPDX-License-Identifier: Apache-2.0
"""The cluster of the trial: a real ZooKeeper, and six bookies as processes, ours or Apache's. Where the machine allows
it, each has a network of its own, and two are on a disk that can be filled."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bk_cli.local.cluster import APACHE_JAVA, APACHE_SETTINGS
from bk_cli.local.cluster_layout import PORTS_ABOVE, free_bookie_ports
from bk_cli.local.java import find_java
from bk_cli.local.local_security import ADMIN
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.client import BookKeeper, ClientConfig, connect
from bk_core.cluster.admin_ports import Numbers, parse_numbers
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from tests.interop.jars import toolchain
from tests.trials.bookie.clients import SETTINGS_VARIABLE
from tests.trials.heal.schedule import Slot
from tests.trials.heal.serve import OFFSET
from tests.trials.kit.network import BRIDGE, host_of, make_bridge, set_cable
from tests.trials.kit.nursery import Child, Nursery
from tests.trials.kit.process import ServerProcess
from tests.trials.kit.security import TrialSecurity

HOST = "127.0.0.1"
ADMIN_S = 3.0
LOST_DELAY_S = 5
SMALL_DISK_BYTES = 256 << 20
ADMIN_PORT_ABOVE = PORTS_ABOVE[-1]

SETTINGS = f"""\
unix_socket = false
admin_host = "0.0.0.0"
segment_size_bytes = {16 << 20}
segments_kept_free = 1
session_timeout_s = 4.0
metadata_timeout_s = 4.0
disk_check_interval_s = 1.0
checkpoint_interval_s = 5.0
scrub_interval_s = 2.0
scrub_bytes_per_s = {16 << 20}
gc_interval_s = 5.0
gc_grace_s = 3.0
auto_recovery = true
lost_bookie_delay_s = {LOST_DELAY_S}.0
replication_bytes_per_s = 20_000_000
upkeep = true
"""


class Node(ServerProcess):
    """A place for a bookie. The bookie's id and data change when another bookie takes the place."""

    def __init__(self, cluster: HealCluster, slot: Slot, port: int) -> None:
        name, network = f"bookie-{slot.number}", slot.number if cluster.network else None
        super().__init__(cluster.nursery, name, cluster.path / f"{name}.log", network)
        self.slot, self.number, self.ours, self.port = slot, slot.number, slot.ours, port
        self._cluster = cluster
        self.host = host_of(slot.number) if cluster.network else HOST
        self.data = cluster.path / name
        self.bookie_id = name if slot.ours else f"{self.host}:{port}"
        self._clock = cluster.path / f"clock-{slot.number}"
        self._clock.write_bytes(OFFSET.pack(0.0))
        self.data.mkdir()
        if slot.small:
            size = f"size={SMALL_DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "trial", str(self.data)], check=True)

    # --- its process ---

    def start(self, *, accept_loss: bool = False) -> None:
        """Start the bookie. :meth:`wait_ready` waits until it serves."""
        if self.ours:
            self._start_ours(accept_loss)
        else:
            assert not accept_loss
            self._start_apache()

    def _start_ours(self, accept_loss: bool) -> None:
        arguments = ["bookie", "run", "--data", str(self.data), "--port", str(self.port), "--allow-loopback"]
        arguments += ["--bookie-id", self.bookie_id, "--listen-address", "0.0.0.0", "--advertised-address", self.host]
        arguments += ["--metadata-service-uri", self._cluster.uri, "--config", str(self._cluster.path / "bookies.toml")]
        arguments += ["--accept-loss"] if accept_loss else []
        self.begin(
            "tests.trials.heal.serve:bookie",
            arguments=arguments,
            clock=str(self._clock),
            broken=self._cluster.broken,
        )

    def _start_apache(self) -> None:
        values = {
            "metadataServiceUri": self._cluster.uri,
            "bookiePort": self.port,
            "advertisedAddress": self.host,
            "allowLoopback": "true",
            "journalDirectories": self.data / "journal",
            "ledgerDirectories": self.data / "ledgers",
            **APACHE_SETTINGS,
            "zkTimeout": 4_000,
            "httpServerEnabled": "false",
            "gcWaitTime": 5_000,
            "lostBookieRecoveryDelay": LOST_DELAY_S,
            "autoRecoveryDaemonEnabled": "false",
            **self._cluster.told_apaches_bookie,
        }
        conf = self._cluster.path / f"bookie-{self.number}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        main = ["org.apache.bookkeeper.server.Main", "-c", str(conf)]
        command = [find_java().path, *APACHE_JAVA, "-cp", toolchain().class_path, *main]
        self.begin("tests.trials.heal.serve:java", arguments=command)

    @property
    def is_ready(self) -> bool:
        if not self.ours:
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1):
                return True
            return False
        return super().is_ready

    def stop(self) -> int | None:
        """Send SIGTERM. Return the exit code, or None if the process did not end in time and was killed."""
        code = self.end(signal.SIGTERM)
        self.kill()
        return code

    def ended(self, within_s: float) -> int | None:
        """Return the exit code of a process that ends by itself, or None if it has not ended in time."""
        assert self.child is not None
        return self.child.wait(within_s)

    # --- around it ---

    def set_cable(self, *, away: bool) -> None:
        set_cable(self.number, away=away)

    def set_clock(self, offset_s: float) -> None:
        """Set the bookie's wall clock wrong by ``offset_s`` seconds."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("<d", offset_s))

    def empty(self) -> None:
        """Delete all data of the bookie."""
        assert self.child is None
        for each in self.data.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    def become_new(self) -> str:
        """Put another bookie in this place. Return the id of the old one."""
        self.empty()
        before, self.bookie_id = self.bookie_id, f"bookie-{self.number}-{self._cluster.next_life()}"
        return before

    # --- what it says ---

    def get(self, path: str) -> str:
        """Return a page of the bookie's admin port. Raises OSError."""
        context = self._cluster.tls_context()
        address = f"http{'s' if context else ''}://{self.host}:{self.port + ADMIN_PORT_ABOVE}{path}"
        with urllib.request.urlopen(address, timeout=ADMIN_S, context=context) as answer:
            return str(answer.read().decode())

    def metrics(self) -> Numbers:
        return parse_numbers(self.get("/metrics"))

    def lacking(self) -> int:
        """Return the number of ledgers of which the bookie says that its copy is incomplete."""
        said: dict[str, Any] = json.loads(self.get("/lacking"))
        return int(said["ledgers"])


class HealCluster:
    """The cluster, as a context manager. With ``secure``, bookies and clients use mode secure, or mode mixed if there
    are bookies of Apache's (:mod:`tests.trials.kit.security`)."""

    def __init__(
        self, path: Path, slots: Sequence[Slot], *, network: bool, broken: str = "", secure: bool = False
    ) -> None:
        self.path, self.network, self.broken = path, network, broken
        self._slots = slots
        mixed = not all(slot.ours for slot in slots)
        hosts = (HOST, *(host_of(slot.number) for slot in slots))
        self.security = TrialSecurity(path, hosts, mixed=mixed) if secure else None
        self._told = {} if self.security is None else self.security.settings(ADMIN)
        self._stack = ExitStack()
        self._lives = len(slots)
        self.nodes: list[Node] = []

    def __enter__(self) -> HealCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        told = {} if self.security is None else self.security.bookie_settings()
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
        (self.path / "bookies.toml").write_text(SETTINGS + lines, encoding="utf-8")
        if self.network:
            make_bridge()
        zookeeper = ZooKeeperServer(host=BRIDGE if self.network else HOST, tick_ms=200, durable=False)
        self._stack.callback(zookeeper.stop)
        self.uri = f"zk://{zookeeper.start(self.path / 'zookeeper')}/ledgers"
        clients = {} if self.security is None else self.security.settings()
        self.nursery = Nursery(**{SETTINGS_VARIABLE: json.dumps(clients)})
        self._stack.callback(self.nursery.close)
        self.store: MetadataStore = open_store(self.uri, **self.config().store_settings())
        self._stack.callback(self.store.close)
        self.store.initialize_cluster()
        if self.security is not None:
            self.store.write_roles(self.security.roles(), None)
        ports = free_bookie_ports(len(self._slots))
        for slot, port in zip(self._slots, ports, strict=True):
            self.nodes.append(Node(self, slot, port))
            if slot.small:
                self._stack.callback(subprocess.run, ["umount", "-l", str(self.nodes[-1].data)], check=False)
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready()

    def node(self, slot: int) -> Node:
        return self.nodes[slot - 1]

    # --- how it is reached by the trial itself, and by an operator ---

    def config(self, **more: Any) -> ClientConfig:
        return ClientConfig(**self._told, **more)

    async def connect(self, **more: Any) -> BookKeeper:
        """Return a new client, which the caller closes."""
        return await connect(self.uri, config=self.config(**more))

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for admin ports, or None if they use plain HTTP."""
        if self.security is None:
            return None
        context = ssl.create_default_context(cafile=self._told["tls_ca_path"])
        context.load_cert_chain(self._told["tls_certificate_path"], self._told["tls_key_path"])
        return context

    @property
    def told_apaches_bookie(self) -> dict[str, object]:
        return {} if self.security is None else self.security.java_bookie_settings()

    @property
    def told_apaches_client(self) -> dict[str, object]:
        return {} if self.security is None else self.security.java_settings()

    def next_life(self) -> int:
        self._lives += 1
        return self._lives

    def command(self, name: str, *arguments: str) -> tuple[Child, Path]:
        """Run ``bk ARGUMENTS`` as a process. Return the process, and the file that gets its output."""
        log = self.path / f"{name}-{self.next_life()}.log"
        given = [*arguments, "--metadata-service-uri", self.uri]
        given += [f"--{name.replace('_', '-')}={value}" for name, value in self._told.items() if value]
        child = self.nursery.start("tests.trials.heal.serve:command", log, arguments=given, broken=self.broken)
        return child, log

    def close(self) -> None:
        """End every process that was started here, and no other."""
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.close()
