# SPDX-License-Identifier: Apache-2.0
"""Reads objects through ``pyarrow.fs``. Each request blocks a thread, has a deadline, and is repeated if its failure
may pass."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    CorruptOffloadError,
    InvalidArgumentError,
    LedgerOffloadedError,
    OffloadMissingError,
    OffloadUnavailableError,
)
from bk_core.pulsar.model.offload import OffloadedCopy
from bk_core.pulsar.offloaded.access import AZURE_DRIVER, GCS_DRIVER, OffloadStorage

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

T = TypeVar("T")
REQUESTS_AT_ONCE = 16
"""The maximum number of requests to storages that run at the same time. Each takes a thread of a pool."""
ATTEMPTS_MAX = 4
"""The maximum number of attempts of a request, if the failure may pass."""
BACKOFF_S = 0.2
"""The longest pause before the second attempt, in seconds. It doubles for each further attempt."""
CONNECT_S = 10.0
"""The longest time, in seconds, for connecting to a storage."""
REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|PERMISSION_DENIED|UNAUTHENTICATED|Forbidden|Unauthorized"
    r"|HTTP status 40[13]\b|\] 40[13] "
)
"""A pattern for the errors of storages that refuse the caller; another attempt would not help. It has no bare numbers,
because the texts contain the names of objects."""
FROM_BOOKIES = "if bookies still have the ledger, read it with bookkeeper-first"
MISSING = re.compile(r"AWS Error (?:NO_SUCH_KEY|RESOURCE_NOT_FOUND)")
"""A pattern for the errors of reads from an object that was deleted after it was opened."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that is open for reading. ``name`` is its path in the storage, for errors."""

    name: str
    file: NativeFile
    bytes: int


class Storage:
    """The storage that has the objects of some copies. The constructor blocks, because it loads the cloud's SDK, which
    may ask the network for regions and credentials. It raises InvalidArgumentError for a URI or endpoint that cannot be
    used, and LedgerOffloadedError if this pyarrow does not support the storage."""

    def __init__(self, copy: OffloadedCopy, how: OffloadStorage, pool: ThreadPoolExecutor) -> None:
        self._timeout_s, self._pool = how.timeout_s, pool
        self._filesystem, self._root = _place(copy, how)
        self._shown = shown_place(copy, how)

    def begin_open(self, name: str, of: str) -> Future[StoredObject]:
        """Begin to open an object. ``of`` names the ledger and the topic in errors. The future raises
        OffloadMissingError and OffloadUnavailableError. The call itself raises ClientClosedError."""
        path = f"{self._root}/{name}" if self._root else name

        def open_it() -> StoredObject:
            file = self._filesystem.open_input_file(path)
            return StoredObject(f"{self._shown}: {path}", file, int(file.size()))

        return self._begin(open_it, f"{self._shown}: {path}", of)

    def begin_read(self, stored: StoredObject, offset: int, size: int, of: str) -> Future[memoryview]:
        """Begin to read bytes of an object. The future raises CorruptOffloadError if the object is too short, and the
        errors of :meth:`begin_open`."""

        def read() -> memoryview:
            found = memoryview(stored.file.read_at(size, offset))
            if found.nbytes != size:
                raise corrupt(of, stored.name, f"cut off: {found.nbytes} of {size} bytes at {offset}")
            return found

        return self._begin(read, stored.name, of)

    def _begin(self, request: Callable[[], T], name: str, of: str) -> Future[T]:
        try:
            return self._pool.submit(self._tried, request, name, of, time.monotonic() + self._timeout_s)
        except RuntimeError as error:  # the pool is shut down
            raise ClientClosedError(f"a read of {of} was not finished when its client was closed") from error

    def _tried(self, request: Callable[[], T], name: str, of: str, deadline: float) -> T:
        """Return the result of a request. A failure that may pass is repeated, with at most ATTEMPTS_MAX attempts and
        not after the deadline."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                return request()
            except BookKeeperError:
                raise
            except Exception as error:  # pyarrow raises OSError for most, and exceptions of its own
                if isinstance(error, FileNotFoundError) or MISSING.search(str(error)):
                    raise self._missing(name, of) from error
                wait_s = BACKOFF_S * 2**attempt * random.uniform(0.5, 1)
                refused = isinstance(error, PermissionError) or REFUSED.search(str(error)) is not None
                if refused or attempt + 1 == ATTEMPTS_MAX or time.monotonic() + wait_s > deadline:
                    raise unavailable(name, of, str(error)[:500], refused=refused) from error
                time.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _missing(self, name: str, of: str) -> BookKeeperError:
        """Return the error for an object that does not exist. If the bucket or folder does not exist either, it is
        another error, because a wrong name or a folder that is not mounted does not mean that the object is lost."""
        container = self._root if self._root.startswith("/") else self._root.partition("/")[0]
        if container and self._is_absent(container):
            return unavailable(name, of, f"there is no bucket or folder {container}")
        return OffloadMissingError(
            f"an object of {of} is not in the storage",
            value=name,
            remedy="if the topic was not trimmed meanwhile, look for the object in a backup of the bucket",
        )

    def _is_absent(self, container: str) -> bool:
        """Return whether the storage reports that this bucket or folder does not exist. Without permission to ask, it
        is False."""
        from pyarrow import fs

        try:
            return bool(self._filesystem.get_file_info(container).type == fs.FileType.NotFound)
        except Exception:
            return False


def shown_place(copy: OffloadedCopy, how: OffloadStorage) -> str:
    """Return a text that names the place of a copy's objects, for errors."""
    return how.uri or "the given filesystem" if how.has_own_place else f"{copy.driver} {copy.bucket}"


def unavailable(name: str, of: str, why: str, *, refused: bool = False) -> OffloadUnavailableError:
    """Return the error for a storage that refused a request or did not answer it."""
    first = "give credentials that may read the bucket" if refused else "see that this host reaches the storage"
    return OffloadUnavailableError(
        f"the storage refused to read {of}" if refused else f"the storage did not give an object of {of}",
        value=f"{name}: {why}",
        remedy=f"{first}; {FROM_BOOKIES}",
    )


def corrupt(of: str, name: str, why: str) -> CorruptOffloadError:
    """Return the error for an object whose bytes contradict each other."""
    return CorruptOffloadError(
        f"an object of {of} is damaged",
        value=f"{name}: {why}",
        remedy=f"compare it with a backup; {FROM_BOOKIES}",
    )


def _place(copy: OffloadedCopy, how: OffloadStorage) -> tuple[FileSystem, str]:
    """Return the file system of a copy, and the path of the objects in it."""
    import pyarrow as pa
    from pyarrow import fs

    if how.filesystem is not None:
        return how.filesystem, how.root.rstrip("/")
    try:
        if how.uri:
            found, path = fs.FileSystem.from_uri(how.uri)
            return found, path.rstrip("/")
        return _filesystem(copy, how), copy.bucket
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidArgumentError(
            "the storage of offloaded ledgers cannot be used",
            value=f"{how.uri or how.endpoint or copy.endpoint or copy.driver}: {str(error)[:500]}",
        ) from error


def _filesystem(copy: OffloadedCopy, how: OffloadStorage) -> FileSystem:
    scheme, _, host = (how.endpoint or copy.endpoint).rpartition("://")
    scheme, driver = scheme or "https", copy.driver.lower()
    if driver == AZURE_DRIVER:
        more = {"blob_storage_authority": host, "blob_storage_scheme": scheme} if host else {}
        return _class("AzureFileSystem", copy)(how.azure_account, account_key=how.azure_key or None, **more)
    if driver == GCS_DRIVER:
        more = {"endpoint_override": host, "scheme": scheme} if host else {}
        limit = timedelta(seconds=max(1.0, how.timeout_s / 2))
        return _class("GcsFileSystem", copy)(retry_time_limit=limit, **more)
    return _class("S3FileSystem", copy)(
        access_key=how.access_key or None,
        secret_key=how.secret_key or None,
        session_token=how.session_token or None,
        region=how.region or copy.region or None,
        endpoint_override=host or None,
        scheme=scheme,
        connect_timeout=min(CONNECT_S, how.timeout_s),
        request_timeout=how.timeout_s / 2,
        force_virtual_addressing=driver == "aliyun-oss",  # as Pulsar does: OSS has no other
    )


def _class(name: str, copy: OffloadedCopy) -> Any:
    from pyarrow import fs

    try:
        return getattr(fs, name)
    except (AttributeError, ImportError) as error:
        raise LedgerOffloadedError(
            "this installation of pyarrow cannot read the storage of offloaded ledgers",
            value=f"driver {copy.driver}, {name}",
            remedy="install a newer pyarrow from PyPI or conda-forge",
        ) from error
