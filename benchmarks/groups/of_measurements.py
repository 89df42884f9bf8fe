# SPDX-License-Identifier: Apache-2.0
"""A group as the command wants it, of a list of measurements, which share a world."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.measurement import Measurement, measure
from benchmarks.settings import Settings
from benchmarks.storage.scratch import terminated_as_interrupted
from benchmarks.world import World


class MeasurementGroup:
    """Those of ``benchmarks/groups/<name>.py``, which is imported when it is asked for them."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _measurements(self) -> Sequence[Measurement]:
        module = importlib.import_module(f"benchmarks.groups.{self._name}")
        found: Sequence[Measurement] = module.MEASUREMENTS
        return found

    def parts(self, peers: Collection[str]) -> list[str]:
        """Their names."""
        return [one.name for one in self._measurements if not one.needs or one.needs in peers]

    def measure(self, names: Collection[str], folder: Path, settings: Settings) -> Iterator[tuple[str, list[Figure]]]:
        """The figures of each."""
        wanted = [one for one in self._measurements if one.name in names]
        with (
            terminated_as_interrupted(),
            World(folder, scale=settings.scale, lane=settings.lane, profiled=settings.profile) as world,
        ):
            for one in wanted:
                yield one.name, measure(one, world, settings.peers, settings.runs)
