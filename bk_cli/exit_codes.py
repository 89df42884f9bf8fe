# SPDX-License-Identifier: Apache-2.0
"""The exit code of ``bk`` for each error, so that scripts can tell errors apart. Listed in ``docs/errors.md``."""

from __future__ import annotations

from bk_core import errors

OTHER = 1
USAGE = 2  # click's own number for wrong usage
NOT_FOUND = 3
CONFLICT = 4
UNAVAILABLE = 5
INTEGRITY = 6
DENIED = 7
INTERRUPTED = 130  # as a shell reports SIGINT

# The first class that fits decides, so narrower classes come first.
_CODES: tuple[tuple[type[errors.BookKeeperError], int], ...] = (
    (errors.NoSuchLedgerError, NOT_FOUND),
    (errors.NoSuchLogError, NOT_FOUND),
    (errors.NoClusterError, NOT_FOUND),
    (errors.NoSuchBookieError, NOT_FOUND),
    (errors.PermissionDeniedError, DENIED),
    (errors.AuthenticationError, DENIED),
    (errors.NoSuchEntryError, INTEGRITY),  # an entry that must exist is missing: data loss
    (errors.EntryUnreadableError, UNAVAILABLE),
    (errors.EntryTooLargeError, USAGE),
    (errors.WrongPasswordError, USAGE),
    (errors.WrongDigestTypeError, USAGE),
    (errors.LedgerError, CONFLICT),
    (errors.LogError, CONFLICT),
    (errors.NoSuchTopicError, NOT_FOUND),
    (errors.CorruptMessageError, INTEGRITY),
    (errors.TopicError, CONFLICT),
    (errors.MetadataConflictError, CONFLICT),
    (errors.MetadataCorruptError, INTEGRITY),
    (errors.ClusterMismatchError, INTEGRITY),
    (errors.MetadataError, UNAVAILABLE),
    (errors.QuorumError, UNAVAILABLE),
    (errors.TransportError, UNAVAILABLE),
    (errors.WindowFullError, UNAVAILABLE),
    (errors.IntegrityError, INTEGRITY),
    (errors.StorageFailedError, INTEGRITY),
    (errors.BookieIdentityError, CONFLICT),
    (errors.BookieNeededError, CONFLICT),
    (errors.PortInUseError, CONFLICT),
    (errors.InvalidArgumentError, USAGE),
    (errors.DataDirectoryError, USAGE),
)


def exit_code_of(error: type[errors.BookKeeperError]) -> int:
    """Return the exit code of ``bk`` for a command that ends with an error of this class."""
    return next((code for cls, code in _CODES if issubclass(error, cls)), OTHER)
