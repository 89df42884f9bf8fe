# SPDX-License-Identifier: Apache-2.0
"""Files of keys that a bookie trusts: those of grants and those of tokens. A user who can write to one can take any
identity."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

KEYS_BYTES_MAX = 1 << 20


def read_key_file(path: Path, *, secret: bool = False) -> bytes:
    """What it holds; ``secret``: others should not read it. Raises OSError, and ValueError, which says why, for a file
    that every user of this host may write, or that is too long. What else its mode allows is a warning."""
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
    """What changes when the file does, or its mode, or a link to it."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev, status.st_mode
