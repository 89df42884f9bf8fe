# SPDX-License-Identifier: Apache-2.0
"""The input of a part of the group: the cluster, and how often and how much to measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.spark.session import FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The input of a part. ``folder`` is empty and on the disk to be measured. ``kafka`` is a broker's address, or
    empty."""

    uri: str
    folder: Path
    runs: int
    scale: float
    kafka: str = ""
    lane: str = "direct"

    @property
    def options(self) -> dict[str, str]:
        """The options of each source and sink."""
        return {"metadataServiceUri": self.uri, "bookkeeper.lanes": self.lane}

    def scaled(self, count: int, least: int = 1) -> int:
        """Return the share of ``count`` that is to be measured."""
        return max(least, int(count * self.scale))

    def reads(self, spark: Any, **options: object) -> Any:
        """Return a reader of ``format("bookkeeper")`` on the cluster."""
        return spark.read.format(FORMAT).options(**self.options, **options)

    def streams(self, spark: Any, **options: object) -> Any:
        """Return a reader of streams, from their beginning."""
        return spark.readStream.format(FORMAT).options(**self.options, startingOffsets="earliest", **options)

    def appends(self, frame: Any, **options: object) -> Any:
        """Return a writer that appends to a log of the cluster."""
        return frame.write.format(FORMAT).options(**self.options, **options).mode("append")

    def new_folder(self) -> Path:
        """Make a new folder."""
        path = self.folder / uuid4().hex[:8]
        path.mkdir(parents=True)
        return path


def new_log() -> str:
    """Return a name that no log has yet."""
    return f"bench-{uuid4().hex[:8]}"
