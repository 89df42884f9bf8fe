# SPDX-License-Identifier: Apache-2.0
"""How it is measured: what the groups are told of the command's options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """``runs`` are timed, after one to warm up; ``scale`` is the share of the usual amount of data."""

    runs: int = 3
    scale: float = 1.0
    lane: str = "direct"
    peers: frozenset[str] = frozenset({"raw"})
    profile: bool = False
