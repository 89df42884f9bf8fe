# SPDX-License-Identifier: Apache-2.0
"""Helpers for starting server processes on this machine: free ports, an environment, the end of a log."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from bk_core.errors import PortInUseError
from bk_core.model import host_and_port, plain_host

PORTS = range(12_000, 32_768)
"""The range of ports to choose from. It is below the ports that a kernel gives to outgoing connections: a client could
take one of those between the choice and the start, or while its server restarts."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that no process uses at this moment. Raises PortInUseError if there is none."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1", *, above: Sequence[int] = ()) -> tuple[int, ...]:
    """Return ``count`` different ports that no process uses. For each port, the ports at the distances ``above`` from
    it are also free and in ``PORTS``. The function keeps all of them bound until it has found enough. Raises
    PortInUseError."""
    held: list[socket.socket] = []
    found: list[int] = []
    try:
        for port in random.sample(PORTS, len(PORTS)):
            wanted = [port, *(port + each for each in above)]
            if wanted[-1] not in PORTS:
                continue
            probes = [socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) for _ in wanted]
            held += probes
            try:
                for probe, each in zip(probes, wanted, strict=True):
                    probe.bind((host, each))
            except OSError:
                for probe in probes:
                    probe.close()
                continue
            found.append(port)
            if len(found) == count:
                return tuple(found)
    finally:
        for probe in held:
            probe.close()
    raise PortInUseError(
        "there are not enough free ports",
        value=f"{count} of {PORTS.start} to {PORTS.stop - 1} on {host}",
        remedy="stop what listens there, or choose a port",
    )


def check_port_free(host: str, port: int, who: str) -> None:
    """Check that ``who`` could listen there. Raises PortInUseError."""
    host = plain_host(host)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUseError(
                f"{who} cannot listen on port {port}",
                value=f"{host_and_port(host, port)}: {error.strerror}",
                remedy="stop what runs there, or choose another port (0 takes a free one)",
            ) from error


def child_environment() -> dict[str, str]:
    """Return this process's environment with the folder of this package in PYTHONPATH, because a child may start in
    another folder."""
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def last_lines(log_path: Path | None, count: int = 4) -> str:
    """Return the end of a log, on one line."""
    try:
        text = log_path.read_text(encoding="utf-8", errors="replace") if log_path else ""
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "its log is empty"
