# SPDX-License-Identifier: Apache-2.0
"""Tracks whether a data directory's disk may still be written. One failed write or sync is final for the whole
directory (RULES S6)."""

from __future__ import annotations

import errno
from typing import NoReturn

from bk_core.errors import StorageFailedError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk. They lose no data, and the refused write may be tried again."""
REMEDY = (
    "the bookie ends; do not start it on this disk before the kernel's log (dmesg) and SMART say that it is well; "
    "a start then finds the durable data by itself; if the disk is dying, save a copy of it and use bk bookie check"
)


class DiskHealth:
    """The health of one directory, shared by all its writers, so that none continues after another has failed. A
    failure stays for good. Any thread may call."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed: str | None = None
        """A description of the first failure; None while the disk works."""

    def check(self) -> None:
        """Check that no write or sync has failed. Raises StorageFailedError if one has."""
        if self.failed is not None:
            raise StorageFailedError("the disk failed earlier", value=self.failed, remedy=REMEDY)

    def fail(self, what: str, path: str, error: OSError) -> NoReturn:
        """Record a failure and raise it as StorageFailedError."""
        self.failed = self.failed or f"{what} in {path}: {error}"
        raise StorageFailedError(what, value=f"{path}: {error}", remedy=REMEDY) from error
