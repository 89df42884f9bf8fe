# SPDX-License-Identifier: Apache-2.0
"""Our bookies in emulated networks, where clients reach them over TCP alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bk_cli.local.cluster import BookieProcess
from bk_cli.local.cluster_layout import free_bookie_ports
from tests.kit.process_cluster import wait_ready

if TYPE_CHECKING:
    from benchmarks.networks.network import Namespace

SETTINGS = "unix_socket = false\n"


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
