# SPDX-License-Identifier: Apache-2.0
"""The owner of a data directory: Apache's cookie, our identity file, and the lock (docs/formats.md §3.1, RULES S8).

A directory is used only by the bookie and cluster that made it, by one process at a time. A directory that has no
identity and is not empty is refused, so that a bookie never starts empty in place of lost data.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bk_core.entries.digest import crc32c
from bk_core.errors import BookieIdentityError, BookKeeperError, DataDirectoryError, MetadataCorruptError
from bk_core.metadata.records import Cookie, decode_cookie, encode_cookie
from bookie_server.storage.disk.files import Files
from bookie_server.storage.disk.space import Usage

COOKIE_NAME = "VERSION"
IDENTITY_NAME = "IDENTITY"
LOCK_NAME = "LOCK"
LOSS_NAME = "LOSS"
"""The name of a mark file. It exists from the beginning of a start with lost data until all ledgers are in limbo.
Meanwhile the bookie must serve nothing."""
LIMBO_NAME = "LIMBO"
"""The name of a mark file. It exists from the moment when a start finds that state is lost until all of the loss is on
record. The start sets it before it writes anything that would hide the loss (RULES S8), because the start's new segment
looks like that of a new directory."""
SEGMENTS_NAME = "segments"
IDENTITY_VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data directory. ``incarnation`` is the text of a uuid, which is new for each directory ever
    created. ``boot_count`` is the number of times that the directory was opened. ``checkpoint`` is the number of the
    newest checkpoint under which segments may have been recycled, or 0 for none. ``directories`` has the incarnations
    of all data directories of the bookie, including this one, sorted. It is empty if this is the only one."""

    bookie_id: str
    cluster: str
    incarnation: str
    boot_count: int
    checkpoint: int = 0
    directories: tuple[str, ...] = ()

    @property
    def incarnation_bytes(self) -> bytes:
        """The 16 bytes that tie segments, groups and stamps to this directory."""
        return uuid.UUID(self.incarnation).bytes


def encode_identity(identity: Identity) -> bytes:
    fields: dict[str, Any] = {
        "bookie_id": identity.bookie_id,
        "boot_count": identity.boot_count,
        "cluster": identity.cluster,
        "incarnation": identity.incarnation,
        "v": IDENTITY_VERSION,
    }
    if identity.checkpoint:
        fields["checkpoint"] = identity.checkpoint
    if identity.directories:
        fields["directories"] = list(identity.directories)
    fields["crc"] = crc32c(_canonical(fields))
    return _canonical(fields) + b"\n"


def read_identity(files: Files, path: str) -> Identity:
    """Read the identity of the data directory ``path``. Raises DataDirectoryError, which names the file and the
    remedy."""
    name = os.path.join(path, IDENTITY_NAME)
    try:
        return decode_identity(files.read_file(name), name)
    except OSError as error:
        raise DataDirectoryError(
            "the identity file of a data directory cannot be read", value=f"{name}: {error}", remedy=_restore(path)
        ) from error


def decode_identity(data: bytes, name: str = IDENTITY_NAME) -> Identity:
    """Decode an identity. Raises DataDirectoryError for anything but an intact identity of this version; ``name`` is
    the file's name for the error."""
    restore = _restore(os.path.dirname(name) or "DIR")
    try:
        fields = json.loads(data)
        crc, version = fields.pop("crc"), fields["v"]
        if crc != crc32c(_canonical(fields)):
            raise DataDirectoryError(
                "the identity file of a data directory fails its check", value=name, remedy=restore
            )
        if version != IDENTITY_VERSION:
            raise DataDirectoryError(
                "the identity file is of another version", value=f"{name}: version {version}",
                remedy="start the bookie with the newer software that wrote it",
            )  # fmt: skip
        identity = Identity(
            fields["bookie_id"], fields["cluster"], fields["incarnation"], fields["boot_count"],
            fields.get("checkpoint", 0), tuple(map(str, fields.get("directories", ()))),
        )  # fmt: skip
        uuid.UUID(identity.incarnation)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataDirectoryError(
            "the identity file of a data directory cannot be read", value=f"{name}: {error}", remedy=restore
        ) from error
    return identity


def _restore(path: str) -> str:
    """Return the remedy for a directory whose identity or cookie is damaged."""
    return (
        f"see what is in it: bk bookie check {path}; put the file back from a copy of this directory, or keep this one "
        "and start the bookie with an empty directory and --accept-loss"
    )


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def cookie_of(bookie_id: str, instance_id: str, paths: Sequence[str]) -> bytes:
    """Return Apache's cookie of a bookie with these data directories."""
    named = tuple(paths)
    return encode_cookie(Cookie(bookie_host=bookie_id, journal_dirs=named, ledger_dirs=named, instance_id=instance_id))


class DataDirectory:
    """An open, locked data directory. Close it to release the lock."""

    def __init__(self, path: str, identity: Identity, cookie: bytes, files: Files, lock: int) -> None:
        self.path = path
        self.identity = identity
        """``boot_count`` includes this opening. It is on disk once :meth:`record_boot` has returned."""
        self.cookie = cookie
        """Apache's cookie text, for ``cookies/<id>`` in the metadata store."""
        self.files = files
        self.boot_recorded = False
        self._lock: int | None = lock

    @property
    def segments_path(self) -> str:
        return os.path.join(self.path, SEGMENTS_NAME)

    @property
    def used_before(self) -> bool:
        """Whether an earlier boot finished opening this directory. Then the directory has segments, or has lost
        them."""
        return self.identity.boot_count > 1

    @staticmethod
    def exists(path: str, *, files: Files | None = None) -> bool:
        """Return whether ``path`` has an identity file."""
        return (files or Files()).exists(os.path.join(path, IDENTITY_NAME))

    @classmethod
    def create(
        cls,
        path: str,
        bookie_id: str,
        instance_id: str,
        *,
        files: Files | None = None,
        incarnation: str | None = None,
        cookie_paths: Sequence[str] = (),
        directories: tuple[str, ...] = (),
    ) -> DataDirectory:
        """Turn an empty or missing directory into one of this bookie, with a new incarnation, and open it.

        ``cookie_paths`` are the paths in the cookie, by default ``path``; ``directories`` is that of the identity.
        Raises DataDirectoryError if the directory has anything in it or is in use by another process, and for errors of
        the disk. The identity is written last, so :meth:`create` accepts a directory that an interrupted call left.
        """
        files = files or Files()
        path = os.path.abspath(path)
        with _os_errors("cannot create", path):
            files.make_directory(path)
            strangers = [name for name in files.names(path) if name not in _OURS_UNFINISHED]
            segments = os.path.join(path, SEGMENTS_NAME)
            if strangers or (files.exists(segments) and files.names(segments)):
                raise DataDirectoryError(
                    "a directory that is not empty cannot become a data directory",
                    value=f"{path} holds {(strangers or [SEGMENTS_NAME])[0]!r}",
                    remedy="name an empty directory",
                )
            lock = _lock(path, files)
            try:
                files.make_directory(segments)
                cookie = cookie_of(bookie_id, instance_id, cookie_paths or (path,))
                files.write_atomically(os.path.join(path, COOKIE_NAME), cookie)
                identity = Identity(
                    bookie_id, instance_id, incarnation or str(uuid.uuid4()), 0, directories=directories
                )
                files.write_atomically(os.path.join(path, IDENTITY_NAME), encode_identity(identity))
            except BaseException:
                files.close(lock)
                raise
        return cls(path, replace(identity, boot_count=1), cookie, files, lock)

    @classmethod
    def open(cls, path: str, bookie_id: str, instance_id: str, *, files: Files | None = None) -> DataDirectory:
        """Lock an existing data directory and check that it is this bookie's.

        Raises BookieIdentityError if it belongs to another bookie or cluster, DataDirectoryError if it is in use,
        missing, or has no readable identity. Nothing is written until :meth:`record_boot`.
        """
        files = files or Files()
        path = os.path.abspath(path)
        with _os_errors("cannot open", path):
            if not files.exists(os.path.join(path, IDENTITY_NAME)):
                raise DataDirectoryError(
                    "this directory has no identity file", value=path, remedy="name the right directory or a new one"
                )
            lock = _lock(path, files)
            try:
                identity = read_identity(files, path)
                cookie = files.read_file(os.path.join(path, COOKIE_NAME))
                _check_owner(path, identity, cookie, bookie_id, instance_id)
            except BaseException:
                files.close(lock)
                raise
        return cls(path, replace(identity, boot_count=identity.boot_count + 1), cookie, files, lock)

    def record_boot(self) -> None:
        """Make this boot's count durable. Called once the segments are open. Raises DataDirectoryError.

        A directory that was used before opens even on a full disk, to serve reads. Then ``boot_recorded`` stays False,
        the count must not be written to the metadata store, and the next boot gets the same count.
        """
        with _os_errors("cannot write", self.path):
            try:
                self.files.write_atomically(os.path.join(self.path, IDENTITY_NAME), encode_identity(self.identity))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.used_before:
                    raise
                return
        self.boot_recorded = True

    def record_checkpoint(self, number: int) -> None:
        """Record durably that segments may be recycled under this checkpoint, which must be durable itself. A start
        that does not find this checkpoint then knows that state is lost (RULES S4). Takes no space if IDENTITY names
        the checkpoint already. Raises OSError as :meth:`Files.write_atomically`."""
        if number <= self.identity.checkpoint:
            self.files.sync_directory(self.path)  # its writer may have ended before the name was durable
            return
        identity = replace(self.identity, checkpoint=max(number, self.identity.checkpoint))
        self.files.write_atomically(os.path.join(self.path, IDENTITY_NAME), encode_identity(identity))
        self.identity = identity

    def belong_to(self, directories: tuple[str, ...]) -> None:
        """Set the list of the bookie's data directories. It goes to disk with the next write of the identity."""
        self.identity = replace(self.identity, directories=directories)

    def write_cookie(self, cookie: bytes) -> None:
        """Replace the cookie, durably. Raises DataDirectoryError."""
        with _os_errors("cannot write", self.path):
            self.files.write_atomically(os.path.join(self.path, COOKIE_NAME), cookie)
        self.cookie = cookie

    def has_mark(self, name: str) -> bool:
        """Return whether :meth:`set_mark` was called, perhaps by an earlier process, and :meth:`clear_mark` was not."""
        return self.files.exists(os.path.join(self.path, name))

    def set_mark(self, name: str) -> None:
        """Create the mark LOSS_NAME or LIMBO_NAME durably. Raises DataDirectoryError."""
        with _os_errors("cannot write", self.path):
            self.files.write_atomically(os.path.join(self.path, name), b"")

    def clear_mark(self, name: str) -> None:
        """Remove a mark durably. Raises DataDirectoryError."""
        with _os_errors("cannot write", self.path):
            self.files.remove(os.path.join(self.path, name))
            self.files.sync_directory(self.path)

    def begin_loss(self, boot_count: int) -> None:
        """Record durably that this directory lacks data. This boot gets at least the number ``boot_count``. Raises
        DataDirectoryError."""
        self.set_mark(LOSS_NAME)
        self.identity = replace(self.identity, boot_count=max(boot_count, self.identity.boot_count))

    def place(self) -> str:
        """Return a text that distinguishes this directory from a copy of it. Raises DataDirectoryError."""
        with _os_errors("cannot look at", self.path):
            return self.files.place_of(os.path.join(self.path, LOCK_NAME))

    def usage(self, kept_bytes: int = 0) -> Usage:
        """Return the present usage of the file system. Blocks; raises OSError."""
        return Usage(self.files.total_bytes(self.path), self.files.free_bytes(self.path), kept_bytes)

    def close(self) -> None:
        if self._lock is not None:
            self.files.close(self._lock)
            self._lock = None


_OURS_UNFINISHED = (COOKIE_NAME, COOKIE_NAME + ".tmp", IDENTITY_NAME + ".tmp", LOCK_NAME, SEGMENTS_NAME, "lost+found")


@contextmanager
def _os_errors(what: str, path: str) -> Iterator[None]:
    """Turn an OSError into a DataDirectoryError."""
    try:
        yield
    except OSError as error:
        raise DataDirectoryError(f"{what} the data directory", value=f"{path}: {error}") from error


def _lock(path: str, files: Files) -> int:
    try:
        return files.lock(os.path.join(path, LOCK_NAME))
    except BlockingIOError as error:
        raise DataDirectoryError(
            "the data directory is in use by another process", value=path, remedy="stop that bookie first"
        ) from error


def _check_owner(path: str, identity: Identity, cookie: bytes, bookie_id: str, instance_id: str) -> None:
    try:
        written = decode_cookie(cookie)
    except MetadataCorruptError as error:
        raise DataDirectoryError(
            "the cookie of the directory cannot be read", value=os.path.join(path, COOKIE_NAME), remedy=_restore(path)
        ) from error
    problem: BookKeeperError | None = None
    if identity.bookie_id != bookie_id or written.bookie_host != bookie_id:
        problem = BookieIdentityError(
            "the data directory belongs to another bookie",
            value=f"{path} is {identity.bookie_id}'s, this is {bookie_id}",
            remedy=f"start it with the bookie id {identity.bookie_id}, or name another directory",
        )
    elif identity.cluster != instance_id or written.instance_id != instance_id:
        problem = BookieIdentityError(
            "the data directory belongs to another cluster",
            value=f"{path} is of cluster {identity.cluster}, this one is {instance_id}",
            remedy="check the metadata service URI, or name another directory",
        )
    if problem is not None:
        raise problem
