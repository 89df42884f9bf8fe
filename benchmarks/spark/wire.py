# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes that a job moves between clients and servers, from the kernel's counters of the servers'
connections.

``ss`` of iproute2 prints them. It is called again and again while the job runs, because connections may end with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Collection

from bk_core.errors import InvalidArgumentError

ASK_S = 0.05
_LINE = re.compile(r"^\S+\s+\S+\s+(?P<local>\S+:(?P<port>\d+))\s+(?P<peer>\S+)\s(?P<rest>.*)$")
_BYTES = re.compile(r"\bbytes_(?:sent|received):(\d+)")

Counts = dict[tuple[str, str], int]


def counts_of(text: str, ports: Collection[int]) -> Counts:
    """Return the bytes in both directions of each connection of a server at one of the ports, from the output of
    ``ss``."""
    lines = (match for line in text.splitlines() if (match := _LINE.match(line)) and int(match["port"]) in ports)
    return {(line["local"], line["peer"]): sum(map(int, _BYTES.findall(line["rest"]))) for line in lines}


class Wire:
    """The connections of servers at some ports."""

    def __init__(self, ports: Collection[int]) -> None:
        """Check that ``ss`` is there. Raises InvalidArgumentError."""
        self._ports = frozenset(ports)
        if shutil.which("ss") is None:
            raise InvalidArgumentError("ss is not there, which counts bytes", remedy="sudo apt-get install iproute2")

    def bytes_of(self, work: Callable[[], object]) -> int:
        """Return the bytes that are moved while ``work`` runs."""
        before, most, ended = self._now(), Counts(), threading.Event()

        def look() -> None:
            most.update({key: max(count, most.get(key, 0)) for key, count in self._now().items()})

        def watch() -> None:
            while not ended.wait(ASK_S):
                look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            work()
        finally:
            ended.set()
            watcher.join()
        look()
        return sum(count - before.get(key, 0) for key, count in most.items())

    def _now(self) -> Counts:
        command = ["ss", "-tinHO", "state", "established"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return counts_of(done.stdout, self._ports)
