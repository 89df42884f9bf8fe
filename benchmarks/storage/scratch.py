# SPDX-License-Identifier: Apache-2.0
"""A directory on the disk for a measurement. Free space is checked first, and nothing stays, whatever ends the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from bk_core.errors import InvalidArgumentError

PREFIX = "storage-"
SPARE_SHARE = 0.02
"""The share of the file system that stays free beside what a measurement needs, because a full disk behaves
differently."""


@contextlib.contextmanager
def scratch(folder: Path, needed_bytes: int, what: str) -> Iterator[Path]:
    """Make an empty directory in ``folder``, and remove it at the end, also if the run is interrupted or terminated.

    Leftovers of a killed run are removed first. Raises InvalidArgumentError if there is too little room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    check_room(folder, needed_bytes, what)
    with terminated_as_interrupted(), tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=folder) as path:
        yield Path(path)


def check_room(folder: Path, needed_bytes: int, what: str) -> None:
    """Check that ``needed_bytes`` and a little more are free. Raises InvalidArgumentError."""
    usage = shutil.disk_usage(folder)
    if usage.free - int(usage.total * SPARE_SHARE) < needed_bytes:
        raise InvalidArgumentError(
            f"there is too little room to measure {what}",
            value=f"{needed_bytes / 1e9:.1f} GB are needed in {folder}, {usage.free / 1e9:.1f} GB are free",
            remedy="name a directory on a larger disk with --data, or lower --scale",
        )


def remove_leftovers(folder: Path) -> None:
    """Remove the directories of runs whose process is gone."""
    for path in folder.glob(f"{PREFIX}*-*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not _is_running(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM end the block as Ctrl-C does, so that everything is cleaned up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
