# SPDX-License-Identifier: Apache-2.0
"""Makes syncs take longer for every process that is started from here: our bookies, Java and the bare servers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bk_core.errors import InvalidArgumentError

SOURCE = Path(__file__).with_suffix(".c")
COMPILE_S = 60


def add(ms: float, folder: Path = Path(".cache/bench-peers")) -> None:
    """Add ``ms`` to each sync. Raises InvalidArgumentError if the library that does this cannot be compiled."""
    if not ms:
        return
    folder.mkdir(parents=True, exist_ok=True)
    library = (folder / "slow_sync.so").absolute()
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise InvalidArgumentError(
            "--slow-sync-ms needs Linux and a C compiler",
            value=said[-300:],
            remedy="sudo apt-get install gcc libc6-dev",
        ) from error
    os.environ |= {"LD_PRELOAD": str(library), "SLOW_SYNC_US": str(int(ms * 1000))}
