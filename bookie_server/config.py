# SPDX-License-Identifier: Apache-2.0
"""A bookie's configuration: one frozen dataclass, checked with its relations when it is made (DESIGN §10)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane import FRAME_BYTES_MAX
from bookie_server.collector import CollectorConfig
from bookie_server.machine_state import MachineLimits
from bookie_server.storage.space import SpaceLimits

_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """What a bookie needs to know. Raises InvalidArgumentError for values that do not fit together.

    ``bookie_id`` is fixed at the first start, by default ``advertised_address:port``; later starts take it from the
    data directory. ``port`` 0 takes a free one. ``in_flight_bytes_max`` bounds frames of all clients that wait for a
    group commit, ``stream_bytes_max`` those of one; a group commit takes at most ``group_bytes_max`` and
    ``group_frames_max``. ``reads_active_max`` bounds parts of answers in memory, of ``read_part_bytes`` each or one
    frame. Above ``disk_usage_threshold`` (a share of the file system) the bookie turns read-only, at
    ``disk_usage_low_water`` it is writable again; it looks every ``disk_check_interval_s``.

    Deleted ledgers are found by hints of the clients that delete them, and every ``gc_interval_s`` by comparing all
    that are held with the metadata store's list; either is enough. Each is looked up by its id, and once more after
    ``gc_grace_s``; only then it is forgotten, for good. A short grace gives space back sooner and leaves an operator
    less time to notice that the metadata store has lost ledgers.
    """

    data_dir: Path
    metadata_service_uri: str
    port: int = 3181
    bookie_id: str | None = None
    advertised_address: str | None = None
    listen_address: str = "0.0.0.0"
    allow_loopback: bool = False
    metadata_timeout_s: float = 10.0
    session_timeout_s: float = 10.0
    stop_grace_s: float = 2.0
    segment_size_bytes: int = 256 << 20
    group_bytes_max: int = 16 << 20
    group_frames_max: int = 1000
    stream_bytes_max: int = 32 << 20
    in_flight_bytes_max: int = 64 << 20
    reads_active_max: int = 32
    read_part_bytes: int = 1 << 20
    disk_usage_threshold: float = 0.95
    disk_usage_low_water: float = 0.90
    disk_check_interval_s: float = 10.0
    gc_interval_s: float = 3600.0
    gc_grace_s: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "data_dir", Path(self.data_dir))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and field.name not in ("port", "allow_loopback") and value <= 0:
                raise InvalidArgumentError(f"{field.name} must be positive", value=f"{field.name}={value}")
        if not 0 <= self.port <= 65535:
            raise InvalidArgumentError("a port is a number from 0 to 65535", value=f"port={self.port}")
        if self.bookie_id is not None and not _is_id(self.bookie_id):
            raise InvalidArgumentError(
                "a bookie id has 1 to 255 characters, no slash and no space", value=f"bookie_id={self.bookie_id!r}"
            )
        if self.segment_size_bytes % _BLOCK:
            raise InvalidArgumentError(
                "segment_size_bytes must be a multiple of 4096", value=f"segment_size_bytes={self.segment_size_bytes}"
            )
        self._check_order("group_bytes_max", "stream_bytes_max")
        self._check_order("stream_bytes_max", "in_flight_bytes_max")
        self._check_order("read_part_bytes", "stream_bytes_max")
        self._check_order("disk_usage_low_water", "disk_usage_threshold")
        if self.disk_usage_threshold > 1:
            raise InvalidArgumentError(
                "disk_usage_threshold is a share of the disk, at most 1", value=f"{self.disk_usage_threshold}"
            )
        if self.segment_size_bytes < FRAME_BYTES_MAX + 4 * _BLOCK:
            raise InvalidArgumentError(
                "a segment must hold the largest frame and its own headers",
                value=f"segment_size_bytes={self.segment_size_bytes}",
                remedy=f"at least {FRAME_BYTES_MAX + 4 * _BLOCK}",
            )

    def _check_order(self, small: str, large: str) -> None:
        if getattr(self, small) > getattr(self, large):
            raise InvalidArgumentError(
                f"{small} must not exceed {large}",
                value=f"{small}={getattr(self, small)}, {large}={getattr(self, large)}",
                remedy=f"lower {small} or raise {large}",
            )

    def space_limits(self) -> SpaceLimits:
        """When the disk is too full for new entries."""
        return SpaceLimits(
            threshold=self.disk_usage_threshold,
            low_water=self.disk_usage_low_water,
            segment_bytes=self.segment_size_bytes,
        )

    def collector(self) -> CollectorConfig:
        """The part the collector needs."""
        return CollectorConfig(
            interval_ms=max(1, int(self.gc_interval_s * 1000)), grace_ms=max(1, int(self.gc_grace_s * 1000))
        )

    def machine_limits(self) -> MachineLimits:
        """The part the machine needs."""
        return MachineLimits(
            stream_bytes_max=self.stream_bytes_max,
            in_flight_bytes_max=self.in_flight_bytes_max,
            reads_active_max=self.reads_active_max,
            read_part_bytes=self.read_part_bytes,
        )


def load_config(path: Path, **overrides: Any) -> BookieConfig:
    """Configuration from a TOML file whose keys are the field names; ``overrides`` win.

    Raises InvalidArgumentError for a file that cannot be read, an unknown key, or values that do not fit.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError("the configuration file cannot be read", value=f"{path}: {error}") from error
    known = {field.name: field.type for field in fields(BookieConfig)}
    values.update(overrides)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"there is no such setting: {unknown[0]}", value=str(path), remedy=f"one of {', '.join(sorted(known))}"
        )
    for name in ("data_dir", "metadata_service_uri"):
        if name not in values:
            raise InvalidArgumentError(f"{name} is missing", value=str(path), remedy=f'add {name} = "…"')
    for name, value in values.items():
        _check_type(name, value, str(known[name]))
    return BookieConfig(**values)


def _check_type(name: str, value: object, annotation: str) -> None:
    wanted: tuple[type, ...] = (str,)
    if annotation == "bool":
        wanted = (bool,)
    elif annotation == "int":
        wanted = (int,)
    elif annotation == "float":
        wanted = (int, float)
    elif annotation == "Path":
        wanted = (str, Path)
    elif "None" in annotation:
        wanted = (str, type(None))
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted != (bool,)):
        raise InvalidArgumentError(
            f"{name} has another type", value=f"{name}={value!r}", remedy=f"wanted: {annotation}"
        )


def _is_id(text: str) -> bool:
    return 0 < len(text.encode()) <= 255 and not any(c.isspace() or c == "/" for c in text)
