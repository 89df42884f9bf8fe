# SPDX-License-Identifier: Apache-2.0
"""Reads the files of keys that a bookie trusts, for grants and for tokens. A user who can write to such a file can take
any identity."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

KEYS_BYTES_MAX = 1 << 20
"""The maximum size of a file of keys in bytes, so that a wrong path does not load a large file."""


def read_key_file(path: Path, *, secret: bool = False) -> bytes:
    """Return the contents of a file of keys. With ``secret`` other users should not be able to read it. Raises OSError,
    and ValueError with the reason for a file that every user of this host may write, or that is too long. Other
    permissions that are too wide are logged as warnings."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read(KEYS_BYTES_MAX + 1)
    if mode & stat.S_IWOTH:
        raise ValueError("every user of this host may write to it, and so take any identity; chmod o-w ends that")
    if len(text) > KEYS_BYTES_MAX:
        raise ValueError(f"it has more than {KEYS_BYTES_MAX} bytes")
    if mode & stat.S_IWGRP:
        logger.warning(
            "every member of the group of %s may write to it, and so take any identity; chmod g-w ends that", path
        )
    if secret and mode & stat.S_IROTH:
        logger.warning("every user of this host may read %s, and so take any identity; chmod o-r ends that", path)
    return text


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when the file, its mode, or a link to it changes; None if the file cannot be
    accessed."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev, status.st_mode
