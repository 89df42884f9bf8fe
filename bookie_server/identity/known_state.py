# SPDX-License-Identifier: Apache-2.0
"""The metadata store's record about a bookie's data directories, at ``<root>-bookies/<id>`` (RULES S8).

It holds the incarnation of each directory, how often the directory was started, and up to where its log was once
durable. So a start recognises a directory that is missing, foreign or older than the record. The record outlives the
bookie's removal.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from bk_core.errors import MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId
from bookie_server.storage.disk.cookie import DataDirectory

_STATE_VERSION = 1

Position: TypeAlias = tuple[int, int]
"""A position in a log: the generation of a segment and the offset in it."""


@dataclass(frozen=True, slots=True)
class KnownDirectory:
    """The record about one directory. ``boot_count`` is that of its last start, or 0 if it never served. Everything
    below ``position`` in its log was once durable. ``position`` is (0, 0) if nothing is known."""

    boot_count: int = 0
    position: Position = (0, 0)
    newest_sealed: int = 0


@dataclass(frozen=True, slots=True)
class KnownState:
    """The record about a bookie. ``incarnation`` is that of the first directory, which is the bookie's own. It is empty
    if there is no record."""

    incarnation: str = ""
    directories: Mapping[str, KnownDirectory] = field(default_factory=dict)


def read_known_state(store: MetadataStore, bookie_id: BookieId) -> KnownState:
    """Read the record of a bookie. The result is empty if there is none. Raises MetadataCorruptError, and errors of the
    store."""
    record = store.read_bookie_state(bookie_id)
    if record is None:
        return KnownState()
    try:
        fields = json.loads(record.value)
        incarnation = str(fields["incarnation"])
        directories = {incarnation: _decoded(fields)}
        directories |= {str(name): _decoded(other) for name, other in fields.get("others", {}).items()}
        return KnownState(incarnation, directories)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorruptError("the state of a bookie cannot be read", value=bookie_id) from error


def record_new(store: MetadataStore, bookie_id: BookieId, incarnations: Sequence[str]) -> None:
    """Record directories that are about to join the bookie, before anything is served from them. Raises
    MetadataConflictError if another process starts at the same time."""
    known = read_known_state(store, bookie_id)
    added = {name: KnownDirectory() for name in incarnations if name not in known.directories}
    _write(store, bookie_id, known.incarnation, {**known.directories, **added})


def record_start(
    store: MetadataStore,
    bookie_id: BookieId,
    starts: Mapping[str, KnownDirectory | None],
    *,
    lost: Collection[str] = (),
) -> None:
    """Record this start. ``starts`` has all directories of the bookie from now on, by incarnation, the bookie's own
    first. The value is None if a full disk refused the boot count; then the store keeps the old one. The recorded
    positions stay, except those of the incarnations in ``lost``. Raises MetadataConflictError if another process starts
    at the same time."""
    if not any(starts.values()):
        return
    known = read_known_state(store, bookie_id)
    directories: dict[str, KnownDirectory] = {}
    for incarnation, now in starts.items():
        before = known.directories.get(incarnation, KnownDirectory())
        position = (0, 0) if incarnation in lost else before.position
        directories[incarnation] = replace(now, position=position) if now is not None else before
    _write(store, bookie_id, next(iter(starts)), directories)


def noted_boot(store: MetadataStore, directory: DataDirectory) -> int:
    """Return the directory's boot count in the store after :func:`record_start`. It is that of this start, or of an
    earlier one if the disk is too full to record this start."""
    identity = directory.identity
    if directory.boot_recorded:
        return identity.boot_count
    known = read_known_state(store, identity.bookie_id).directories
    return known.get(identity.incarnation, KnownDirectory()).boot_count


def record_positions(store: MetadataStore, bookie_id: BookieId, positions: Mapping[str, Position]) -> None:
    """Record how far the logs are durable, by their directories' incarnations, so that an older copy of a directory is
    recognised. Raises MetadataConflictError if another process starts as this bookie."""
    known = read_known_state(store, bookie_id)
    moved = {
        name: KnownDirectory(before.boot_count, positions[name], before.newest_sealed)
        for name, before in known.directories.items()
        if positions.get(name, (0, 0)) > before.position
    }
    if moved:
        _write(store, bookie_id, known.incarnation, {**known.directories, **moved})


def _write(
    store: MetadataStore, bookie_id: BookieId, incarnation: str, directories: Mapping[str, KnownDirectory]
) -> None:
    state: dict[str, Any] = {"incarnation": incarnation, "v": _STATE_VERSION} | _encoded(directories[incarnation])
    others = {name: _encoded(other) for name, other in directories.items() if name != incarnation}
    if others:
        state["others"] = others
    record = store.read_bookie_state(bookie_id)
    value = json.dumps(state, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    store.write_bookie_state(bookie_id, value, record.version if record else None)


def _encoded(known: KnownDirectory) -> dict[str, Any]:
    return {"boot_count": known.boot_count, "newest_sealed": known.newest_sealed, "position": known.position}


def _decoded(fields: dict[str, Any]) -> KnownDirectory:
    generation, offset = fields.get("position", (0, 0))
    return KnownDirectory(
        int(fields["boot_count"]), (int(generation), int(offset)), int(fields.get("newest_sealed", 0))
    )
