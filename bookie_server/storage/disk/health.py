# SPDX-License-Identifier: Apache-2.0
"""Whether a data directory's disk may still be written: one failed write or sync is final for all of it (RULES S6)."""

from __future__ import annotations

import errno
from typing import NoReturn

from bk_core.errors import StorageFailedError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk: they lose nothing, and the refused write may be tried again."""
REMEDY = (
    "the bookie ends, and must not be started on this disk before the kernel's log (dmesg) and SMART say that it is "
    "well; a start then finds by itself what was durable; of a dying disk save a copy, and see bk bookie check"
)


class DiskHealth:
    """Shared by all writers of one directory, so that none goes on after another has failed. A failure stays for good.
    Any thread."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed: str | None = None
        """What failed first; None while the disk works."""

    def check(self) -> None:
        """Raises StorageFailedError if something has failed."""
        if self.failed is not None:
            raise StorageFailedError("the disk failed earlier", value=self.failed, remedy=REMEDY)

    def fail(self, what: str, path: str, error: OSError) -> NoReturn:
        """Note a failure and raise it as StorageFailedError."""
        self.failed = self.failed or f"{what} in {path}: {error}"
        raise StorageFailedError(what, value=f"{path}: {error}", remedy=REMEDY) from error
