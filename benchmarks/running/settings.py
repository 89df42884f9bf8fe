# SPDX-License-Identifier: Apache-2.0
"""The settings of a measurement, from the options of the command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a measurement. ``runs`` is the number of timed runs, after one to warm up. ``scale`` is the share
    of the usual amount of data."""

    runs: int = 3
    scale: float = 1.0
    lane: str = "direct"
    peers: frozenset[str] = frozenset({"raw"})
    profile: bool = False
