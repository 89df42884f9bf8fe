# SPDX-License-Identifier: Apache-2.0
"""Marks, with which the trial's processes show their progress: empty files in a folder, and lines in a list."""

from __future__ import annotations

import os
import time
from pathlib import Path

_POLL_S = 0.01


class Marks:
    """A folder of marks. A mark is set once. A process that waits for it polls."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def set(self, name: str) -> None:
        (self.path / name).touch()

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def wait(self, name: str, timeout_s: float) -> bool:
        """Wait for a mark. Return whether it was set in time."""
        deadline = time.monotonic() + timeout_s
        while not self.has(name):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def note(self, line: str) -> None:
        """Add a line to the list. The list has only whole lines, even if a process is killed."""
        handle = os.open(self.path / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line.encode() + b"\n")
        finally:
            os.close(handle)

    def notes(self) -> list[str]:
        try:
            return (self.path / "notes").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def clear(self) -> None:
        """Delete all marks."""
        self.path.mkdir(parents=True, exist_ok=True)
        for each in self.path.iterdir():
            each.unlink()
