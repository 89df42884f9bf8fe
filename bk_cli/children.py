# SPDX-License-Identifier: Apache-2.0
"""What starting server processes on this machine needs: free ports, an environment, the end of a log."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bk_core.errors import PortInUseError


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port_free(host: str, port: int, who: str) -> None:
    """Raises PortInUseError when ``who`` could not listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUseError(
                f"{who} cannot listen on port {port}",
                value=f"{host}:{port}: {error.strerror}",
                remedy="stop what runs there, or choose another port (0 takes a free one)",
            ) from error


def child_environment() -> dict[str, str]:
    """This process's environment, with the place where it found this package: a child may start in another folder."""
    places = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def last_lines(log_path: Path | None, count: int = 4) -> str:
    """The end of a log, on one line."""
    try:
        text = log_path.read_text(encoding="utf-8", errors="replace") if log_path else ""
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "its log is empty"
