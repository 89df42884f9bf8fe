# SPDX-License-Identifier: Apache-2.0
"""Bookies of ours and Apache's, and clients, in networks of their own, joined by cables of 1 Gbit/s. The client's cable
can be long, and can lose packets. The machine's own network is not touched.

The hub has a bridge and ZooKeeper. At the other end of each cable is a network with one bookie of each kind, or with
the clients. The kernel limits the rate (``tc tbf`` at both ends, so for each direction). A relay of ours between two
TAP devices adds delay and loss, because not every kernel has netem.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.running.processes import APACHES_BOOKIES, APACHES_CLIENT, BOOKIES, ZOOKEEPER
from bk_cli.local.cluster import BookieProcess
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import BookKeeperError
from tests.kit.process_cluster import wait_ready

if TYPE_CHECKING:
    from benchmarks.peers.apache import Java
    from benchmarks.running.world import World

RATE_BITS = 1_000_000_000
TBF = ("tbf", "rate", f"{RATE_BITS}bit", "burst", "128kb", "latency", "20ms")
CONGESTION = "reno"
"""The congestion control of TCP. It is allowed in every namespace. cubic behaves the same if a packet takes so little
time."""
SETTINGS = "unix_socket = false\n"
"""The settings of the bookies, which clients reach over TCP alone."""
BOOKIE_COUNT, CLIENT_NUMBER, HUB_NUMBER = 3, 9, 254
RELAY = Path(__file__).with_name("relay.c")
COMMAND_S, COMPILE_S = 10, 60
_NEW_NETWORK = 0x40000000
_TAP, _NO_INFORMATION, _SET_INTERFACE = 0x0002, 0x1000, 0x400454CA
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Link:
    """The properties of the client's cable besides its rate. ``delay_ms`` is there and back."""

    name: str
    delay_ms: float = 0.0
    loss: float = 0.0


LAN, FAR, LOSSY = Link("lan"), Link("far", 1.0), Link("lossy", 1.0, 0.01)


class Namespace:
    """A network of its own, with a process at the address ``host``. It ends with the last process in it, once ``close``
    was called."""

    def __init__(self, number: int) -> None:
        self.host = f"10.77.0.{number}"
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _checked(_libc.unshare(_NEW_NETWORK), "unshare")
            self._fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            ip("link", "set", "lo", "up")
            _run("sh", "-c", f"echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control")
        finally:
            _checked(_libc.setns(home, _NEW_NETWORK), "setns")
            os.close(home)

    @property
    def path(self) -> str:
        """The path by which ``ip`` names the network."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        os.close(self._fd)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread into the network for the block, and with it the processes that it starts."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _checked(_libc.setns(self._fd, _NEW_NETWORK), "setns")
        try:
            yield
        finally:
            _checked(_libc.setns(home, _NEW_NETWORK), "setns")
            os.close(home)


class PlacedBookie(BookieProcess):
    """A process of a bookie in a network of its own."""

    def __init__(self, number: int, data_dir: Path, port: int, uri: str, place: Namespace, settings: Path) -> None:
        super().__init__(number, data_dir, port, uri)
        self._place, self._settings = place, settings

    def start(self) -> None:
        with self._place.entered():
            super().start()

    def _command(self) -> list[str]:
        host = self._place.host
        said_last_counts = ["--listen-address", host, "--advertised-address", host, "--config", str(self._settings)]
        return [*super()._command(), *said_last_counts]


class Bookies:
    """A bookie in each of the networks; a context manager that runs them."""

    def __init__(self, folder: Path, uri: str, places: Sequence[Namespace]) -> None:
        folder.mkdir(parents=True)
        settings = folder / "bookies.toml"
        settings.write_text(SETTINGS, encoding="utf-8")
        self.folder, self.uri, self._stack = folder, uri, ExitStack()
        ports = free_bookie_ports(len(places))
        self.bookies = [
            PlacedBookie(number, folder / f"bookie-{number}", port, uri, place, settings)
            for number, (port, place) in enumerate(zip(ports, places, strict=True), start=1)
        ]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for bookie in self.bookies:
                stack.callback(bookie.stop)
                bookie.start()
            for bookie in self.bookies:
                stack.callback(bookie.terminate)  # at the end, all are terminated before the first is waited for
            wait_ready(self.bookies)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Network:
    """The networks of a world, which end with it. Raises BookKeeperError where the machine cannot make them."""

    def __init__(self, world: World) -> None:
        self._world = world
        try:
            self._relay = _compiled(Path(".cache/bench-peers"))
            self._hub, *self._nodes, self.client = (
                self._namespace(number) for number in (HUB_NUMBER, *range(1, BOOKIE_COUNT + 1), CLIENT_NUMBER)
            )
            with self._hub.entered():
                ip("link", "add", "hub", "type", "bridge")
                ip("addr", "add", f"{self._hub.host}/24", "dev", "hub")
                ip("link", "set", "hub", "up")
            for number, node in enumerate(self._nodes):
                self._join(node, f"port{number}")
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or b""
            raise BookKeeperError(
                "networks of their own cannot be made here",
                value=f"{error}: {said.decode(errors='replace')[-300:]}",
                remedy="run it as root on Linux with ip, tc with tbf, /dev/net/tun and a C compiler, or leave these "
                "parts out (--only)",
            ) from error
        self._link: Link | None = None
        self._cable = ExitStack()
        world.stack.callback(self._cable.close)

    def _namespace(self, number: int) -> Namespace:
        made = Namespace(number)
        self._world.stack.callback(made.close)
        return made

    # --- cables ---

    def _join(self, node: Namespace, port: str) -> None:
        """Join the network to the hub with a cable."""
        with self._hub.entered():
            ip("link", "add", port, "type", "veth", "peer", "name", "cable", "netns", node.path)
        self._plug(node, port)

    def _plug(self, node: Namespace, port: str) -> None:
        with self._hub.entered():
            ip("link", "set", port, "master", "hub", "up")
            _run("tc", "qdisc", "add", "dev", port, "root", *TBF)
        with node.entered():
            ip("addr", "add", f"{node.host}/24", "dev", "cable")
            ip("link", "set", "cable", "up")
            _run("tc", "qdisc", "add", "dev", "cable", "root", *TBF)

    def use(self, link: Link) -> None:
        """Give the client a cable of this kind. Existing connections are lost."""
        if link == self._link:
            return
        self._cable.close()
        if link.delay_ms or link.loss:
            self._relayed(link)
        else:
            self._join(self.client, "client")
            self._cable.callback(self._unplug)
        self._link = link

    def _unplug(self) -> None:
        with self._hub.entered():
            ip("link", "del", "client")

    def _relayed(self, link: Link) -> None:
        ends = [_tap(self._hub, "client"), _tap(self.client, "cable")]
        wait_us, lost = int(link.delay_ms * 500), int(link.loss * 1e6)
        command = [str(self._relay), *map(str, ends), str(wait_us), str(lost)]
        relay = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=ends)
        for end in ends:
            os.close(end)  # the devices end with the relay
        self._cable.callback(_ended, relay)
        self._plug(self.client, "client")

    # --- servers and clients ---

    @cached_property
    def _zookeeper(self) -> str:
        server = ZooKeeperServer(host=self._hub.host)
        with self._world.processes.born(ZOOKEEPER), self._hub.entered():
            address = server.start(self._world.folder / "hub-zookeeper")
        self._world.stack.callback(server.stop)
        return address

    @cached_property
    def bookies(self) -> Bookies:
        """Our bookies in these networks. They are started when they are first needed."""
        uri = f"zk://{self._zookeeper}/ours/ledgers"
        with self._world.processes.born(BOOKIES):
            return self._world.stack.enter_context(Bookies(self._world.folder / "networked", uri, self._nodes))

    def java(self) -> Java:
        """Return a client of Apache's on Apache's bookies."""
        from benchmarks.peers.apache import Java

        return Java(self._program, self._apaches_uri, 3, {})

    @cached_property
    def _program(self) -> Any:
        from tests.interop.java_process import FAST, JavaProgram

        log_path = self._world.folder / "networked-client.log"
        with self._world.processes.born(APACHES_CLIENT), self.client.entered():
            return self._world.stack.enter_context(JavaProgram(self._toolchain, "Bench", log_path, FAST))

    @cached_property
    def _apaches_uri(self) -> str:
        from benchmarks.peers.apache import SETTINGS
        from tests.interop.java_process import FAST
        from tests.interop.peers import ApacheCluster

        path = self._world.folder / "networked-apache"
        with self._world.processes.born(APACHES_BOOKIES), self._hub.entered():
            cluster = ApacheCluster(self._toolchain, self._zookeeper, path, flags=FAST)
            self._world.stack.enter_context(cluster)
            for node in self._nodes:
                with node.entered():
                    cluster.add_bookie({**SETTINGS, "advertisedAddress": node.host})
        return cluster.uri

    @cached_property
    def _toolchain(self) -> Any:
        from benchmarks.peers.apache import VERSION
        from tests.interop.jars import toolchain

        return toolchain(VERSION)


def ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S)


def _checked(answer: int, what: str) -> None:
    if answer:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _tap(network: Namespace, name: str) -> int:
    """Make a device whose packets are read from and written to the returned descriptor."""
    with network.entered():
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TAP | _NO_INFORMATION))
    return end


def _compiled(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = (folder / "relay").absolute()
    command = ["cc", "-O2", "-o", str(program), str(RELAY)]
    subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S)
    return program


def _ended(relay: subprocess.Popen[bytes]) -> None:
    assert relay.stdin is not None
    relay.stdin.close()
    relay.wait(COMMAND_S)
