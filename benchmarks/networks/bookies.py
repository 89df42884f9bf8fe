# SPDX-License-Identifier: Apache-2.0
"""Our bookies in emulated networks, where clients reach them over TCP alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Self

from bk_cli.local.children import last_lines
from bk_cli.local.cluster import START_TIMEOUT_S, BookieProcess
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_core.errors import NotEnoughBookiesError

SETTINGS = "unix_socket = false\n"
POLL_S = 0.05


class Place:
    """A place for a process: the address on which it listens, and the network in which it is started."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def entered(self) -> AbstractContextManager[object]:
        """Start the processes of the block at this place."""
        return nullcontext()


class PlacedBookie(BookieProcess):
    """A process of a bookie that is started at a :class:`Place`."""

    def __init__(self, number: int, data_dir: Path, port: int, uri: str, place: Place, settings: Path) -> None:
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
    """A bookie at each of the places; a context manager that runs them."""

    def __init__(self, folder: Path, uri: str, places: Sequence[Place]) -> None:
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
            deadline = time.monotonic() + START_TIMEOUT_S
            while waiting := [bookie for bookie in self.bookies if not bookie.is_ready]:
                if time.monotonic() > deadline or not waiting[0].is_running:
                    said = last_lines(waiting[0].log_path)
                    raise NotEnoughBookiesError(f"bookie {waiting[0].number} did not start", value=said)
                time.sleep(POLL_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
