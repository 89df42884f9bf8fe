# SPDX-License-Identifier: Apache-2.0
"""A group of :mod:`benchmarks`, made from a list of measurements that share a world."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement, measure
from benchmarks.report.figures import Figure
from benchmarks.running.settings import Settings
from benchmarks.running.world import World
from benchmarks.storage.scratch import check_room, terminated_as_interrupted

LEAST_BYTES = 3 << 30
"""The least disk space that a group needs, in bytes, for servers and their files of a fixed size."""


class MeasurementGroup:
    """The measurements of ``benchmarks/groups/<name>.py``, which is imported when they are needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"benchmarks.groups.{self._name}")

    @property
    def _measurements(self) -> Sequence[Measurement]:
        found: Sequence[Measurement] = self._module.MEASUREMENTS
        return found

    def parts(self, peers: Collection[str]) -> list[str]:
        """Return the names of the measurements."""
        return [one.name for one in self._measurements if not one.needs or one.needs in peers]

    def needed_bytes(self, names: Collection[str], scale: float) -> int:
        """Return the bytes of disk that these measurements need."""
        whole: float = getattr(self._module, "NEEDED_BYTES", LEAST_BYTES)
        wanted = (one for one in self._measurements if one.name in names)
        most = max((whole if one.disk_bytes is None else one.disk_bytes for one in wanted), default=0.0)
        return max(LEAST_BYTES, int(most * scale))

    def measure(self, names: Collection[str], folder: Path, settings: Settings) -> Iterator[tuple[str, list[Figure]]]:
        """Yield the figures of each measurement. Raises InvalidArgumentError before the first begins if there is too
        little room."""
        check_room(folder, self.needed_bytes(names, settings.scale), f"{', '.join(names)} of the group {self._name}")
        wanted = [one for one in self._measurements if one.name in names]
        with (
            terminated_as_interrupted(),
            World(folder, scale=settings.scale, lane=settings.lane, profiled=settings.profile) as world,
        ):
            for one in wanted:
                yield one.name, measure(one, world, settings.peers, settings.runs)
